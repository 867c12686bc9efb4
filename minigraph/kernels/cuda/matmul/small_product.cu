// out = epilogue(A @ B) of floats for products of little work: TF32 on tensor cores, all tiles at the same time.
// A[m, k] and B[k, n] are stored as they are or transposed: A_BY_K, B_BY_K say whether k is the contiguous axis.
//   tile     BM x BN outputs a cluster of SPLIT blocks, which share k. A warp has pieces of 32 x 32; STAGES steps of
//            32 k are on their way to shared memory
//   reads    A once for each BN columns, B once for each BM rows, in chunks of 16 bytes; writes out once
//   order    of the SPLIT sums of a tile each block completes every SPLIT-th row of a lane; it is sent what the others
//            have of these rows, and adds in order of k
// Within 16 k, values meet in another order than they are stored in, the same for A and B: lane (g, q) = (lane / 4,
// lane % 4) then reads 16 bytes at once. For the same reason it has rows 4 g + i and columns 8 q + 0..7 of a piece.
// Chunks are twisted (XOR) so that the 8 lanes of an access hit all banks.
//   BIAS      + bias[n]                     RELU, MASK  max(., 0) and the bits of what is > 0, rows of `width` bytes
//   DRELU     0 where the mask's bit is 0   GELU, SLOPE expressions of X, the result, which aux keeps (KEEP), or of aux
//   COLUMNS   sums over k of B (1) or A (2), stored [k, .], by the blocks of the first row or column of tiles
typedef unsigned char Byte;
typedef Pack<float, 4> Quad;
typedef float C;
constexpr int THREADS = 32 * WARPS_M * WARPS_N, BK = 32;
static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4, "");
constexpr int PM = BM / WARPS_M / 32, PN = BN / WARPS_N / 32;  // pieces of a warp
constexpr int STAGE = 128 * (BM + BN), SENT = BM * BN / SPLIT * 4;  // bytes of a stage, of what goes to another block

// ROWS rows of A, or columns of B, and BK of k in shared memory, as 128 * ROWS bytes.
template <bool BY_K, int ROWS> struct Tile {
    static constexpr int ACROSS = BY_K ? 8 : ROWS / 4;                          // chunks in a stored row
    static constexpr int COPIES = ROWS * 8 / THREADS, DOWN = THREADS / ACROSS;  // of a thread, stored rows between them
    static_assert(ACROSS >= 8 && COPIES >= 1 && COPIES * THREADS == ROWS * 8 && (DOWN & (DOWN - 1)) == 0, "");

    const float* from;  // this thread's first chunk of the next step
    int to, lane_from;  // its place in a stage; where this lane reads fragments
    i64 pitch;
    int row, column, rows, columns;  // of the chunk, and where the matrix ends

    // From k0 on; the warp multiplies rows from `piece` on.
    __device__ __forceinline__ Tile(const float* matrix, i64 pitch, int first, int extent, int k0, int inner, int piece)
        : pitch(pitch) {
        row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS;
        to = place(row, column);
        row += BY_K ? first : k0, column = column * 4 + (BY_K ? k0 : first);
        rows = BY_K ? extent : inner, columns = BY_K ? inner : extent;
        from = matrix + row * pitch + column;
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
        lane_from = BY_K ? place(piece + 4 * g, q) : place(4 * q, piece / 4 + g);
    }
    static constexpr __device__ int twist(int row) { return BY_K ? row / 4 % 2 * 4 : row / 4 % 4 * 2; }
    static __device__ __forceinline__ int place(int row, int chunk) {
        return (row * ACROSS + (chunk ^ twist(row))) * 16;
    }
    // The next step of k into a stage. A thread's first row is less than DOWN, a power of two, so twists add up by XOR.
    __device__ __forceinline__ void load(Byte* stage) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const bool inside = row + i * DOWN < rows && column < columns;
            copy_or_clear(stage, (to ^ twist(i * DOWN) * 16) + i * THREADS * 16, from + i * DOWN * pitch, inside);
        }
        if (BY_K) from += BK, column += BK;
        else from += BK * pitch, row += BK;
    }
    // f[i][r]: row 4 g + i of the warp's n-th 32, word 4 q + r of the 16 of this half of a step.
    __device__ __forceinline__ void fragments(float (&f)[4][4], const Byte* stage, int n, int half) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Quad v = *(const Quad*)(BY_K ? stage + (lane_from ^ half * 64) + (32 * n + j) * 128
                                               : stage + lane_from + (16 * half + j) * (ACROSS * 16) + n * 128);
#pragma unroll
            for (int r = 0; r < 4; ++r) (BY_K ? f[j][r] : f[r][j]) = v.v[r];
        }
    }
};

// To tf32: the tensor core does not read the last 13 bits. What is added before is half of what these may be, on
// the average; a number without them stays, and so do NaN and infinity.
__device__ __forceinline__ u32 rounded(float x) { return __float_as_uint(x * 1.00033857f); }

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS) product(
    const float* __restrict__ a, const float* __restrict__ b, float* out, const float* __restrict__ bias, float* aux,
    Byte* mask, float* columns, int m, int n, int inner, i64 pitch_a, i64 pitch_b, i64 width, int tiles_m)
{
    extern __shared__ uint4 dynamic[];
    Byte *const memory = (Byte*)dynamic, *const inbox = memory + STAGES * STAGE;
    const int tile = blockIdx.x / SPLIT, rank = blockIdx.x % SPLIT;
    const int m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    const int all = (inner + BK - 1) / BK, begin = all * rank / SPLIT, steps = all * (rank + 1) / SPLIT - begin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int row0 = warp % WARPS_M * PM * 32, column0 = warp / WARPS_M * PN * 32;
    if (SPLIT > 1) cluster_arrive();  // nobody sends to a block that has not begun

    Tile<A_BY_K, BM> tile_a(a, pitch_a, m0, m, begin * BK, inner, row0);
    Tile<B_BY_K, BN> tile_b(b, pitch_b, n0, n, begin * BK, inner, column0);
    auto load = [&](int step) {
        if (step < steps) {
            Byte* const stage = memory + step % STAGES * STAGE;
            tile_a.load(stage);
            tile_b.load(stage + 128 * BM);
        }
        end_of_copies();
    };
#pragma unroll
    for (int i = 0; i < STAGES; ++i) load(i);

    // What the end needs comes meanwhile.
    Quad added[PN][2] = {};
    u32 set[PM][PN][4 / SPLIT] = {};
#pragma unroll
    for (int y = 0; y < PN; ++y) {
        const int c = n0 + column0 + 32 * y + 8 * q;
#pragma unroll
        for (int o = 0; o < 2; ++o)
            if (BIAS && c + 4 * o < n) added[y][o] = *(const Quad*)(bias + c + 4 * o);
#pragma unroll
        for (int x = 0; x < PM; ++x)
#pragma unroll
            for (int i = 0; i < 4 / SPLIT; ++i) {
                const int r = m0 + row0 + 32 * x + 4 * g + i * SPLIT + rank;
                if (DRELU && r < m && c < n) set[x][y][i] = mask[r * width + c / 8];
            }
    }

    float sum[PM][PN][2][4][4] = {};  // of 16 rows, of 8 columns
    constexpr int SUMMED = COLUMNS == 2 ? BM : BN, ACROSS = SUMMED / 4, ROWS = THREADS / ACROSS;
    const bool sums = COLUMNS && (COLUMNS == 1 ? m0 : n0) == 0;
    Quad total = {};
    float fa[2][PM][4][4], fb[2][PN][4][4];  // of halves of a step: the next is read before the products of this one
    auto read = [&](int step, int half) {
        const Byte* const stage = memory + step % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < PM; ++i) tile_a.fragments(fa[half][i], stage, i, half);
#pragma unroll
        for (int i = 0; i < PN; ++i) tile_b.fragments(fb[half][i], stage + 128 * BM, i, half);
    };
    wait_for_groups<STAGES - 1>();
    __syncthreads();
    read(0, 0);
    for (int step = 0; step < steps; ++step) {
        if (COLUMNS && sums) {
            const Byte* const stage = memory + step % STAGES * STAGE + (COLUMNS == 1 ? 128 * BM : 0);
#pragma unroll
            for (int i = 0; i < BK / ROWS; ++i) {
                const int k = threadIdx.x / ACROSS + i * ROWS, chunk = threadIdx.x % ACROSS;
                const Quad v = *(const Quad*)(stage + (COLUMNS == 1 ? tile_b.place(k, chunk) : tile_a.place(k, chunk)));
#pragma unroll
                for (int j = 0; j < 4; ++j) total.v[j] += v.v[j];
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 1) {  // all have read this stage
                wait_for_groups<STAGES - 2>();
                __syncthreads();
                load(step + STAGES);
            }
            read(step + half, 1 - half);
#pragma unroll
            for (int s = 0; s < 4; s += 2)
#pragma unroll
                for (int x = 0; x < PM; ++x)
#pragma unroll
                    for (int t = 0; t < 2; ++t) {
                        const float(&v)[4][4] = fa[half][x];
                        const u32 rows[4] = {rounded(v[2 * t][s]), rounded(v[2 * t + 1][s]), rounded(v[2 * t][s + 1]),
                                             rounded(v[2 * t + 1][s + 1])};
#pragma unroll
                        for (int y = 0; y < PN; ++y)
#pragma unroll
                            for (int j = 0; j < 4; ++j)
                                mma_k8(sum[x][y][t][j], rows, rounded(fb[half][y][j][s]),
                                       rounded(fb[half][y][j][s + 1]));
                    }
        }
    }

    // Row i of a lane is completed by block i % SPLIT. Where it gets what another has, for this warp and lane:
    auto inbox_of = [&](int block, int sender, int x, int y, int i, int o) {
        const int piece = ((warp * PM + x) * PN + y) * (4 / SPLIT) + i / SPLIT;
        return inbox + (sender - (sender > block)) * SENT + (piece * 2 + o) * 512 + lane * 16;
    };
    auto mine = [&](int x, int y, int i, int o) {
        const float(&s)[4][4] = sum[x][y][i / 2];
        const int e = i % 2 * 2 + o;
        return Quad{s[0][e], s[1][e], s[2][e], s[3][e]};
    };
    float* const parts = (float*)(inbox + (SPLIT - 1) * SENT);  // sums of columns: SPLIT rows, then ROWS
    if (SPLIT > 1) {
        cluster_wait();
#pragma unroll
        for (int x = 0; x < PM; ++x)
#pragma unroll
            for (int y = 0; y < PN; ++y)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (const int to = i % SPLIT; to != rank)
#pragma unroll
                        for (int o = 0; o < 2; ++o) send<SPLIT>(inbox_of(to, rank, x, y, i, o), to, mine(x, y, i, o));
    }
    if (COLUMNS && sums) {
        *(Quad*)(parts + SPLIT * SUMMED + threadIdx.x * 4) = total;
        __syncthreads();
        if (threadIdx.x < ACROSS) {
            for (int r = 1; r < ROWS; ++r) {
                const Quad v = *(const Quad*)(parts + SPLIT * SUMMED + (r * ACROSS + threadIdx.x) * 4);
#pragma unroll
                for (int j = 0; j < 4; ++j) total.v[j] += v.v[j];
            }
            send<SPLIT>(parts + rank * SUMMED + threadIdx.x * 4, 0, total);
        }
    }
    if (SPLIT > 1) cluster_arrive(), cluster_wait();
    else if (COLUMNS) __syncthreads();

#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i % SPLIT != rank) continue;
#pragma unroll
        for (int x = 0; x < PM; ++x)
#pragma unroll
            for (int y = 0; y < PN; ++y) {
                const int r = m0 + row0 + 32 * x + 4 * g + i, c = n0 + column0 + 32 * y + 8 * q;
                Quad v[2];  // 8 columns
#pragma unroll
                for (int o = 0; o < 2; ++o) {
                    const Quad own = mine(x, y, i, o);
#pragma unroll
                    for (int p = 0; p < SPLIT; ++p) {
                        const Quad next = p == rank ? own : *(const Quad*)inbox_of(rank, p, x, y, i, o);
#pragma unroll
                        for (int j = 0; j < 4; ++j) v[o].v[j] = p ? v[o].v[j] + next.v[j] : next.v[j];
                    }
                }
                u32 bits = 0;
#ifdef GELU
                Quad before[2];
#endif
#pragma unroll
                for (int o = 0; o < 2; ++o) {
                    const bool inside = r < m && c + 4 * o < n;
#ifdef SLOPE
                    Quad other = {};
                    if (inside) other = *(const Quad*)(aux + i64(r) * n + c + 4 * o);
#endif
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        float& z = v[o].v[j];
                        if (BIAS) z += added[y][o].v[j];
                        if (RELU) z = max_nan(z, 0.0f), bits |= u32(z > 0 && inside) << (4 * o + j);
                        if (DRELU) z = set[x][y][i / SPLIT] >> (4 * o + j) & 1 ? z : 0.0f;
#ifdef GELU
                        const float X = before[o].v[j] = z;
                        z = GELU;
#endif
#ifdef SLOPE
                        const float X = other.v[j];
                        z *= SLOPE;
#endif
                    }
                }
                if (MASK && r < m && c / 8 < width) mask[r * width + c / 8] = Byte(bits);
#pragma unroll
                for (int o = 0; o < 2; ++o) {
                    if (r >= m || c + 4 * o >= n) continue;
#ifdef GELU
                    if (KEEP) *(Quad*)(aux + i64(r) * n + c + 4 * o) = before[o];
#endif
                    *(Quad*)(out + i64(r) * n + c + 4 * o) = v[o];
                }
            }
    }
    if (COLUMNS && sums && rank == 0 && threadIdx.x < ACROSS) {
        const int c = (COLUMNS == 1 ? n0 : m0) + threadIdx.x * 4;
        Quad v = *(const Quad*)(parts + threadIdx.x * 4);
#pragma unroll
        for (int p = 1; p < SPLIT; ++p) {
            const Quad next = *(const Quad*)(parts + p * SUMMED + threadIdx.x * 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) v.v[j] += next.v[j];
        }
        if (c < (COLUMNS == 1 ? n : m)) *(Quad*)(columns + c) = v;
    }
}
