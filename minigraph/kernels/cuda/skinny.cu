// Products with a matrix of few columns: W[k, N] with N <= 16, or W[N, k] where WT is 1. Sums are kept in C.
//   forward    y = x @ w + bias [, relu]; ROWS rows a block, its threads share k; reads x once, w once a block
//   input_grad dx = d @ w^T [, 0 where mask's bit is]; a thread holds a row of w and goes through `rows` rows of d
//   weight_grad dw = x^T @ d, db = sum of d: 16 * V columns of x a block, 32 groups of rows; after the last
//              column of x there is one of ones, whose sum is db. Each piece of the rows has a dw and a db
// All sums have one fixed order. In the backward kernels a row of d is read by many threads at once.
__device__ __forceinline__ i64 at_w(i64 k, int n, i64 inner) { return WT ? n * inner + k : k * N + n; }

extern "C" __global__ void __launch_bounds__(256) forward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* y, i64 rows, i64 inner)
{
    __shared__ C parts[8][ROWS][N];
    const i64 first = i64(blockIdx.x) * ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    C sum[ROWS][N] = {};
    for (i64 k = threadIdx.x; k < inner; k += 256) {
        C column[N];
#pragma unroll
        for (int n = 0; n < N; ++n) column[n] = up(w[at_w(k, n, inner)]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const C value = first + r < rows ? C(up(x[(first + r) * inner + k])) : C(0);
#pragma unroll
            for (int n = 0; n < N; ++n) sum[r][n] += value * column[n];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const C s = warp_sum(sum[r][n]);
            if (lane == 0) parts[warp][r][n] = s;
        }
    __syncthreads();
    const int r = threadIdx.x / N, n = threadIdx.x % N;
    if (r >= ROWS || first + r >= rows) return;
    C s = BIAS ? C(up(bias[n])) : C(0);
#pragma unroll
    for (int i = 0; i < 8; ++i) s += parts[i][r][n];
    y[(first + r) * N + n] = down<T>(RELU ? max_nan(s, C(0)) : s);
}

extern "C" __global__ void __launch_bounds__(128) input_grad(
    const T* __restrict__ d, const T* __restrict__ w, const unsigned char* __restrict__ mask, T* dx, i64 rows, i64 inner,
    i64 width, i64 piece)
{
    const i64 across = (inner + 127) / 128;
    const i64 k = blockIdx.x % across * 128 + threadIdx.x, first = blockIdx.x / across * piece;
    if (k >= inner) return;
    C column[N];
#pragma unroll
    for (int n = 0; n < N; ++n) column[n] = up(w[at_w(k, n, inner)]);
    for (i64 row = first; row < min(first + piece, rows); ++row) {
        C s = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) s += C(up(d[row * N + n])) * column[n];
        if (MASK && !(mask[row * width + k / 8] >> (k % 8) & 1)) s = 0;
        dx[row * inner + k] = down<T>(s);
    }
}

extern "C" __global__ void __launch_bounds__(512) weight_grad(
    const T* __restrict__ x, const T* __restrict__ d, U* dw, U* db, i64 rows, i64 inner, i64 piece)
{
    __shared__ C parts[16][16][N];
    const int tx = threadIdx.x % 16, group = threadIdx.x / 16;
    const i64 across = (inner + 16 * V) / (16 * V), block = blockIdx.x % across, part = blockIdx.x / across;
    const i64 k = (block * 16 + tx) * V, last = min((part + 1) * piece, rows);
    C sum[V][N] = {};
    if (k <= inner) {
        for (i64 row = part * piece + group; row < last; row += 32) {
            Pack<T, V> values;
            if (k < inner) values = *(const Pack<T, V>*)(x + row * inner + k);
            C column[N];
#pragma unroll
            for (int n = 0; n < N; ++n) column[n] = up(d[row * N + n]);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const C value = k < inner ? C(up(values.v[v])) : C(v == 0);
#pragma unroll
                for (int n = 0; n < N; ++n) sum[v][n] += value * column[n];
            }
        }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const C s = sum[v][n] + __shfl_xor_sync(~0u, sum[v][n], 16);  // of both groups of a warp
            if (group % 2 == 0) parts[group / 2][tx][n] = s;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * N; i += 512) {
            const i64 at = (block * 16 + i / N) * V + v;
            const int n = i % N;
            C s = 0;
#pragma unroll
            for (int j = 0; j < 16; ++j) s += parts[j][i / N][n];
            if (at < inner) dw[part * inner * N + at_w(at, n, inner)] = down<U>(s);
            else if (at == inner && DB) db[part * N + n] = down<U>(s);
        }
        __syncthreads();
    }
}
