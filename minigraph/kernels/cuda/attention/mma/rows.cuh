// What attention by mma.sync does with the rows that a warp owns, 16 MT of them, and with the columns that they meet. Behind
// attention/inputs.cuh and tiles.cuh; BM rows of a block, BN columns of a tile.

constexpr int BM = 16 * MT * WARPS;
#if CLUSTER > 1
#define OF_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#else
#define OF_CLUSTER
#endif

__device__ __forceinline__ float over_quad_max(float x) {
    x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float over_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// The columns that rows meet: all of them in [begin, end), every one in [full_begin, full_end).
struct Reach {
    int begin, end, full_begin, full_end;
};
// Of `count` rows whose intervals lie in shared memory; rows without columns say nothing about `begin` and `end`.
__device__ __forceinline__ Reach reach_of(const Interval* rows, int count) {
    Reach x = {1 << 30, 0, 0, 1 << 30};
    for (int r = threadIdx.x % 32; r < count; r += 32) {
        const Interval y = rows[r];
        if (y.lo < y.hi) x.begin = min(x.begin, y.lo), x.end = max(x.end, y.hi);
        x.full_begin = max(x.full_begin, y.lo);
        x.full_end = min(x.full_end, y.hi);
    }
#pragma unroll
    for (int l = 16; l > 0; l >>= 1) {
        x.begin = min(x.begin, __shfl_xor_sync(~0u, x.begin, l));
        x.end = max(x.end, __shfl_xor_sync(~0u, x.end, l));
        x.full_begin = max(x.full_begin, __shfl_xor_sync(~0u, x.full_begin, l));
        x.full_end = min(x.full_end, __shfl_xor_sync(~0u, x.full_end, l));
    }
    return x;
}

// A table of blocks (BLOCK > 0): tiles of columns begin at multiples of BN, so that where blocks are made of whole tiles a
// tile lies within one, and is skipped or seen as a whole.
constexpr bool WHOLE_TILES = BLOCK % BM == 0 && BLOCK % BN == 0;  // so also without a table
__device__ __forceinline__ Reach on_tiles(Reach x) {
    if (BLOCK) x.begin -= x.begin % BN;
    return x;
}
// Which of two stages of shared memory a step has; where steps are skipped, the other one of the step before it.
struct Stage {
    int place = 0;
    __device__ __forceinline__ int of(int step) const { return BLOCK ? place : step % 2; }
    __device__ __forceinline__ int after(int next) const { return BLOCK ? place ^ 1 : next % 2; }
    __device__ __forceinline__ void turn() { place ^= 1; }
};

// Products of the own rows with rows 32 j to 32 j + 31 of `tile`, into the 8-column tiles from `first` on; FILLED of their
// columns are filled, the others 0.
template <int WIDTH, int FILLED, int N, int HELD>
__device__ __forceinline__ void scores(
    float (&s)[MT][N][4], int first, Left (&held)[HELD][MT], const Byte* own, int own_row, const Byte* tile, int j)
{
    Sums found[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        found[i].clear();
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[i][first + t][e] = 0;
    }
#pragma unroll(AT_ONCE == 1 ? 1 : WIDTH)  // wide heads have no registers for pieces beside each other
    for (int c = 0; c < FILLED / 16; c += AT_ONCE) {
        multiply(found, min(AT_ONCE, FILLED / 16 - c), [&](int k, Left (&left)[MT], Right& right) {
            right.load_rows<WIDTH>(tile, 32 * j, c + k);
#pragma unroll
            for (int i = 0; i < MT; ++i)
                if (OWN_HELD) left[i] = held[OWN_HELD ? c + k : 0][i];
                else left[i].load<WIDTH>(own, own_row + 16 * i, c + k);
        });
        if (!SINGLE && c + AT_ONCE < FILLED / 16) continue;
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int t = 0; t < 4; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float& y = s[i][first + t][e];
                    y = SINGLE ? y + found[i].v[t][e] : found[i].v[t][e];
                }
            if (SINGLE) found[i].clear();
        }
    }
}
template <int WIDTH, int HELD>
__device__ __forceinline__ void hold(Left (&held)[HELD][MT], const Byte* own, int own_row) {
    if (!OWN_HELD) return;
#pragma unroll
    for (int k = 0; k < WIDTH / 16; ++k)
#pragma unroll
        for (int i = 0; i < MT; ++i) held[OWN_HELD ? k : 0][i].template load<WIDTH>(own, own_row + 16 * i, k);
}
template <int WIDTH> __device__ __forceinline__ void clear(float (&sum)[MT][WIDTH][4]) {
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][c][e] = 0;
}
// The sums of the own rows times their factors, those below `valid`, to rows of memory.
template <int WIDTH, class U>
__device__ __forceinline__ void store_sums(
    const float (&sum)[MT][WIDTH / 8][4], const float (&factor)[MT][2], U* to, i64 step, int own_row, int valid, int width)
{
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = own_row + 16 * i + threadIdx.x % 32 / 4 + 8 * half;
            if (row >= valid) continue;
#pragma unroll
            for (int c = 0; c < WIDTH / 32; ++c) {
                float x[4][2];
#pragma unroll
                for (int t = 0; t < 4; ++t)
#pragma unroll
                    for (int e = 0; e < 2; ++e) x[t][e] = sum[i][4 * c + t][2 * half + e] * factor[i][half];
                store_results(to + row * step + 32 * c, x, width - 32 * c);
            }
        }
}

// Which part of the columns a block goes through: those of a tile of rows are shared by a cluster, or along blockIdx.y.
__device__ __forceinline__ int own_split() { return CLUSTER > 1 ? blockIdx.x % CLUSTER : blockIdx.y; }
// The columns that a block's rows meet, in tiles of BN, `times` over: this split goes through [first, last) of them.
struct Steps {
    int count, first, last;
};
__device__ __forceinline__ Steps steps_of(const Reach& all, int times, i64 splits) {
    const int count = all.begin < all.end ? (all.end - all.begin + BN - 1) / BN : 0;
    const i64 whole = i64(count) * times, parts = CLUSTER > 1 ? CLUSTER : splits;
    return {count, int(whole * own_split() / parts), int(whole * (own_split() + 1) / parts)};
}

// A cluster's sums. Each block completes SHARE of the rows from what all blocks put into its inbox: for each of them
// SHARE rows of WIDTH numbers, in the order of store_results, and 16 bytes beside each row. Nothing else lies in an inbox,
// so a block may send as soon as all blocks of the cluster have begun.
constexpr int SHARE = (BM + CLUSTER - 1) / CLUSTER;
template <int WIDTH> __device__ __forceinline__ Byte* inbox_row(Byte* inbox, int sender, int row) {
    return inbox + (sender * SHARE + row) * (4 * WIDTH + 16);
}
template <int WIDTH> constexpr int INBOX = CLUSTER * SHARE * (4 * WIDTH + 16);
// The sums of the own rows, to the blocks that complete them.
template <int WIDTH>
__device__ __forceinline__ void send_sums(const float (&sum)[MT][WIDTH / 8][4], Byte* inbox, int own_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = own_row + 16 * i + lane / 4 + 8 * half;
            Byte* const to = inbox_row<WIDTH>(inbox, own_split(), row % SHARE);
#pragma unroll
            for (int c = 0; c < WIDTH / 32; ++c)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    Pack<float, 4> sent;
#pragma unroll
                    for (int t = 0; t < 4; ++t) sent.v[t] = sum[i][4 * c + t][2 * half + e];
                    send<CLUSTER>(to + (32 * c + 8 * (lane % 4) + 4 * e) * 4, row / SHARE, sent);
                }
        }
}
// The rows that this block completes: the sums of all blocks, times weights that weigh(row, place in the inbox, weights)
// finds, in order.
template <int WIDTH, class U, class Weigh>
__device__ __forceinline__ void store_joined(Byte* inbox, U* to, i64 step, int valid, int width, const Weigh& weigh) {
    const int rank = own_split();
    for (int r = threadIdx.x / 4; r < SHARE; r += THREADS / 4) {
        const int row = rank * SHARE + r;
        if (row >= min(BM, valid)) break;
        float weights[CLUSTER];
        weigh(row, r, weights);
#pragma unroll
        for (int c = 0; c < WIDTH / 32; ++c) {
            float x[4][2] = {};
#pragma unroll
            for (int s = 0; s < CLUSTER; ++s)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int column = 32 * c + 8 * (threadIdx.x % 4) + 4 * e;
                    const Pack<float, 4> y = *(const Pack<float, 4>*)(inbox_row<WIDTH>(inbox, s, r) + 4 * column);
#pragma unroll
                    for (int i = 0; i < 4; ++i) x[i][e] = fmaf(weights[s], y.v[i], x[i][e]);
                }
            store_results(to + row * step + 32 * c, x, width - 32 * c);
        }
    }
}
