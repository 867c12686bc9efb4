// Reduction of one axis: X[outer, m, inner] -> Y[outer, inner], or the results of `splits` equal pieces of
// the axis -> Y[outer, splits, inner], which a second launch brings together. Reads X once.
//   T  type read       A  accumulator (Best: value and place, for positions)       U  type written
//   KIND, IDENTITY, FINISH(a): the operation, its neutral value, and what becomes of an accumulator at the end
// rows:    inner is 1; the block shares a row (WHOLE), or `lanes` threads, a part of a warp
// columns: tx threads lie along inner, ty along m, the others along outer
// What follows from sizes are arguments, so that other sizes find the kernel compiled.
// Threads and their packs meet in trees of fixed shape: the same bits in every run.
#define SUM 0
#define PROD 1
#define MAX 2
#define MIN 3
#define ARG_MAX 4
#define ARG_MIN 5
#define THREADS 256
#define CROWDED (sizeof(A) > 4 ? 3 : 4)  // blocks on a multiprocessor: accumulators are what takes registers

#if KIND == ARG_MAX || KIND == ARG_MIN
struct Best {
    C value;
    i64 at;
};
typedef Best A;
__device__ __forceinline__ A identity() { return {C(IDENTITY), 0x7fffffffffffffffll}; }
template <class S> __device__ __forceinline__ A element(S x, i64 at) { return {C(up(x)), at}; }
__device__ __forceinline__ A element(Best x, i64) { return x; }
__device__ __forceinline__ A combine(A a, A b) {
    const bool both = a.value == b.value || (a.value != a.value && b.value != b.value);
#if KIND == ARG_MAX
    const bool ahead = b.value > a.value;
#else
    const bool ahead = b.value < a.value;
#endif
    const bool wins = both ? b.at < a.at : ahead || b.value != b.value;  // NaN before all, then the first one
    return wins ? b : a;
}
__device__ __forceinline__ A from_lane(A a, int lanes) {
    return {C(__shfl_xor_sync(~0u, a.value, lanes)), __shfl_xor_sync(~0u, a.at, lanes)};
}
#else
__device__ __forceinline__ A identity() { return A(IDENTITY); }
template <class S> __device__ __forceinline__ A element(S x, i64) { return A(up(x)); }
__device__ __forceinline__ A combine(A a, A b) {
#if KIND == SUM
    return a + b;
#elif KIND == PROD
    return a * b;
#elif KIND == MAX
    return max_nan(a, b);
#else
    return min_nan(a, b);
#endif
}
__device__ __forceinline__ A from_lane(A a, int lanes) { return A(__shfl_xor_sync(~0u, a, lanes)); }
#endif

// UNROLL packs into their accumulators, as a tree; element v of pack u stands at `at + u * far + v * near`.
__device__ __forceinline__ void absorb(A* total, const Pack<T, WIDTH>* q, i64 at, int far, int near) {
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
        A part[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) part[u] = element(q[u].v[v], at + u * far + v * near);
#pragma unroll
        for (int half = UNROLL / 2; half > 0; half /= 2)
#pragma unroll
            for (int u = 0; u < half; ++u) part[u] = combine(part[u], part[u + half]);
        total[v] = combine(total[v], part[0]);
    }
}

#if BY_ROWS
// Elements [begin, end) of a row: single ones up to a 16-byte boundary, packs, single ones again.
__device__ __forceinline__ A along(const T* __restrict__ x, i64 begin, i64 end, int lane, int lanes) {
    A total[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) total[v] = identity();
    const int behind = int(u64(x + begin) / sizeof(T) % WIDTH);
    const i64 first = min(end, begin + (behind ? WIDTH - behind : 0));
    for (i64 i = begin + lane; i < first; i += lanes) total[0] = combine(total[0], element(x[i], i));
    const i64 packs = (end - first) / WIDTH;
    const Pack<T, WIDTH>* p = (const Pack<T, WIDTH>*)(x + first);
    i64 k = lane;
    for (; k + (UNROLL - 1) * lanes < packs; k += UNROLL * lanes) {
        Pack<T, WIDTH> q[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) q[u] = p[k + u * lanes];
        absorb(total, q, first + k * WIDTH, lanes * WIDTH, 1);
    }
    for (; k < packs; k += lanes) {
        const Pack<T, WIDTH> q = p[k];
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) total[v] = combine(total[v], element(q.v[v], first + k * WIDTH + v));
    }
    for (i64 i = first + packs * WIDTH + lane; i < end; i += lanes) total[0] = combine(total[0], element(x[i], i));
#pragma unroll
    for (int v = WIDTH / 2; v > 0; v /= 2)
#pragma unroll
        for (int w = 0; w < v; ++w) total[w] = combine(total[w], total[w + v]);
    return total[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, CROWDED)
    rows(const T* __restrict__ X, U* __restrict__ Y, i64 outer, i64 m, i64 piece, int splits, i64 count, int some) {
    const int lanes = WHOLE ? THREADS : some;
    const u32 split = blockIdx.x % splits;
    const i64 row = i64(blockIdx.x / splits) * (THREADS / lanes) + threadIdx.x / lanes;
    const int lane = threadIdx.x % lanes;
    A a = identity();
    if (row < outer) a = along(X + row * m, split * piece, min(m, (split + 1) * piece), lane, lanes);
    for (int far = min(lanes, 32) / 2; far > 0; far /= 2) a = combine(a, from_lane(a, far));
#if WHOLE
    __shared__ A warps[THREADS / 32];
    if (lane % 32 == 0) warps[lane / 32] = a;
    __syncthreads();
    a = warps[lane % (THREADS / 32)];
#pragma unroll
    for (int far = THREADS / 64; far > 0; far /= 2) a = combine(a, from_lane(a, far));
#endif
    if (row < outer && lane == 0) Y[row * splits + split] = FINISH(a);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, CROWDED) columns(
    const T* __restrict__ X, U* __restrict__ Y, i64 outer, i64 m, i64 inner, i64 piece, int splits, int tiles, i64 count,
    int tx, int ty) {
    const int x = threadIdx.x % tx, y = threadIdx.x / tx % ty;
    const u32 tile = blockIdx.x % tiles, split = blockIdx.x / tiles % splits;
    const i64 o = i64(blockIdx.x / tiles / splits) * (THREADS / (tx * ty)) + threadIdx.x / (tx * ty);
    const i64 column = (i64(tile) * tx + x) * WIDTH;
    const bool inside = o < outer && column < inner;
    A total[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) total[v] = identity();
    if (inside) {
        const T* p = X + o * m * inner + column;
        const i64 end = min(m, (split + 1) * piece);
        i64 r = split * piece + y;
        for (; r + (UNROLL - 1) * ty < end; r += UNROLL * ty) {
            Pack<T, WIDTH> q[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) q[u] = *(const Pack<T, WIDTH>*)(p + (r + u * ty) * inner);
            absorb(total, q, r, ty, 0);
        }
        for (; r < end; r += ty) {
            const Pack<T, WIDTH> q = *(const Pack<T, WIDTH>*)(p + r * inner);
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) total[v] = combine(total[v], element(q.v[v], r));
        }
    }
    __shared__ A others[WIDTH][THREADS];
    for (int far = ty / 2; far > 0; far /= 2) {
        if (y >= far && y < 2 * far)
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) others[v][threadIdx.x] = total[v];
        __syncthreads();
        if (y < far)
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) total[v] = combine(total[v], others[v][threadIdx.x + far * tx]);
    }
    if (inside && y == 0) {
        Pack<U, WIDTH> result;
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) result.v[v] = FINISH(total[v]);
        *(Pack<U, WIDTH>*)(Y + (o * splits + split) * inner + column) = result;
    }
}
#endif
