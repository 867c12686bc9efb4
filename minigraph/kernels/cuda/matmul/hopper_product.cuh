// What hopper_product.cu does to a piece of its result, 64 rows x 64 columns of a warpgroup, between the accumulators and
// the copy engine: activation. A lane of warp w holds, of 8 columns side by side, the numbers 2 (lane % 4)
// and the next, in rows 16 w + lane / 4 and 8 below.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." PTX_T "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ float low_of(u32 pair) { return up(T{(unsigned short)(pair & 0xffff)}); }
__device__ __forceinline__ float high_of(u32 pair) { return up(T{(unsigned short)(pair >> 16)}); }

// Sums over the rows of a warp of 4 columns of each lane, of which every second lane of its eight gets one: the number
// lane / 16 of the pairs, of that the one lane / 8 % 2.
__device__ __forceinline__ float over_rows(const float (&x)[2][2]) {
    const int lane = threadIdx.x % 32, h = lane / 16, e = lane / 8 % 2;
    float pair[2];
#pragma unroll
    for (int i = 0; i < 2; i++) pair[i] = (h ? x[1][i] : x[0][i]) + __shfl_xor_sync(~0u, h ? x[0][i] : x[1][i], 16);
    const float one = (e ? pair[1] : pair[0]) + __shfl_xor_sync(~0u, e ? pair[0] : pair[1], 8);
    return one + __shfl_xor_sync(~0u, one, 4);
}

#if TANH  // gelu in its tanh form, x logistic(2 u), with one reciprocal for two numbers
constexpr float LEAST = -7.5f;  // below this the result is 0 but for 4e-18; the product of two 1 + exp(-2 u) stays finite
__device__ __forceinline__ float whole(float x) {  // 1 + exp(-2 u)
    return 1.f + power_of_two(x * fmaf(x * x, -2.302208198f * 0.044715f, -2.302208198f));
}
__device__ __forceinline__ void logistics(float& x, float& y, float& p, float& q) {
    x = max_nan(x, LEAST), y = max_nan(y, LEAST);
    const float a = whole(x), b = whole(y), r = reciprocal(a * b);
    p = r * b, q = r * a;
}
__device__ __forceinline__ void activate(float& x, float& y) {
    float p, q;
    logistics(x, y, p, q);
    x *= p, y *= q;
}
__device__ __forceinline__ float slope(float x, float s) {
    constexpr float TWICE = 2 * 0.7978845608028654f;
    return fmaf(x * fmaf(-s, s, s), fmaf(x * x, TWICE * 3 * 0.044715f, TWICE), s);
}
__device__ __forceinline__ void slopes(float x, float y, float& p, float& q) {
    x = min_nan(x, -LEAST), y = min_nan(y, -LEAST);  // 1 - s is only rounding there, which x^3 would magnify
    logistics(x, y, p, q);
    p = slope(x, p), q = slope(y, q);
}
#elif defined(GELU)
typedef float C;
__device__ __forceinline__ float gelu(float X) { return GELU; }
__device__ __forceinline__ void activate(float& x, float& y) { x = gelu(x), y = gelu(y); }
#elif defined(SLOPE)
typedef float C;
__device__ __forceinline__ float slope(float X) { return SLOPE; }
__device__ __forceinline__ void slopes(float x, float y, float& p, float& q) { p = slope(x), q = slope(y); }
#endif
