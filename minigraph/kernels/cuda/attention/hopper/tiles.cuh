// Shared by the attention kernels for Hopper. Defined before: T and its name PTX_T, HEAD (the head dimension rounded up
// to 64), STEP (rows of the tiles that are walked over), GROUPS (warpgroups that compute), tiles in flight.
// A tile is [HEAD / 64][rows][64] in rows of 128 bytes, swizzled. Accumulators of a warpgroup are 64 rows: lane l of
// warp w holds rows 16 w + l / 4 and 8 below, columns 8 j + 2 (l % 4) and the next.
constexpr int CHUNKS = HEAD / 64, ROWS = 64 * GROUPS;  // of a block: 64 for each warpgroup that computes
constexpr int LOADER_REGISTERS = GROUPS == 3 ? 32 : 24, REGISTERS = GROUPS == 3 ? 160 : 240;  // of 65536 in all
constexpr u32 TILE_BYTES = ROWS * HEAD * 2, STEP_BYTES = STEP * HEAD * 2;
constexpr float LOG2E = 1.4426950408889634f;
#define EMPTY_LSE (-infinity<float>())  // of a query that sees no key

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." PTX_T "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ float over_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float over_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// sum(x * y) of a row that LANES threads share, in each of them: 8 elements from x and y on, none where they are not inside.
template <int LANES> __device__ __forceinline__ float row_product(const T* x, const T* y, bool inside) {
    float sum = 0;
    if (inside) {
        const Pack<T, 8> a = *reinterpret_cast<const Pack<T, 8>*>(x), b = *reinterpret_cast<const Pack<T, 8>*>(y);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += up(a.v[i]) * up(b.v[i]);
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return sum;
}

// The gradient of LSE, by which sum(dOut * Out) is less: none without one, and where the query sees no key.
__device__ __forceinline__ float grad_of_lse(float lse, const float* grads, i64 row) {
    return grads && lse - lse == 0 ? grads[row] : 0.0f;
}

// Address of a piece of 16 bytes of a row.
__device__ __forceinline__ u32 piece_address(u32 tile, int rows, int row, int piece) {
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8 ^ row % 8) * 16);
}
// factor[h] * the accumulators of a warpgroup, its rows below `count` and columns below `width`, to 16-bit rows from `to`
// on, which is the first of this lane's two. Four lanes that share a row exchange what they hold: each writes 16 bytes.
template <int N>
__device__ __forceinline__ void store_results(const float (&o)[N], const float (&factor)[2], T* to, i64 stride, int count,
                                              int width) {
    const int lane = threadIdx.x % 4;
    const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int g = 0; g < N / 16; g++) {
            u32 x[4];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const int j = 16 * g + 4 * t + 2 * h;
                x[t] = pack(o[j] * factor[h], o[j + 1] * factor[h]);
            }
#pragma unroll
            for (int t = 0; t < 4; t += 2) {
                const u32 found = __shfl_xor_sync(~0u, odd ? x[t] : x[t + 1], 1);
                if (odd) x[t] = found;
                else x[t + 1] = found;
            }
#pragma unroll
            for (int t = 0; t < 2; t++) {
                const u32 found = __shfl_xor_sync(~0u, upper ? x[t] : x[t + 2], 2);
                if (upper) x[t] = found;
                else x[t + 2] = found;
            }
            const int column = 32 * g + 8 * lane;
            if (8 * h < count && column < width)
                store_global(to + 8 * h * stride + column, x);
        }
}
// `N` rows of one head, from `row` on.
template <int N>
__device__ __forceinline__ void load_tile(u32 to, const TensorMap& map, u32 barrier, int row, int head, int batch) {
#pragma unroll 1
    for (int c = 0; c < CHUNKS; c++) load_box(to + c * N * 128, map, barrier, c * 64, row, head, batch);
}

// s = A B^T along the head dimension, A in 64 rows of a tile of ROWS rows, B a tile of STEP rows. Runs on after this
// returns, as do the products below: until a wgmma_wait nobody may touch what they read and write.
__device__ __forceinline__ void multiply(float (&s)[STEP / 2], u32 a, u32 b) {
    keep(s);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        wgmma_ss<2, 2>(s, descriptor((a >> 4) + c * ROWS * 8, 16, 1024), descriptor((b >> 4) + c * STEP * 8, 16, 1024),
                       c > 0);
    wgmma_commit();
}
// o += weights B: the rows of B, a tile of STEP rows, weighed by fragments.
__device__ __forceinline__ void add_rows(float (&o)[HEAD / 2], u32 (&weights)[STEP / 4], u32 b) {
    keep(weights);
    keep(o);
    wgmma_fence();
    wgmma_rs_bt<0, 128>(o, weights, descriptor(b >> 4, STEP * 128, 1024));
    wgmma_commit();
}
