// Norms of lists of tensors, in double and in fixed order whatever the device. `parts`: a block's CHUNK elements of one
// tensor, each read once. `norms`: the parts of one tensor. ORDER is 1, 2, or 0 for the largest magnitude.

#if ORDER == 0
#define TERM(x) (x < 0 ? -x : x)
#define MERGE(a, b) max_nan(a, b)
#define OVER_BLOCK(x) block_max(x, shared)
#else
#define TERM(x) (ORDER == 1 ? (x < 0 ? -x : x) : x * x)
#define MERGE(a, b) (a + b)
#define OVER_BLOCK(x) block_sum(x, shared)
#endif

extern "C" __global__ void __launch_bounds__(256) parts(TENSORS, double* sums)
{
    __shared__ double shared[8];
    FIND
    const T* x = (const T*)ADDRESS(0) + start;
    const i64 end = left < CHUNK ? left : CHUNK;
    enum { V = 16 / sizeof(T) };
    double total = 0;
    i64 i = 0;
    if ((u64)x % 16 == 0) {
#pragma unroll 4
        for (i = i64(threadIdx.x) * V; i + V <= end; i += 256 * V) {
            const Pack<T, V> p = *(const Pack<T, V>*)(x + i);
#pragma unroll
            for (int j = 0; j < V; ++j) {
                const double y = up(p.v[j]);
                total = MERGE(total, TERM(y));
            }
        }
        i = end / V * V;
    }
    for (i += threadIdx.x; i < end; i += 256) {
        const double y = up(x[i]);
        total = MERGE(total, TERM(y));
    }
    total = OVER_BLOCK(total);
    if (threadIdx.x == 0) sums[BLOCKS_BEFORE + blockIdx.x] = total;
}

// starts[t] is the first part of tensor t, outs[t] where its norm goes.
extern "C" __global__ void __launch_bounds__(256) norms(const double* sums, const u64* outs, const i64* starts)
{
    __shared__ double shared[8];
    double total = 0;
    for (i64 b = starts[blockIdx.x] + threadIdx.x; b < starts[blockIdx.x + 1]; b += 256) total = MERGE(total, sums[b]);
    total = OVER_BLOCK(total);
    if (threadIdx.x == 0) *(R*)outs[blockIdx.x] = R(ORDER == 2 ? root(total) : total);
}
