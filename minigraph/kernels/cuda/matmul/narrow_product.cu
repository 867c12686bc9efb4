// Products with a matrix of few columns: W[k, N] with N <= 16, or W[N, k] where WT is 1. Sums are kept in C.
//   forward    y = x @ w + bias [, relu]; ROWS rows a block, its threads share k; reads x once, w once a block
//   input_grad dx = d @ w^T [, 0 where mask's bit is]; a thread holds a row of w and goes through `rows` rows of d
//   weight_grad dw = x^T @ d, db = sum of d: 16 * V columns of x a block, 32 groups of rows; after the last
//              column of x there is one of ones, whose sum is db. Each piece of the rows has a dw and a db
// All sums have one fixed order. In the backward kernels a row of d is read by many threads at once. N values that lie
// side by side are read in packs of G; UNROLL rows, or places along k, are on their way at the same time.
__device__ __forceinline__ i64 at_w(i64 k, int n, i64 inner) { return WT ? n * inner + k : k * N + n; }
__device__ __forceinline__ void read_row(C (&to)[N], const T* from) {
#pragma unroll
    for (int n = 0; n < N; n += G) {
        const Pack<T, G> q = *(const Pack<T, G>*)(from + n);
#pragma unroll
        for (int i = 0; i < G; ++i) to[n + i] = up(q.v[i]);
    }
}
__device__ __forceinline__ void read_column(C (&to)[N], const T* w, i64 k, i64 inner) {
    if (!WT) return read_row(to, w + k * N);
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = up(w[n * inner + k]);
}

#if FORWARD
// Sums over the 32 lanes of a warp, each lane left with some of the M: v[0], v[1], ... are those from the returned one
// on, which a lane may not have.
template <int WIDTH, int LANES, int M> __device__ __forceinline__ int fold(C (&v)[M], int lane, int first, int& end) {
    if constexpr (LANES == 0)
        return first;
    else {
        constexpr int HALF = (WIDTH + 1) / 2;
        const bool upper = WIDTH > 1 && (lane & LANES);
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const C high = WIDTH == 1 ? v[i] : i + HALF < WIDTH ? v[i + HALF] : C(0);
            const C sent = __shfl_xor_sync(~0u, upper ? v[i] : high, LANES);
            v[i] = (upper ? high : v[i]) + sent;
        }
        first += upper ? HALF : 0;
        if (!upper) end = min(end, first + HALF);
        return fold<HALF, LANES / 2>(v, lane, first, end);
    }
}

// y of this block's rows; `column` are the rows of w from the last `begin` on, which is the first if there is no other.
static __device__ __forceinline__ void forward_rows(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* y, i64 rows, i64 inner,
    C (&column)[UNROLL][N], T* kept = nullptr)
{
    __shared__ C parts[8][ROWS][N];
    const i64 first = i64(blockIdx.x) * ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    C sum[ROWS * N] = {};
    for (i64 begin = threadIdx.x; begin < inner; begin += 256 * UNROLL) {
        C value[UNROLL][ROWS] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 k = begin + 256 * u;
#pragma unroll
            for (int n = 0; n < N; ++n) column[u][n] = C(0);
            if (k >= inner) continue;
            read_column(column[u], w, k, inner);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (first + r < rows) value[u][r] = up(x[(first + r) * inner + k]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int n = 0; n < N; ++n) sum[r * N + n] += value[u][r] * column[u][n];
    }
    constexpr int LEFT = (ROWS * N + 31) / 32;
    int end = ROWS * N;
    const int own = fold<ROWS * N, 16>(sum, lane, 0, end);
#pragma unroll
    for (int i = 0; i < LEFT; ++i)
        if (own + i < end) (&parts[warp][0][0])[own + i] = sum[i];
    __syncthreads();
    const int r = threadIdx.x / N, n = threadIdx.x % N;
    if (r >= ROWS || first + r >= rows) return;
    C s = BIAS ? C(up(bias[n])) : C(0);
#pragma unroll
    for (int i = 0; i < 8; ++i) s += parts[i][r][n];
    const T z = down<T>(RELU ? max_nan(s, C(0)) : s);
    y[(first + r) * N + n] = z;
    if (kept) kept[threadIdx.x] = z;
}

#ifndef JOINED
extern "C" __global__ void __launch_bounds__(256) forward(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* y, i64 rows, i64 inner)
{
    C column[UNROLL][N];
    forward_rows(x, w, bias, y, rows, inner, column);
}
#else
// The mask's bytes of this block's rows, long before input_rows needs them.
typedef unsigned char Bytes[UNROLL][ROWS];
__device__ __forceinline__ void read_bits(Bytes& bits, const unsigned char* __restrict__ mask, i64 begin, i64 rows, i64 inner, i64 width)
{
    const i64 first = i64(blockIdx.x) * ROWS;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const i64 k = begin + 256 * u;
            bits[u][r] = MASK && k < inner && first + r < rows ? mask[(first + r) * width + k / 8] : 0;
        }
}

// input_grad of this block's rows; `column` as forward_rows left it, `bits` those of the first places.
__device__ __forceinline__ void input_rows(
    const T* d, T* to, const T* __restrict__ w, const unsigned char* __restrict__ mask, T* dx, i64 rows, i64 inner, i64 width,
    C (&column)[UNROLL][N], Bytes& bits)
{
    const i64 first = i64(blockIdx.x) * ROWS;
    C values[ROWS][N] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        if (first + r < rows) read_row(values[r], d + r * N);
    if (const i64 at = first * N + threadIdx.x; threadIdx.x < ROWS * N && at < rows * N) to[at] = d[threadIdx.x];
    for (i64 begin = threadIdx.x; begin < inner; begin += 256 * UNROLL) {
        if (begin >= 256 * UNROLL) read_bits(bits, mask, begin, rows, inner, width);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 k = begin + 256 * u;
            if (k >= inner) continue;
            if (inner > 256 * UNROLL) read_column(column[u], w, k, inner);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (first + r >= rows) continue;
                C s = 0;
#pragma unroll
                for (int n = 0; n < N; ++n) s += values[r][n] * column[u][n];
                if (MASK && !(bits[u][r] >> (k % 8) & 1)) s = 0;
                dx[(first + r) * inner + k] = down<T>(s);
            }
        }
    }
}
#endif

#elif INPUT_GRAD
extern "C" __global__ void __launch_bounds__(128) input_grad(
    const T* __restrict__ d, const T* __restrict__ w, const unsigned char* __restrict__ mask, T* dx, i64 rows, i64 inner,
    i64 width, i64 piece)
{
    const i64 across = (inner + 127) / 128;
    const i64 k = blockIdx.x % across * 128 + threadIdx.x, first = blockIdx.x / across * piece;
    if (k >= inner) return;
    C column[N];
    read_column(column, w, k, inner);
    const i64 last = min(first + piece, rows);
    for (i64 begin = first; begin < last; begin += UNROLL) {
        C values[UNROLL][N];
        unsigned char bits[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 row = min(begin + u, last - 1);
            read_row(values[u], d + row * N);
            bits[u] = MASK ? mask[row * width + k / 8] : 0;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            C s = 0;
#pragma unroll
            for (int n = 0; n < N; ++n) s += values[u][n] * column[n];
            if (MASK && !(bits[u] >> (k % 8) & 1)) s = 0;
            if (begin + u < last) dx[(begin + u) * inner + k] = down<T>(s);
        }
    }
}

#else
extern "C" __global__ void __launch_bounds__(512) weight_grad(
    const T* __restrict__ x, const T* __restrict__ d, U* dw, U* db, i64 rows, i64 inner, i64 piece)
{
    __shared__ C shared[256 * N];  // 256 rows of d, then what the warps have of 16 columns
    C(&parts)[16][16][N] = *(C(*)[16][16][N])shared;
    const int tx = threadIdx.x % 16, group = threadIdx.x / 16;
    const i64 across = (inner + 16 * V) / (16 * V), block = blockIdx.x % across, part = blockIdx.x / across;
    const i64 k = (block * 16 + tx) * V, last = min((part + 1) * piece, rows);
    C sum[V][N] = {};
    for (i64 first = part * piece; first < last; first += 256) {
        const int here = int(min(last - first, i64(256)));
#pragma unroll
        for (int i = 0; i < (N + 1) / 2; ++i)
            if (const int at = i * 512 + threadIdx.x; at < here * N) shared[at] = up(d[first * N + at]);
#pragma unroll
        for (int begin = 0; begin < 8; begin += UNROLL) {
            Pack<T, V> values[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (const int row = (begin + u) * 32 + group; k < inner && row < here)
                    values[u] = *(const Pack<T, V>*)(x + (first + row) * inner + k);
            if (begin == 0) __syncthreads();
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int row = (begin + u) * 32 + group;
                if (k > inner || row >= here) continue;
#pragma unroll
                for (int v = 0; v < V; ++v) {
                    const C value = k < inner ? C(up(values[u].v[v])) : C(v == 0);
#pragma unroll
                    for (int n = 0; n < N; ++n) sum[v][n] += value * shared[row * N + n];
                }
            }
        }
        __syncthreads();
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
#endif
