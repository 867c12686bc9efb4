// C[m,n] = op(A) @ op(B) for integers and bool, row-major, batched: cuBLASLt has floats only.
// One block computes a 16 x 16 tile from tiles in shared memory. Sums wrap like NumPy's: they are
// taken modulo 2^64 and cut to T; for bool they are "any".
#define TILE 16

extern "C" __global__ void __launch_bounds__(TILE* TILE) gemm_int(
    const T* __restrict__ a, const T* __restrict__ b, T* c, i64 m, i64 n, i64 k, int trans_a, int trans_b,
    i64 step_a, i64 step_b, i64 step_c)
{
    __shared__ u64 part_a[TILE][TILE + 1], part_b[TILE][TILE + 1];
    const i64 across = (n + TILE - 1) / TILE, down_ = (m + TILE - 1) / TILE;
    const i64 batch = blockIdx.x / (across * down_), tile = blockIdx.x % (across * down_);
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const i64 row = tile / across * TILE + y, column = tile % across * TILE + x;
    a += batch * step_a;
    b += batch * step_b;
    u64 sum = 0;
    for (i64 start = 0; start < k; start += TILE) {
        const i64 ka = start + x, kb = start + y;
        part_a[y][x] = row < m && ka < k ? u64(i64(trans_a ? a[ka * m + row] : a[row * k + ka])) : 0;
        part_b[y][x] = kb < k && column < n ? u64(i64(trans_b ? b[column * k + kb] : b[kb * n + column])) : 0;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += part_a[y][i] * part_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[batch * step_c + row * n + column] = T(sum);
}
