// Sums of squares over lists of tensors, in double and in fixed order whatever the device.
// squares: a block's CHUNK elements of each column. ratios: a tensor's blocks, then ||column 0|| / ||column 1||.
// total: all blocks. Every element is read once.

template <class X> __device__ __forceinline__ double sum_of_squares(const void* address, i64 start, i64 left)
{
    const X* x = (const X*)address + start;
    double sum = 0;
    enum { V = 16 / sizeof(X) };
    i64 i = 0;
    const i64 end = left < CHUNK ? left : CHUNK;
    if ((u64)x % 16 == 0) {
#pragma unroll 4
        for (i = i64(threadIdx.x) * V; i + V <= end; i += 256 * V) {
            const Pack<X, V> p = *(const Pack<X, V>*)(x + i);
#pragma unroll
            for (int j = 0; j < V; ++j) sum += double(up(p.v[j])) * double(up(p.v[j]));
        }
        i = end / V * V;
    }
    for (i += threadIdx.x; i < end; i += 256) {
        const double y = up(x[i]);
        sum += y * y;
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) squares(TENSORS, double* sums)
{
    __shared__ double shared[8];
    FIND
    double* const out = sums + (BLOCKS_BEFORE + blockIdx.x) * COLUMNS;
    double sum = block_sum(sum_of_squares<T>((const void*)ADDRESS(0), start, left), shared);
    if (threadIdx.x == 0) out[0] = sum;
#if COLUMNS == 2
    sum = block_sum(sum_of_squares<D>((const void*)ADDRESS(1), start, left), shared);
    if (threadIdx.x == 0) out[1] = sum;
#endif
}

// starts[t] is the first block of tensor t. size[t] = rate times the ratio, 1 for the ratio where a norm is 0.
#if COLUMNS == 2
extern "C" __global__ void __launch_bounds__(256) ratios(
    const double* sums, const i64* starts, const L* learning_rate, R* sizes)
{
    __shared__ double shared[8];
    double x = 0, y = 0;
    for (i64 b = starts[blockIdx.x] + threadIdx.x; b < starts[blockIdx.x + 1]; b += 256) {
        x += sums[2 * b];
        y += sums[2 * b + 1];
    }
    x = root(block_sum(x, shared));
    y = root(block_sum(y, shared));
    const double ratio = x > 0 && y > 0 ? divide(x, y) : 1.0;
    if (threadIdx.x == 0) sizes[blockIdx.x] = R(multiply(double(up(*learning_rate)), ratio));
}
#else
extern "C" __global__ void __launch_bounds__(1024) total(const double* sums, i64 blocks, C* out)
{
    __shared__ double shared[32];
    double sum = 0;
    for (i64 b = threadIdx.x; b < blocks; b += 1024) sum += sums[b];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *out = C(sum);
}
#endif
