// out = epilogue(A @ B) of floats on Hopper's tensor cores (wgmma), TF32: the copy engine rounds what it loads.
// A[m, k] and B[k, n] are stored as they are or transposed: A_BY_K, B_BY_K say whether k is the contiguous axis.
//   tile     ROWS x 256 outputs of a block: its transpose is summed, B^T A^T, in two warpgroups of 128 columns, because
//            wgmma takes its first operand from registers in any order, and so that a thread gets 4 neighbours of a row
//   B        stored [n, k]: from shared memory, rows permuted on their way so that a thread's 4 columns are neighbours.
//            Stored [k, n]: 16 bytes of a thread are its 4 columns, as fragments in registers
//   A        wgmma wants k contiguous. Stored [k, m]: three warps turn each box of 32 x 32 around where it lies
//   PARTS    gridDim.z blocks share a sum; each writes its part of it, out[gridDim.z, m, n], columns[gridDim.z, n]
//   memory   reads A once for each 256 columns, B once for each ROWS rows; writes out once, or each of its parts
//   HELD     ADD: + what out holds, or times SLOPE, an expression of X that aux holds: loaded into the stages that the
//            last steps leave free, so that it is there when the sums are
//   BIAS     + bias[n]                     RELU, MASK  max(., 0) and the bits of what is > 0, rows of `width` bytes
//   DRELU    0 where the mask's bit is 0   GELU        an expression of X, the result, which aux keeps (KEEP)
//   COLUMNS  sums over k of B, stored [k, n], by the blocks of the first rows
typedef unsigned char Byte;
typedef Pack<float, 4> Quad;
typedef float C;
constexpr int BK = 32, WIDE = 256, ACROSS = ROWS / 8;  // steps of k; columns of a block; groups of 8 rows
constexpr u32 B_BYTES = 128 * WIDE, HELD_BYTES = 128 * ROWS, STAGE = B_BYTES + HELD_BYTES;
constexpr u32 FULL = STAGES * STAGE, TURNED = FULL + 8 * STAGES, EMPTY = TURNED + 8 * STAGES;  // barriers, after them
static_assert(ROWS % 32 == 0 && ROWS <= 192 && STAGES >= 4 && !(COLUMNS && B_BY_K) && !(HELD && PARTS), "");

// A stage, and the parity of its phase: how often the ring went around.
struct Turn {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// To tf32, as in small_product.cu; used where B is loaded exactly, for its sums.
__device__ __forceinline__ u32 rounded(u32 x) { return __float_as_uint(__uint_as_float(x) * 1.00033857f); }

// A box of 32 x 32 numbers with swizzled rows of 128 bytes becomes its transpose, by a warp: blocks of 4 x 4 change
// places with their mirror images, chosen so that the 8 lanes of an access hit all banks.
struct Transposer {
    u32 from, to;  // this lane's block, in the box

    // The block of rows 4 k to 4 k + 3 and chunk i, and the block of rows 4 i and chunk k.
    __device__ __forceinline__ Transposer(int lane) {
        const int i = lane % 8, k = i ^ lane / 8;
        from = k * 512 + ((i ^ k % 2 * 4) << 4), to = i * 512 + ((k ^ i % 2 * 4) << 4);
    }
    __device__ __forceinline__ void operator()(u32 box) const {
#pragma unroll 1  // there are few registers
        for (int half = 0; half < 2; half++) {  // the other one has k ^ 4
            u32 x[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++) load_quad(x[r], ((box + (from ^ half * 2048)) ^ r * 16) + r * 128);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < 4; r++)
                store_quad(((box + to) ^ half * 64 ^ r * 16) + r * 128, x[0][r], x[1][r], x[2][r], x[3][r]);
        }
    }
};

// This block's steps of BK along k; the first parts have one more. Each role of warps asks for itself: what several
// hold on to would be kept in memory, for the sake of those with few registers.
struct Steps {
    int part = 0, begin = 0, count;
    __device__ __forceinline__ Steps(int inner) {
        count = (inner + BK - 1) / BK;
#if PARTS
        int parts;
        asm volatile("mov.u32 %0, %%ctaid.z;\n mov.u32 %1, %%nctaid.z;" : "=r"(part), "=r"(parts));
        const int least = count / parts, more = count % parts;
        begin = part * least + min(part, more), count = least + (part < more);
#endif
    }
};

// Four numbers that no kernel writes meanwhile: such loads pass stores.
__device__ __forceinline__ Quad load_unchanged(const float* from) {
    Quad x;
    asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3]) : "l"(from));
    return x;
}

// What a lane of a warp that multiplies has of 32 columns and of every 8 rows.
struct Place {
    int q;      // rows 2 q and 2 q + 1 of 8
    int p;      // columns 4 p to 4 p + 3: banks differ within what is read at once
    int other;  // whether d[0] are the upper two of them
    __device__ __forceinline__ Place(int lane) {
        const int g = lane / 4;
        q = lane % 4, p = B_BY_K ? g : g % 2 * 4 + g / 2, other = B_BY_K ? 0 : p % 2;
    }
};

// Lane p (of 8) has in nibble i what lane i had in nibble p.
__device__ __forceinline__ u32 exchanged(u32 word, int p) {
    constexpr u32 low[3] = {0x0f0f0f0fu, 0x00ff00ffu, 0x0000ffffu};
    constexpr int partner[3] = {B_BY_K ? 4 : 8, B_BY_K ? 8 : 16, B_BY_K ? 16 : 4};  // whose bit of p differs
#pragma unroll
    for (int b = 0; b < 3; b++) {
        const bool upper = p >> b & 1;
        const u32 got = __shfl_xor_sync(~0u, upper ? word & low[b] : word >> (4 << b) & low[b], partner[b]);
        word = upper ? (word & ~low[b]) | got : (word & low[b]) | got << (4 << b);
    }
    return word;
}

extern "C" __global__ void __launch_bounds__(384, 1) product(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
#if HELD
    const __grid_constant__ TensorMap held_map,
#endif
    float* out,
    const float* __restrict__ bias, float* aux, Byte* mask, float* columns, int m, int n, int inner, i64 width)
{
    extern __shared__ Byte raw[];
    const u32 memory = (shared_address(raw) + 1023) & ~1023u;
    const int n0 = blockIdx.x * WIDE, m0 = blockIdx.y * ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    auto load = [&](int stage, int k) {
        const u32 b_box = memory + stage * STAGE, a_box = b_box + B_BYTES, barrier = memory + FULL + 8 * stage;
        barrier_expect(barrier, STAGE);
        if (A_BY_K) load_box(a_box, a_map, barrier, k, m0, 0, 0);
        else
#pragma unroll 1
            for (int i = 0; i < ROWS; i += 32) load_box(a_box + i * 128, a_map, barrier, m0 + i, k, 0, 0);
#pragma unroll 1
        for (int i = 0; i < (B_BY_K ? 4 : 8); i++)
            if (B_BY_K) load_box(b_box + i * 8192, b_map, barrier, k, 0, i % 2 * 2, n0 / 32 + i / 2 * 4);
            else load_box(b_box + i * 4096, b_map, barrier, n0 + 32 * i, k, 0, 0);
    };
    if (threadIdx.x == 256) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(memory + FULL + 8 * i, 1);
            barrier_init(memory + TURNED + 8 * i, 3);  // warps
            barrier_init(memory + EMPTY + 8 * i, 8);   // warps that multiply
        }
        barriers_ready();
        const Steps steps(inner);
#pragma unroll 1
        for (int i = 0; i < min(STAGES, steps.count); i++) load(i, (steps.begin + i) * BK);
    }
    __syncthreads();

    if (warp >= 8) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 256) {
            const Steps steps(inner);
            Turn turn;
            for (int i = STAGES; i < steps.count; i++, turn.next()) {
                barrier_wait(memory + EMPTY + 8 * turn.stage, turn.parity);
                load(turn.stage, (steps.begin + i) * BK);
            }
#if HELD  // what the epilogue reads besides, 64 columns in each of the next stages
#pragma unroll 1
            for (int i = 0; i < 4; i++) {
                int stage = steps.count + i;
                if (stage >= STAGES) {
                    stage = turn.stage;
                    barrier_wait(memory + EMPTY + 8 * stage, turn.parity);
                    turn.next();
                }
                const u32 to = memory + stage * STAGE, barrier = memory + FULL + 8 * stage;
                barrier_expect(barrier, 2 * HELD_BYTES);
                load_box(to, held_map, barrier, n0 + 64 * i, m0, 0, 0);
                load_box(to + HELD_BYTES, held_map, barrier, n0 + 64 * i + 32, m0, 0, 0);
            }
#endif
        } else if (!A_BY_K && warp > 8) {
            const Transposer transpose(lane);
            Turn turn;
            for (int left = Steps(inner).count; left > 0; left--, turn.next()) {
                barrier_wait(memory + FULL + 8 * turn.stage, turn.parity);
                const u32 boxes = memory + turn.stage * STAGE + B_BYTES;
#pragma unroll 1
                for (int i = warp - 9; i < ROWS / 32; i += 3) transpose(boxes + i * 4096);
                async_fence();
                __syncwarp();
                if (lane == 0) barrier_arrive(memory + TURNED + 8 * turn.stage);
            }
        }
    } else {
        more_registers<REGISTERS>();
        const Steps steps(inner);
        float d[2][4 * ACROSS];  // of every 8 rows: rows 2 q and 2 q + 1 of a first column, then of a second
#pragma unroll
        for (int i = 0; i < 4 * ACROSS; i++) d[0][i] = d[1][i] = 0;
        auto wait_for = [&](Turn t) {
            barrier_wait(memory + FULL + 8 * t.stage, t.parity);
            if (!A_BY_K) barrier_wait(memory + TURNED + 8 * t.stage, t.parity);
        };
        auto release = [&](int stage) {
            if (lane == 0) barrier_arrive(memory + EMPTY + 8 * stage);
        };
        Turn turn;
        int before = -1;  // the stage that was multiplied before this one
#if B_BY_K
        for (int left = steps.count; left > 0; left--, turn.next()) {
            const u32 stage = memory + turn.stage * STAGE, own = stage + warp / 4 * (B_BYTES / 2);
            const u64 a = descriptor((stage + B_BYTES) >> 4, 16, 1024);
            const u64 b0 = descriptor(own >> 4, 16, 1024), b1 = descriptor((own + B_BYTES / 4) >> 4, 16, 1024);
            wait_for(turn);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++) {  // 8 of k are 32 bytes
                wgmma_ss(d[0], b0 + 2 * i, a + 2 * i);
                wgmma_ss(d[1], b1 + 2 * i, a + 2 * i);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (before >= 0) release(before);
            before = turn.stage;
        }
#else
        const bool sums = COLUMNS && m0 == 0;
        float total[2][2] = {};
        u32 f[2][4];  // 8 of k for either half of d: one is read while the other is multiplied
        const Place at(lane);
        const u32 own = memory + warp * 4096 + at.q * 128 + ((at.p ^ at.q) << 4) + at.other * 8;
        auto read = [&](int stage, int i, int t) {
            const u32 first = own + stage * STAGE + i * 1024;  // row q of k; row q + 4 is swizzled by 4 chunks more
            u32(&x)[4] = f[t];
            load_two(x[0], x[1], first ^ 8 * t);
            load_two(x[2], x[3], (first ^ (64 + 8 * t)) + 512);
            if (COLUMNS) {
                if (sums)
#pragma unroll
                    for (int j = 0; j < 2; j++) total[t][j] += __uint_as_float(x[j]) + __uint_as_float(x[2 + j]);
#pragma unroll
                for (int j = 0; j < 4; j++) x[j] = rounded(x[j]);
            }
        };
        wait_for(turn);
        read(0, 0, 0);
        for (int left = steps.count; left > 0; left--) {
            const u64 a = descriptor((memory + turn.stage * STAGE + B_BYTES) >> 4, 16, 1024);
            const int now = turn.stage;
            turn.next();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma_fence();
                wgmma_rs(d[0], f[0], a + 2 * i);
                wgmma_commit();
                wgmma_wait<1>();
                keep(f[1]);
                if (i == 0 && before >= 0) release(before);
                read(now, i, 1);
                wgmma_fence();
                wgmma_rs(d[1], f[1], a + 2 * i);
                wgmma_commit();
                if (i == 3 && left > 1) wait_for(turn);
                wgmma_wait<1>();
                keep(f[0]);
                if (i < 3) read(now, i + 1, 0);
                else if (left > 1) read(turn.stage, 0, 0);
            }
            before = now;
        }
#endif
        int now;  // asked anew, so that no register keeps it meanwhile
        asm volatile("mov.u32 %0, %%laneid;" : "=r"(now));
        const auto [q, p, other] = Place(now);
        const int c = n0 + 32 * warp + 4 * p, byte = (n0 + 32 * warp) / 8;  // of a row of the mask: 32 columns
        const int mask_row = m0 + p / 2 * 8 + 2 * q + p % 2;                // and every 32nd
        Quad added = {};
        if (BIAS && c < n) added = *(const Quad*)(bias + c);
        u32 set[ACROSS / 4];
        if (DRELU)
#pragma unroll
            for (int i = 0; i < ACROSS / 4; i++) {
                const int r = mask_row + 32 * i;
                set[i] = r < m && byte < width ? *(const u32*)(mask + r * width + byte) : 0;
            }
        wgmma_wait<0>();
        keep(d[0]);
        keep(d[1]);
#if HELD  // 32 columns of each warp
        release(before);
        const int there = Steps(inner).count + warp / 2;  // of the ring
        barrier_wait(memory + FULL + 8 * (there % STAGES), there / STAGES % 2);
        const u32 held = memory + there % STAGES * STAGE + warp % 2 * HELD_BYTES + q * 256 + ((p ^ 2 * q) << 4);
#pragma unroll
        for (int at = 0; at < 4 * ACROSS; at++) {
            if (at & 2) continue;
            const int j = at / 4, e = at % 4;
            u32 x[4];
            load_quad(x, (held ^ e * 16) + j * 1024 + e * 128);
#pragma unroll
            for (int o = 0; o < 4; o++) {
                float& z = d[o / 2][at + o % 2 * 2];
                const float X = __uint_as_float(other ? x[o ^ 2] : x[o]);
#ifdef SLOPE
                z *= SLOPE;
#else
                z += X;
#endif
            }
        }
#endif
#if !B_BY_K
        keep(f[0]), keep(f[1]);
        if (COLUMNS && sums) {
#pragma unroll
            for (int t = 0; t < 2; t++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    total[t][j] += __shfl_xor_sync(~0u, total[t][j], 1);
                    total[t][j] += __shfl_xor_sync(~0u, total[t][j], 2);
                }
                float* const to = columns + i64(steps.part) * n + c + 2 * (t ^ other);
                if (q == 0 && c < n) to[0] = total[t][0], to[1] = total[t][1];
            }
        }
#endif
        const i64 place = (i64(steps.part) * m + m0 + 2 * q) * n + c;
        float *to = out + place, *beside = aux + place;
        const int rows = c < n ? m - m0 - 2 * q : 0;  // that are left from this lane's first one on
#pragma unroll
        for (int some = 0; some < ACROSS / 4; some++) {  // 32 rows
            u32 bits = 0;
            if (DRELU) bits = exchanged(set[some], p);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int j = 4 * some + i / 2, e = i % 2, at = 4 * j + e;
                const bool inside = 8 * j + e < rows;
                Quad v = other ? Quad{d[1][at], d[1][at + 2], d[0][at], d[0][at + 2]}
                               : Quad{d[0][at], d[0][at + 2], d[1][at], d[1][at + 2]};
                Quad kept = {};
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    float& z = v.v[o];
                    const u32 bit = 1u << (4 * i + o);
                    if (BIAS) z += added.v[o];
                    if (RELU) z = max_nan(z, 0.0f);
                    if (MASK && z > 0) bits |= bit;
                    if (DRELU) z = bits & bit ? z : 0.0f;
#ifdef GELU
                    const float X = kept.v[o] = z;
                    z = GELU;
#endif
                }
                if (KEEP && inside) *(Quad*)(beside + e * n) = kept;
                if (inside) *(Quad*)(to + e * n) = v;
                if (e == 1) to += 8 * i64(n), beside += 8 * i64(n);
            }
            if (MASK) {
                const u32 word = exchanged(c < n ? bits : 0, p);
                const int r = mask_row + 32 * some;
                if (r < m && byte < width) *(u32*)(mask + r * width + byte) = word;
            }
        }
    }
}

#if PARTS
// out[size] and columns[n] are the sums of their parts, in one order; a thread takes 4 numbers.
extern "C" __global__ void __launch_bounds__(256) join(
    const float* __restrict__ parts, const float* __restrict__ part_columns, float* out, float* columns, i64 size,
    int n, int count)
{
    i64 at = (i64(blockIdx.x) * 256 + threadIdx.x) * 4;
    const bool beside = COLUMNS && at >= size;
    if (beside) at -= size;
    const i64 pitch = beside ? n : size;
    if (at >= pitch) return;
    const float* const from = (beside ? part_columns : parts) + at;
    Quad sum = load_unchanged(from);
    for (int i = 1; i < count; i += 4) {
        Quad x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < count) x[j] = load_unchanged(from + (i + j) * pitch);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < count)
#pragma unroll
                for (int o = 0; o < 4; o++) sum.v[o] += x[j].v[o];
    }
    *(Quad*)((beside ? columns : out) + at) = sum;
}
#endif
