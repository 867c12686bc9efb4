// Elementary operations rounded one by one: the compiler must not contract a product and a sum, so that a
// fused kernel, a list of elementary ones and the CPU give the same bits.
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float subtract(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ double subtract(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float root(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ double root(double x) { return __dsqrt_rn(x); }
template <class C> __device__ __forceinline__ C maximum(C a, C b) { return max_nan(a, b); }
template <class C> __device__ __forceinline__ C absolute(C x) { return x < C(0) ? -x : x == C(0) ? C(0) : x; }
template <class C> __device__ __forceinline__ C sign(C x) { return x > C(0) ? C(1) : x < C(0) ? C(-1) : x; }
