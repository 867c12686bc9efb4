// out[m, n] = epilogue(op(A) op(B)) of 16-bit floats on Hopper, summed in float32. A block walks over tiles of 128 x 256:
// a thread loads steps of 64 along the sum by the copy engine, two warpgroups multiply 64 rows each (wgmma m64n256k16).
// A finished tile is rounded to 16 bits, which halves its registers, and what is done to it happens in slices during the
// first steps of the next tile, while the tensor cores work. Its way out through shared memory is the work of a warp for
// each warpgroup, which also brings x and adds up columns: so those who multiply neither wait for copies nor ask for any.
// Two blocks have tiles one below the other and load half of B each for both. Tiles go along bands of GROUP pairs, so
// that what runs at one time reads few rows and columns. Least bytes: A, B and out once, and x.
//
// Defined before: T and its name PTX_T; A_BY_K, B_BY_K (whether k is the contiguous axis of A[m, k], B[k, n] in memory);
// MULTIPLY, the wgmma; SLICES, 8 or 16, not more than there are steps; STAGES of the ring; GROUP; and what is done, in
// this order: BIAS + bias[n]; GELU an expression of X (KEEP: x gets X); SLOPE times an expression of X, which x holds.
// TANH: these are those of the tanh form. SUMS: sums[m / 64, n] get the sums of the result's columns over 64 rows each.
constexpr int BM = 128, BN = 256, BK = 64, PAIR = 2;
constexpr u32 A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr u32 BOX = 64 * 128;                      // bytes of 64 swizzled rows
constexpr int WIDTH = 64, PIECES = BN / WIDTH;     // columns of a piece, of 64 rows
constexpr int PER = SLICES / PIECES, PARTS = 4 / PER;  // slices of a piece, parts of 16 columns of a slice
constexpr int FEW = 40, MANY = 232;                // registers of a thread that loads, that multiplies
// A warpgroup has two boxes for pieces on their way: sets of one, or with KEEP a set of one and what is kept of it. Of
// each set barriers tell that it may be written, or that x is there, and DONE bytes on that it is written.
constexpr int SETS = 2 / (1 + KEEP);
constexpr u32 DONE = SETS * 8, OWN = 2 * DONE;
static_assert(SLICES == 8 || SLICES == 16, "");

// How far the ring went: a stage, and the parity of its phase.
struct Turn {
    u32 steps = 0;
    __device__ __forceinline__ u32 stage() const { return steps % STAGES; }
    __device__ __forceinline__ u32 parity() const { return steps / STAGES % 2; }
    __device__ __forceinline__ u32 before() const { return (steps - 1) % STAGES; }
    __device__ __forceinline__ void next() { steps++; }
};
// Tiles of a pair of blocks: top left corners.
struct Walk {
    int tiles_m, tiles_n;
    __device__ __forceinline__ int2 place(int tile) const {
        const int first = tile / (GROUP * tiles_n) * GROUP, size = min(GROUP, tiles_m - first);
        const int rest = tile - first * tiles_n, column = rest / size;
        return {(first + rest - column * size) * PAIR * BM, column * BN};
    }
};

// sums[row / 64, column] get the sums of a piece's columns over those of its rows that are there.
__device__ __forceinline__ void add_up(u32 piece, int2 at, int n, int m, float* sums) {
    const int lane = threadIdx.x % 32, chunk = lane % 8, rows = min(64, m - at.x);
    float x[8] = {};
#pragma unroll 1
    for (int row = lane / 8; row < rows; row += 4) {
        u32 y[4];
        load_quad(y, piece + row * 128 + ((chunk ^ row % 8) << 4));
#pragma unroll
        for (int j = 0; j < 4; j++) x[2 * j] += low_of(y[j]), x[2 * j + 1] += high_of(y[j]);
    }
#pragma unroll
    for (int half = 4, lanes = 16; half > 1; half /= 2, lanes /= 2)  // a lane keeps one half, its partner the other
#pragma unroll
        for (int j = 0; j < half; j++) {
            const bool upper = lane & lanes;
            x[j] = (upper ? x[j + half] : x[j]) + __shfl_xor_sync(~0u, upper ? x[j] : x[j + half], lanes);
        }
    const int column = at.y + chunk * 8 + lane / 16 * 4 + lane / 8 % 2 * 2;
    if (rows > 0 && column < n) *reinterpret_cast<float2*>(sums + i64(at.x / 64) * n + column) = {x[0], x[1]};
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1) product(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap out_map, const __grid_constant__ TensorMap x_map, const T* bias, int n, int steps,
    int piece_steps, int tiles_m, int tiles_n, int tiles, float* sums, int m) {
    extern __shared__ u8 memory[];
    const u32 stages = (shared_address(memory) + 1023) & ~1023u;  // the same in both blocks
    const u32 slots = stages + STAGES * STAGE_BYTES, biases = slots + 4 * BOX;
    const u32 full = biases + BN * 2, empty = full + STAGES * 8, sets = empty + STAGES * 8;
    const int rank = blockIdx.x % PAIR, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Walk walk{tiles_m, tiles_n};
    const int every = gridDim.x / PAIR;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 8 * PAIR);  // each warp that multiplies, of both blocks
        }
        for (int part = 0; part < 2; part++)
            for (int set = 0; set < SETS; set++) {
                barrier_init(sets + part * OWN + set * 8, 1);
                barrier_init(sets + part * OWN + DONE + set * 8, 4);  // each warp of a warpgroup
            }
        barriers_ready();
    }
    cluster_sync();

    // Asked for where it is needed: else it lies in a register all the time.
    auto first = [] {
        u32 block;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        return int(block / PAIR);
    };
    if (warp < 4) {
        fewer_registers<FEW>();
        if (warp == 1 || warp == 2) {  // takes the pieces of a warpgroup away
            const int part = warp - 1;
            const u32 own_slots = slots + part * 2 * BOX, own = sets + part * OWN;
            auto corner = [&](int tile) {
                const int2 at = walk.place(tile);
                return int2{at.x + rank * BM + part * 64, at.y};
            };
            auto open = [&](int set, int row, int column) {
#ifdef SLOPE
                barrier_expect(own + set * 8, BOX);
                load_box(own_slots + set * BOX, x_map, own + set * 8, column, row, 0, 0);
#else
                barrier_arrive(own + set * 8);
#endif
            };
            if (lane == 0)
                for (int c = 0; c < SETS; c++) open(c, corner(first()).x, corner(first()).y + c * WIDTH);
            __syncwarp();
            for (int tile = first(); tile < tiles; tile += every) {
                int2 at = corner(tile);
#pragma unroll 1
                for (int c = 0; c < PIECES; c++, at.y += WIDTH) {
                    const u32 set = c % SETS, from = own_slots + set * (1 + KEEP) * BOX;
                    barrier_wait(own + DONE + set * 8, c / SETS % 2);
                    if (lane == 0) {
                        if (KEEP) store_box(x_map, from + BOX, at.y, at.x);
                        store_box(out_map, from, at.y, at.x);
                    }
                    __syncwarp();
                    if (SUMS) add_up(from, at, n, m, sums);
                    __syncwarp();
                    if (lane == 0) {
                        bulk_read();
                        if (c + SETS < PIECES) open(set, at.x, at.y + SETS * WIDTH);
                        else if (tile + every < tiles) {
                            const int2 next = corner(tile + every);
                            open(set, next.x, next.y + (c + SETS - PIECES) * WIDTH);
                        }
                    }
                    __syncwarp();
                }
            }
        }
        if (threadIdx.x == 0) {
            Turn turn;
            for (int tile = first(); tile < tiles; tile += every) {
                const int2 at = walk.place(tile);
                const int row = at.x + rank * BM, column = at.y;
#pragma unroll 1
                for (int k = 0; k < steps * BK; k += BK, turn.next()) {
                    const u32 a = stages + turn.stage() * STAGE_BYTES, b = a + A_BYTES, here = full + turn.stage() * 8;
                    barrier_wait(empty + turn.stage() * 8, turn.parity() ^ 1);
                    if (BIAS && k == (steps - 1) * BK) {  // those who begin with this stage have used the bias before
                        const u32 bytes = min(BN, n - column) * 2;
                        barrier_expect(here, STAGE_BYTES + bytes);
                        load_bytes(biases, bias + column, here, bytes);
                    } else {
                        barrier_expect(here, STAGE_BYTES);
                    }
                    if (A_BY_K) load_box(a, a_map, here, k, row, 0, 0);
                    else
#pragma unroll
                        for (int i = 0; i < BM / 64; i++) load_box(a + i * BOX, a_map, here, row + i * 64, k, 0, 0);
                    constexpr int OWN = BN / PAIR, BOXES = B_BY_K ? 1 : OWN / 64;
#pragma unroll
                    for (int i = 0; i < BOXES; i++) {
                        const int c = rank * OWN + i * 64, x = B_BY_K ? k : column + c, y = B_BY_K ? column + c : k;
                        load_box_for(b + c * 128, b_map, here, x, y, 0, 0, (1 << PAIR) - 1);
                    }
                }
            }
        }
    } else {
        more_registers<MANY>();
        const int part = __shfl_sync(~0u, warp / 4 - 1, 0);
        const u32 own = sets + part * OWN;
        const u32 stages_here = stages & 0x3ffff;  // descriptors take no more bits; in a cluster there are more
        // Where this lane's row of 8 x 8 matrices begins in the first slot: matrices above and below, then those of the
        // next 8 columns. A row's 16-byte parts are swizzled: 16 columns on, two bits of the address are others.
        const int matrix_row = warp % 4 * 16 + lane % 16;
        const u32 own_place = slots + part * 2 * BOX + matrix_row * 128 + ((lane / 16 ^ matrix_row % 8) << 4);
        float d[BN / 2];
        Turn turn;
        u32 z[BN / 4] = {};  // the last tile, rounded; as accumulators lie

        auto release = [&] {
            if (lane < PAIR) barrier_arrive_at(empty + turn.before() * 8, lane);
        };
        auto begin = [&](int step) {
            barrier_wait(full + turn.stage() * 8, turn.parity());
            const u32 stage = stages_here + turn.stage() * STAGE_BYTES;
            const u64 a = descriptor((stage + part * BOX) >> 4, BOX, 1024), b = descriptor((stage + A_BYTES) >> 4, BOX, 1024);
            wgmma_fence();
            MULTIPLY<A_BY_K ? 2 : 128, B_BY_K ? 2 : 128>(d, a, b, step > 0);  // 16 of k: 32 bytes of a row, or 16 rows
            wgmma_commit();
        };
        auto end = [&](int step) {
            wgmma_wait<1>();
            if (step > 0) release();
            turn.next();
        };
        auto slice = [&](int c, int i) {  // slice i of piece c, which is at the front: the compiler knows i
            const u32 set = c % SETS, piece = own_place + set * (1 + KEEP) * BOX;
            if (i == 0) barrier_wait(own + set * 8, c / SETS % 2);
#pragma unroll
            for (int h = 0; h < PARTS; h++) {
                const int of16 = i * PARTS + h;  // of 16 columns
                const u32 place = piece ^ of16 * 32;
                u32 y[4];
#pragma unroll
                for (int j = 0; j < 4; j++) y[j] = z[of16 * 4 + j];
                if (KEEP) store_matrices(place + BOX, y);
#ifdef SLOPE
                u32 x[4];
                load_matrices(x, place);
#endif
#if defined(GELU) || defined(SLOPE)
#pragma unroll
                for (int j = 0; j < 4; j++) {  // columns below 8, rows above and below; columns from 8 on
                    float low = low_of(y[j]), high = high_of(y[j]);
#ifdef SLOPE
                    low *= slope(low_of(x[j])), high *= slope(high_of(x[j]));
#else
                    low = gelu(low), high = gelu(high);
#endif
                    y[j] = pack(low, high);
                }
#endif
                store_matrices(place, y);
            }
            if (i == PER - 1) {
                async_fence();
                __syncwarp();
                if (lane == 0) barrier_arrive(own + DONE + set * 8);
#pragma unroll
                for (int j = 0; j < BN / 4 - WIDTH / 4; j++) z[j] = z[j + WIDTH / 4];  // the next piece comes to the front
            }
        };
        for (int tile = first(); tile < tiles; tile += every) {
            keep(d);
#pragma unroll 1
            for (int c = 0; c < PIECES; c++) {  // one body for all: NVRTC takes a second, not nine
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    begin(c + i);
                    if (turn.steps >= u32(steps)) slice(c, i);
                    end(c + i);
                }
#pragma unroll 1
                for (int j = PER; j < piece_steps; j++) begin(j), end(j);
            }
#pragma unroll 1
            for (int step = PIECES * piece_steps; step < steps; step++) begin(step), end(step);
            wgmma_wait<0>();
            keep(d);
            release();
#pragma unroll
            for (int g = 0; g < BN / 8; g++) {
                if (BIAS) {
                    const u32 two = load_word(biases + g * 16 + lane % 4 * 4);
                    d[g * 4] += low_of(two), d[g * 4 + 2] += low_of(two);
                    d[g * 4 + 1] += high_of(two), d[g * 4 + 3] += high_of(two);
                }
                z[g * 2] = pack(d[g * 4], d[g * 4 + 1]);
                z[g * 2 + 1] = pack(d[g * 4 + 2], d[g * 4 + 3]);
            }
        }
#pragma unroll 1
        for (int c = 0; c < PIECES; c++)
#pragma unroll
            for (int i = 0; i < PER; i++) slice(c, i);
    }
    __syncwarp();
    cluster_sync();  // the other block may still load for this one, and arrive at its barriers
}
