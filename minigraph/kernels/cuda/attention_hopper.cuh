// Shared by the attention kernels for Hopper. Defined before: T and its name PTX_T, HEAD (the head dimension rounded up to
// 64), STEP (rows of the tiles that are walked over), STAGES (tiles in flight), EMPTY_LSE (of a query that sees no key).
// A tile is [HEAD / 64][rows][64] in rows of 128 bytes, swizzled. Accumulators of a warpgroup are 64 rows: lane l of warp w
// holds rows 16 w + l / 4 and 8 below, columns 8 j + 2 (l % 4) and the next.
constexpr int CHUNKS = HEAD / 64, ROWS = 128;            // of a block: 64 for each of two warpgroups
constexpr int LOADER_REGISTERS = 24, REGISTERS = 240;     // of 168 * 384 in all
constexpr u32 TILE_BYTES = ROWS * HEAD * 2, STEP_BYTES = STEP * HEAD * 2;
constexpr float LOG2E = 1.4426950408889634f;

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
__device__ __forceinline__ void unpack(float (&x)[2], u32 pair) {
    x[0] = up(T{(unsigned short)(pair & 0xffff)});
    x[1] = up(T{(unsigned short)(pair >> 16)});
}
__device__ __forceinline__ float over_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float over_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}


// Address of a piece of 16 bytes of a row.
__device__ __forceinline__ u32 piece_address(u32 tile, int rows, int row, int piece) {
    return tile + piece / 8 * rows * 128 + row * 128 + ((piece % 8 ^ row % 8) * 16);
}
// factor * the accumulators of a warpgroup (64 rows), or zeros where nothing was summed, to 16-bit rows in global memory,
// through 64 rows of `tile`.
__device__ __forceinline__ void store_rows(const float (&o)[HEAD / 2], bool summed, float factor, u32 tile, int barrier,
                                           T* to, i64 stride, int count, int width) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int j = 0; j < HEAD / 2; j += 2) {
        const int r = warp * 16 + lane / 4 + (j % 4 / 2) * 8;
        const u32 at = piece_address(tile, ROWS, r, j / 4) + lane % 4 * 4;
        const u32 pair = summed ? pack(o[j] * factor, o[j + 1] * factor) : 0;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
    }
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
    for (int i = thread; i < 64 * HEAD / 8; i += 128) {
        const int r = i / (HEAD / 8), piece = i % (HEAD / 8);
        u32 x, y, z, w;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(piece_address(tile, ROWS, r, piece)));
        if (r < count && piece * 8 < width)
            *reinterpret_cast<uint4*>(to + r * stride + piece * 8) = make_uint4(x, y, z, w);
    }
}
// `N` rows of one head, from `row` on.
template <int N>
__device__ __forceinline__ void load_tile(u32 to, const TensorMap& map, u32 barrier, int row, int head, int batch) {
    for (int c = 0; c < CHUNKS; c++) load_box(to + c * N * 128, map, barrier, c * 64, row, head, batch);
}
