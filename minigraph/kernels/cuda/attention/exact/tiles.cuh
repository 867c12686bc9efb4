// Exact attention in tiles, what forward and backward share: C is the type computed in, float or double.
//
// A block of 8 x 16 threads owns BM = 8 RM rows, of queries or of keys, and walks over tiles of BN = 16 RN
// columns of the other kind. A thread has the rows ty RM + i and the columns tx + 16 j of a tile's scores.
//
//   dot         s[row][column] = sum over d of own[row][d] * other[column][d]; own rows lie in shared memory
//               whole, others pass through `stage` in pieces of CHUNK of the head dimension
//   accumulate  acc[row][d] += sum over columns of p[row][column] * other[column][d]; p in shared memory
//
// Causal, window and packed sequences make an interval [lo, hi) of columns for each row: attention/inputs.cuh.
// A weight of 0 takes nothing, not even NaN: once a NaN or infinity was staged, products are chosen.
// T type in memory, VEC elements per load.

constexpr int THREADS = 128, TX = 16, BM = 8 * RM, BN = TX * RN, PER = CHUNK / TX;
constexpr int W = 16 / sizeof(C);          // numbers in 16 bytes; also what rows are padded by, against bank conflicts
constexpr int LDS = CHUNK + W, LDP = BN + W;  // rows of `stage`, of p

__device__ __forceinline__ bool is_finite(float x) { return x - x == 0; }
__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

// The columns that each of the block's rows meets, as see(row) tells, into lo and hi.
template <class See> __device__ __forceinline__ void look(int (&lo)[BM], int (&hi)[BM], const See& see) {
    if (threadIdx.x < BM) {
        const Interval seen = see(threadIdx.x);
        lo[threadIdx.x] = seen.lo;
        hi[threadIdx.x] = seen.hi;
    }
}
// Where these intervals lie; empty ones say nothing. Columns are below `count`.
__device__ __forceinline__ Interval reach(const int (&lo)[BM], const int (&hi)[BM], int count) {
    Interval all = {count, 0};
    for (int r = 0; r < BM; ++r)
        if (lo[r] < hi[r]) all.lo = min(all.lo, lo[r]), all.hi = max(all.hi, hi[r]);
    return all;
}
__device__ __forceinline__ int tiles_of(Interval all) { return all.lo < all.hi ? (all.hi - all.lo + BN - 1) / BN : 0; }

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

