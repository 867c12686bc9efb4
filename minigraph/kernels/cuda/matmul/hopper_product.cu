// out[m, n] = epilogue(op(A) op(B)) of 16-bit floats on Hopper, summed in float32. A block walks over tiles of 128 x 256:
// a thread loads steps of 64 along the sum by the copy engine, two warpgroups multiply 64 rows each (wgmma m64n256k16).
// A finished tile is rounded to 16 bits, which halves its registers, and what is done to it, and its way out through
// shared memory, happens in slices during the first steps of the next tile, while the tensor cores work. Two blocks have
// tiles one below the other and load half of B each for both. Tiles go along bands of GROUP pairs, so that what runs at
// one time reads few rows and columns. Least bytes: A, B and out once, and x.
//
// Defined before: T and its name PTX_T; A_BY_K, B_BY_K (whether k is the contiguous axis of A[m, k], B[k, n] in memory);
// MULTIPLY, the wgmma; SLICES, 8 or 16, one for every `spread` steps of not fewer; STAGES of the ring; SLOTS, pieces of a
// warpgroup's result on their way; GROUP; and what is done, in this order: BIAS + bias[n]; GELU an expression of X (KEEP: x
// gets X); SLOPE times an expression of X, which x holds. TANH: these are those of the tanh form. SUMS: sums[m / 16, n]
// get the sums of the result's columns over 16 rows each, before it is rounded.
constexpr int BM = 128, BN = 256, BK = 64, PAIR = 2;
constexpr u32 A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr u32 BOX = 64 * 128;                      // bytes of 64 swizzled rows
constexpr int WIDTH = 64, PIECES = BN / WIDTH;     // columns of a piece, of 64 rows
constexpr int PER = SLICES / PIECES, PARTS = 4 / PER;  // slices of a piece, parts of 16 columns of a slice
constexpr int FEW = 40, MANY = 232;                // registers of a thread that loads, that multiplies
constexpr int NOWHERE = 1 << 30;                   // a row outside of everything
static_assert((SLICES == 8 || SLICES == 16) && (SLOTS == 2 || SLOTS == 4), "");

// A stage, and the parity of its phase: how often the ring went around.
struct Turn {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
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

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1) product(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap out_map, const __grid_constant__ TensorMap x_map, const T* bias, int n, int steps,
    int spread, int tiles_m, int tiles_n, float* sums, int m) {
    extern __shared__ u8 memory[];
    const u32 stages = (shared_address(memory) + 1023) & ~1023u;  // the same in both blocks
    const u32 slots = stages + STAGES * STAGE_BYTES, biases = slots + 2 * SLOTS * BOX;
    const u32 full = biases + 2 * BN * 2, empty = full + STAGES * 8, x_full = empty + STAGES * 8;
    const int rank = blockIdx.x % PAIR, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Walk walk{tiles_m, tiles_n};
    const int first = blockIdx.x / PAIR, every = gridDim.x / PAIR, tiles = tiles_m * tiles_n;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 8 * PAIR);  // each warp that multiplies, of both blocks
        }
        for (int s = 0; s < 2 * SLOTS; s++) barrier_init(x_full + s * 8, 1);
        barriers_ready();
    }
    cluster_sync();

    if (warp < 4) {
        fewer_registers<FEW>();
        if (threadIdx.x == 0) {
            Turn turn;
            for (int tile = first; tile < tiles; tile += every) {
                const int2 at = walk.place(tile);
                const int row = at.x + rank * BM, column = at.y;
                for (int k = 0; k < steps * BK; k += BK, turn.next()) {
                    const u32 a = stages + turn.stage * STAGE_BYTES, b = a + A_BYTES, here = full + turn.stage * 8;
                    barrier_wait(empty + turn.stage * 8, turn.parity ^ 1);
                    barrier_expect(here, STAGE_BYTES);
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
        const int part = __shfl_sync(~0u, warp / 4 - 1, 0), thread = threadIdx.x % 128, own_row = warp % 4 * 16;
        const u32 own_slots = slots + part * SLOTS * BOX, own_bias = biases + part * BN * 2, own_x = x_full + part * SLOTS * 8;
        const u32 stages_here = stages & 0x3ffff;  // descriptors take no more bits; in a cluster there are more
        auto together = [&] { asm volatile("bar.sync %0, 128;" ::"r"(part + 1) : "memory"); };
        // This lane's row of 8 x 8 matrices in a piece: matrices above and below, then those of the next 8 columns.
        const int matrix_row = own_row + lane % 16;
        float d[BN / 2];
        Turn turn;
        int before = 0, slot = 0;       // the stage that was multiplied last; where the next piece goes
        u32 z[BN / 4] = {};             // the last tile, rounded; as accumulators lie
        int row = NOWHERE, column = 0;  // its place
        u32 x_parity = 0, piece = 0, kept = 0;

        auto release = [&] {
            if (lane < PAIR) barrier_arrive_at(empty + before * 8, lane);
        };
        auto begin = [&](int step) {
            barrier_wait(full + turn.stage * 8, turn.parity);
            const u32 stage = stages_here + turn.stage * STAGE_BYTES;
            const u64 a = descriptor((stage + part * BOX) >> 4, BOX, 1024), b = descriptor((stage + A_BYTES) >> 4, BOX, 1024);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BK / 16; i++)  // 16 of k are 32 bytes of a row, or 16 rows
                MULTIPLY(d, a + i * (A_BY_K ? 2 : 128), b + i * (B_BY_K ? 2 : 128), step > 0 || i > 0);
            wgmma_commit();
        };
        auto end = [&](int step) {
            wgmma_wait<1>();
            if (step > 0) release();
            before = turn.stage;
            turn.next();
        };
        auto load_x = [&](int c) {
            barrier_expect(own_x + c % SLOTS * 8, BOX);
            load_box(own_slots + c % SLOTS * BOX, x_map, own_x + c % SLOTS * 8, column + c * WIDTH, row, 0, 0);
        };
        auto slice = [&](int c, int i) {  // slice i of piece c: the compiler knows i
            if (i == 0) {
#ifdef SLOPE
                if (SLOTS < PIECES && thread == 0 && c > 0 && c - 1 + SLOTS < PIECES) bulk_read(), load_x(c - 1 + SLOTS);
                __syncwarp();
                piece = own_slots + c % SLOTS * BOX;
                barrier_wait(own_x + c % SLOTS * 8, x_parity);
                if (c % SLOTS == SLOTS - 1) x_parity ^= 1;
#else
                if (thread == 0) bulk_read<SLOTS - 1 - KEEP>();
                together();
                piece = own_slots + slot * BOX;
                if (++slot == SLOTS) slot = 0;
                if (KEEP) {
                    kept = own_slots + slot * BOX;
                    if (++slot == SLOTS) slot = 0;
                }
#endif
            }
#pragma unroll
            for (int h = 0; h < PARTS; h++) {
                const int of16 = i * PARTS + h, chunk = of16 * 2 + lane / 16;  // of 16 columns; of 8, this lane's
                const u32 place = matrix_row * 128 + ((chunk ^ matrix_row % 8) << 4);
                u32 y[4];
                float columns[2][2] = {};  // sums over this lane's rows
#pragma unroll
                for (int j = 0; j < 4; j++) y[j] = z[of16 * 4 + j];
                if (KEEP) store_matrices(kept + place, y);
#ifdef SLOPE
                u32 x[4];
                load_matrices(x, piece + place);
#endif
#if defined(GELU) || defined(SLOPE)
#pragma unroll
                for (int j = 0; j < 4; j++) {  // columns below 8, rows above and below; columns from 8 on
                    float low = low_of(y[j]), high = high_of(y[j]);
#ifdef SLOPE
                    float p, q;
                    slopes(low_of(x[j]), high_of(x[j]), p, q);
                    low *= p, high *= q;
                    if (SUMS && row + own_row + lane / 4 + j % 2 * 8 < m) columns[j / 2][0] += low, columns[j / 2][1] += high;
#else
                    activate(low, high);
#endif
                    y[j] = pack(low, high);
                }
#endif
                store_matrices(piece + place, y);
                if (SUMS) {
                    const float sum = over_rows(columns);
                    const int at = column + c * WIDTH + of16 * 16 + lane / 16 * 8 + lane % 4 * 2 + lane / 8 % 2;
                    if (lane / 4 % 2 == 0 && row + own_row < m && at < n) sums[i64(row + own_row) / 16 * n + at] = sum;
                }
            }
            if (i == PER - 1) {
                async_fence();
                together();
                if (thread == 0) {
                    if (KEEP) store_box(x_map, kept, column + c * WIDTH, row);
                    store_box(out_map, piece, column + c * WIDTH, row);
                }
                __syncwarp();
#pragma unroll
                for (int j = 0; j < BN / 4 - WIDTH / 4; j++) z[j] = z[j + WIDTH / 4];  // the next piece comes to the front
            }
        };
#ifdef SLOPE
        if (thread == 0)
            for (int c = 0; c < SLOTS; c++) load_x(c);
        __syncwarp();
#endif
        for (int tile = first; tile < tiles; tile += every) {
            const int2 at = walk.place(tile);
            keep(d);
#pragma unroll 1
            for (int c = 0; c < PIECES; c++)  // one body for all: NVRTC takes a second, not nine
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    begin(c + i), slice(c, i), end(c + i);
#pragma unroll 1
                    for (int j = 1; j < spread; j++) begin(j), end(j);
                }
            row = at.x + rank * BM + part * 64, column = at.y;
#ifdef SLOPE
            if (thread == 0) {
                bulk_read();
                for (int c = 0; c < SLOTS; c++) load_x(c);
            }
            __syncwarp();
#endif
#if BIAS
            u32 pair = 0;
            if (column + thread * 2 < n) pair = *reinterpret_cast<const u32*>(bias + column + thread * 2);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(own_bias + thread * 4), "r"(pair) : "memory");
#endif
#pragma unroll 1
            for (int step = SLICES * spread; step < steps; step++) begin(step), end(step);
            wgmma_wait<0>();
            keep(d);
            release();
            if (BIAS) together();
#pragma unroll
            for (int g = 0; g < BN / 8; g++) {
                if (BIAS) {
                    const u32 two = load_word(own_bias + g * 16 + lane % 4 * 4);
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
        if (thread == 0) bulk_read();
    }
    __syncwarp();
    cluster_sync();  // the other block may still load for this one, and arrive at its barriers
}
