// Exact attention in tiles, what forward and backward share: C is the type computed in, float or double.
//
// A block of 8 x 16 threads owns BM = 8 RM rows, of queries or of keys, and walks over tiles of BN = 16 RN
// columns of the other kind. A thread has the rows ty RM + i and the columns tx + 16 j of a tile's scores.
//
//   dot         s[row][column] = sum over d of own[row][d] * other[column][d]; own rows lie in shared memory
//               whole, others pass through `stage` in pieces of CHUNK of the head dimension
//   accumulate  acc[row][d] += sum over columns of p[row][column] * other[column][d]; p in shared memory
//
// Causal, window and packed sequences make an interval [lo, hi) of columns for each row: see interval().
// A weight of 0 takes nothing, not even NaN: once a NaN or infinity was staged, products are chosen.
// T type in memory, BT that of Bias, L that of cumulative lengths, VEC elements per load,
// GENERAL: there are Bias, Mask or dropout.

constexpr int THREADS = 128, TX = 16, BM = 8 * RM, BN = TX * RN, PER = CHUNK / TX;
constexpr int W = 16 / sizeof(C);          // numbers in 16 bytes; also what rows are padded by, against bank conflicts
constexpr int LDS = CHUNK + W, LDP = BN + W;  // rows of `stage`, of p

struct Sizes {
    int heads, groups, queries, keys, d, dv;
    bool bshd;
};
struct Rows {  // of one head of an array: where they begin, elements from one to the next
    i64 at, step;
};
__device__ __forceinline__ Rows rows_of(const Sizes& z, i64 heads, i64 rows, i64 width, i64 b, i64 h) {
    const i64 batch = b * heads * rows * width;
    if (z.bshd) return {batch + h * width, heads * width};
    return {batch + h * rows * width, width};
}

struct Interval {
    int lo, hi;
};
// Packed sequences: which one holds `place`; -1 behind the last.
__device__ __forceinline__ i64 sequence_of(const L* lengths, i64 count, i64 place) {
    if (place >= i64(lengths[count])) return -1;
    i64 lo = 0, hi = count;
    while (hi - lo > 1) {
        const i64 middle = (lo + hi) / 2;
        if (i64(lengths[middle]) <= place) lo = middle;
        else hi = middle;
    }
    return lo;
}
// The columns that row `place` meets: of `others`, within `before` and `after` (-1: any distance) of the
// diagonal, which with `bottom_right` ends at the last row and column. `own` is null without sequences.
__device__ __forceinline__ Interval interval(
    i64 place, i64 rows, i64 columns, const L* own, const L* other, i64 count, i64 before, i64 after,
    bool bottom_right)
{
    if (place >= rows) return {0, 0};
    i64 start = 0, end = columns, shift = columns - rows;
    if (own) {
        const i64 s = sequence_of(own, count, place);
        if (s < 0) return {0, 0};
        start = min(max(i64(other[s]), i64(0)), columns);
        end = min(max(i64(other[s + 1]), start), columns);
        shift = end - start - (i64(own[s + 1]) - i64(own[s]));
        place -= i64(own[s]);
    }
    const i64 diagonal = start + place + (bottom_right ? shift : 0);
    const i64 lo = before < 0 ? start : min(max(start, diagonal - before), end);
    const i64 hi = after < 0 ? end : min(end, diagonal + after + 1);
    return {int(lo), int(max(lo, hi))};
}

__device__ __forceinline__ bool is_finite(float x) { return x - x == 0; }
__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }
__device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.4426950408889634f); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// rows x width elements (VEC at a time) into shared memory; zeros beyond `valid` rows and `limit` columns.
template <int ROWS, int WIDTH, int LD>
__device__ __forceinline__ bool load_rows(C* to, const T* from, i64 step, int valid, int limit) {
    bool odd = false;
    for (int e = threadIdx.x * VEC; e < ROWS * WIDTH; e += THREADS * VEC) {
        const int row = e / WIDTH, x = e % WIDTH;
        Pack<T, VEC> pack;
        const bool inside = row < valid && x < limit;
        if (inside) pack = *(const Pack<T, VEC>*)(from + row * step + x);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const C value = inside ? C(up(pack.v[i])) : C(0);
            odd |= !is_finite(value);
            to[row * LD + x + i] = value;
        }
    }
    return odd;
}

// `odd` is set, and stays set, once something staged is not finite.
template <int CHUNKS>
__device__ __forceinline__ void dot(
    C (&s)[RM][RN], const C* own, const T* other, i64 step, int valid, int width, C* stage, int* odd)
{
    constexpr int LD = CHUNKS * CHUNK + W;
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int j = 0; j < RN; ++j) s[i][j] = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        __syncthreads();
        if (load_rows<BN, CHUNK, LDS>(stage, other + chunk * CHUNK, step, valid, width - chunk * CHUNK)) *odd = 1;
        __syncthreads();
#pragma unroll 2
        for (int x = 0; x < CHUNK; x += W) {
            Pack<C, W> a[RM], b[RN];
#pragma unroll
            for (int i = 0; i < RM; ++i) a[i] = *(const Pack<C, W>*)(own + (ty * RM + i) * LD + chunk * CHUNK + x);
#pragma unroll
            for (int j = 0; j < RN; ++j) b[j] = *(const Pack<C, W>*)(stage + (tx + TX * j) * LDS + x);
#pragma unroll
            for (int w = 0; w < W; ++w)
#pragma unroll
                for (int i = 0; i < RM; ++i)
#pragma unroll
                    for (int j = 0; j < RN; ++j) s[i][j] += a[i].v[w] * b[j].v[w];
        }
    }
}

// Ends with p and `stage` still in use: the next writer of either begins with a barrier.
template <int CHUNKS>
__device__ __forceinline__ void accumulate(
    C (&acc)[RM][CHUNKS][PER], const C* p, const T* other, i64 step, int valid, int width, C* stage, int* odd)
{
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        __syncthreads();
        if (load_rows<BN, CHUNK, LDS>(stage, other + chunk * CHUNK, step, valid, width - chunk * CHUNK)) *odd = 1;
        __syncthreads();
        const bool choose = *odd;
#pragma unroll 1
        for (int c = 0; c < BN; c += W) {
            Pack<C, W> a[RM];
            Pack<C, PER> b[W];
#pragma unroll
            for (int i = 0; i < RM; ++i) a[i] = *(const Pack<C, W>*)(p + (ty * RM + i) * LDP + c);
#pragma unroll
            for (int w = 0; w < W; ++w) b[w] = *(const Pack<C, PER>*)(stage + (c + w) * LDS + tx * PER);
            if (choose) {
#pragma unroll
                for (int w = 0; w < W; ++w)
#pragma unroll
                    for (int i = 0; i < RM; ++i)
#pragma unroll
                        for (int e = 0; e < PER; ++e)
                            if (a[i].v[w] != 0) acc[i][chunk][e] += a[i].v[w] * b[w].v[e];
            } else {
#pragma unroll
                for (int w = 0; w < W; ++w)
#pragma unroll
                    for (int i = 0; i < RM; ++i)
#pragma unroll
                        for (int e = 0; e < PER; ++e) acc[i][chunk][e] += a[i].v[w] * b[w].v[e];
            }
        }
    }
}

template <int CHUNKS> __device__ __forceinline__ void clear(C (&acc)[RM][CHUNKS][PER]) {
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int e = 0; e < PER; ++e) acc[i][chunk][e] = 0;
}
// acc * factor[row] to rows of `to`, as U.
template <int CHUNKS, class U>
__device__ __forceinline__ void store_rows(
    const C (&acc)[RM][CHUNKS][PER], const C (&factor)[RM], U* to, i64 step, int valid, int width)
{
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        const int row = ty * RM + i;
        if (row >= valid) continue;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int e = 0; e < PER; ++e) {
                const int x = chunk * CHUNK + tx * PER + e;
                if (x < width) to[row * step + x] = down<U>(acc[i][chunk][e] * factor[i]);
            }
    }
}

// A sum or the largest over the 16 lanes that share rows.
__device__ __forceinline__ C row_sum(C x) {
#pragma unroll
    for (int l = TX / 2; l > 0; l >>= 1) x += __shfl_xor_sync(~0u, x, l);
    return x;
}
__device__ __forceinline__ C row_max(C x) {
#pragma unroll
    for (int l = TX / 2; l > 0; l >>= 1) x = max_nan(x, C(__shfl_xor_sync(~0u, x, l)));
    return x;
}

// What changes scores besides the interval. Strides are 0 along axes that broadcast.
struct Modifiers {
    const BT* bias;
    const bool* mask;
    i64 bias_b, bias_h, bias_q, bias_k, mask_b, mask_h, mask_q, mask_k;
    C scale, masked_score;
    u64 seed;
    i64 number, step;
    u64 threshold;  // 0: nothing is dropped
    C keep_scale;
};
struct Place {  // of a head's scores
    i64 bias, mask;
    u64 first;  // its first element among those that draw random numbers
};
__device__ __forceinline__ Place place_of(const Modifiers& m, const Sizes& z, i64 b, i64 h) {
    return {b * m.bias_b + h * m.bias_h, b * m.mask_b + h * m.mask_h, u64(b * z.heads + h) * z.queries * z.keys};
}
// The score of query q and key k from their product; `drawn` tells whether a gradient flows back to the product.
__device__ __forceinline__ C score(C product, int q, int k, const Modifiers& m, const Place& at, bool* drawn) {
    C s = product * m.scale;
    *drawn = true;
#if GENERAL
    if (m.bias) s += C(up(m.bias[at.bias + q * m.bias_q + k * m.bias_k]));
    if (m.mask && !m.mask[at.mask + q * m.mask_q + k * m.mask_k]) {
        s = m.masked_score;
        *drawn = false;
    }
#endif
    return s;
}
// The dropout factor of a probability.
__device__ __forceinline__ C kept(int q, int k, const Modifiers& m, const Sizes& z, const Place& at) {
#if GENERAL
    if (m.threshold) {
        const u64 element = at.first + u64(q) * z.keys + k;
        const Words w = philox4x32(element / 4, m.seed, m.number, m.step);
        const u32 pair[2] = {element & 1 ? w.v[1] : w.v[0], element & 1 ? w.v[3] : w.v[2]};
        return (element & 2 ? pair[1] : pair[0]) >= m.threshold ? m.keep_scale : C(0);
    }
#endif
    return C(1);
}

#define INPUTS                                                                                                       \
    const T *Q, const T *K, const T *V, const BT *bias, const bool *mask, const L *lengths_q, const L *lengths_k,    \
        const i64 *key, int heads, int groups, int queries, int keys, int d, int dv, int bshd, i64 count,            \
        i64 before, i64 after, i64 bottom_right, i64 bias_b, i64 bias_h, i64 bias_q, i64 bias_k, i64 mask_b,         \
        i64 mask_h, i64 mask_q, i64 mask_k, double scale, double masked_score, u64 threshold, double keep_scale
#define READ_INPUTS                                                                                                  \
    const Sizes z = {heads, groups, queries, keys, d, dv, bshd != 0};                                                \
    const Modifiers m = {bias, mask, bias_b, bias_h, bias_q, bias_k, mask_b, mask_h, mask_q, mask_k, C(scale),       \
                         C(masked_score), threshold ? u64(key[0]) : 0, threshold ? key[1] : 0,                       \
                         threshold ? key[2] : 0, threshold, C(keep_scale)};
