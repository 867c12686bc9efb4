// What hopper_product.cu does to numbers of its result: rounds them in pairs, gelu, its slope.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." PTX_T "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ float low_of(u32 pair) { return up(T{(unsigned short)(pair & 0xffff)}); }
__device__ __forceinline__ float high_of(u32 pair) { return up(T{(unsigned short)(pair >> 16)}); }

#if TANH  // gelu in its tanh form, x logistic(2 u)
__device__ __forceinline__ float logistic_of(float x, float square) {
    return reciprocal(1.f + power_of_two(x * fmaf(square, -2.302208198f * 0.044715f, -2.302208198f)));
}
__device__ __forceinline__ float gelu(float x) { return x * logistic_of(x, x * x); }
__device__ __forceinline__ float slope(float x) {
    constexpr float TWICE = 2 * 0.7978845608028654f;
    // Beyond 8 s is 0 or 1, and s - s^2 is 0, which an infinite square would make to no number.
    const float square = fminf(x * x, 64.f), s = logistic_of(x, square);
    return fmaf(x * fmaf(-s, s, s), fmaf(square, TWICE * 3 * 0.044715f, TWICE), s);
}
#elif defined(GELU)
typedef float C;
__device__ __forceinline__ float gelu(float X) { return GELU; }
#elif defined(SLOPE)
typedef float C;
__device__ __forceinline__ float slope(float X) { return SLOPE; }
#endif
