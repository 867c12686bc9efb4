// Types and helpers for all kernels. No includes: 16-bit floats are storage, converted with PTX.
//   T  element type in memory        C  type it is computed in: float for 16-bit floats
typedef signed char i8;
typedef unsigned char u8;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(2) f16 {
    unsigned short bits;
};
struct alignas(2) bf16 {
    unsigned short bits;
};

template <class T> struct Compute { typedef T type; };
template <> struct Compute<f16> { typedef float type; };
template <> struct Compute<bf16> { typedef float type; };

template <class T> __device__ __forceinline__ T up(T x) { return x; }
__device__ __forceinline__ float up(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float up(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// Round to nearest even, once.
template <class T, class C> struct Down {
    static __device__ __forceinline__ T from(C x) { return T(x); }
};
template <class C> struct Down<f16, C> {
    static __device__ __forceinline__ f16 from(C x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(float(x)));
        return y;
    }
};
template <class C> struct Down<bf16, C> {
    static __device__ __forceinline__ bf16 from(C x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(float(x)));
        return y;
    }
};
template <class T, class C> __device__ __forceinline__ T down(C x) { return Down<T, C>::from(x); }

// x, rounded to T.
template <class T, class C> __device__ __forceinline__ C rounded(C x) { return up(down<T>(x)); }
#ifdef __CUDACC__
template <> __device__ __forceinline__ float rounded<bf16, float>(float x) {  // at once, not into 16 bits and back
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f));
    return __uint_as_float(y);
}
#endif

// A float64 on its way to 16 bits: as float32 whose last bit remembers what was cut off, so that the
// second rounding gives what one rounding would.
__device__ __forceinline__ float to_round_once(double x) {
    const float y = __double2float_rz(x);
    return double(y) == x || x != x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}
template <class C> __device__ __forceinline__ C to_round_once(C x) { return x; }

// N elements moved as one access of N * sizeof(T) bytes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T v[N];
};

// NaN wins, as in NumPy.
template <class C> __device__ __forceinline__ C max_nan(C a, C b) { return a > b || a != a ? a : b; }
template <class C> __device__ __forceinline__ C min_nan(C a, C b) { return a < b || a != a ? a : b; }

#ifdef __CUDACC__
__device__ __forceinline__ float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
__device__ __forceinline__ float min_nan(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
// 2^x within 2^-22 of itself, 0 below 2^-126; 1 / x within one unit in the last place, 0 above 2^126.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The whole product; the compiler's own way from u64(x) * y adds zeros to it.
__device__ __forceinline__ u64 multiply_wide(u32 x, u32 y) {
    u64 z;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(z) : "r"(x), "r"(y));
    return z;
}
// 16 bytes into shared memory that pass no register; there for this thread after wait_for_copies(). AROUND brings
// the 128 bytes in which they lie into the L2 cache.
template <bool AROUND = false> __device__ __forceinline__ void copy_ahead(void* to, const void* from) {
    const u32 place = u32(__cvta_generic_to_shared(to));
    if (AROUND)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Copies since the last call become a group; wait for all groups but the last one.
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_earlier_groups() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
#else  // for tests without a GPU
inline float power_of_two(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1 / x; }
inline u64 multiply_wide(u32 x, u32 y) { return u64(x) * y; }
template <bool = false> inline void copy_ahead(void* to, const void* from) { *(Pack<u64, 2>*)to = *(const Pack<u64, 2>*)from; }
inline void wait_for_copies() {}
inline void close_group() {}
inline void wait_for_earlier_groups() {}
#endif
__device__ __forceinline__ double power_of_two(double x) { return exp2(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// x^y; of ints by squaring, modulo 2^bits as in NumPy.
__device__ __forceinline__ float power(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }
template <class C> __device__ __forceinline__ C power(C x, C y) {
    u64 result = 1, base = u64(i64(x));
    for (u64 n = y < 0 ? 0 : u64(y); n > 0; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return C(result);
}

// The exact quotient rounded down, and what it leaves, with the sign of y; of ints for y != 0.
template <class C> __device__ __forceinline__ C with_sign_of(C rest, C y) {
    return rest != 0 && (rest < 0) != (y < 0) ? C(rest + y) : rest;
}
__device__ __forceinline__ float floor_rest(float x, float y) { return with_sign_of(fmodf(x, y), y); }
__device__ __forceinline__ double floor_rest(double x, double y) { return with_sign_of(fmod(x, y), y); }
template <class C> __device__ __forceinline__ C floor_rest(C x, C y) { return y == 0 ? C(0) : with_sign_of(C(x % y), y); }
template <class C> __device__ __forceinline__ C rounded_quotient(C x, C y) {
    return y == 0 ? x / y : C(rint((x - floor_rest(x, y)) / y));  // whole but for rounding
}
__device__ __forceinline__ float floor_quotient(float x, float y) { return rounded_quotient(x, y); }
__device__ __forceinline__ double floor_quotient(double x, double y) { return rounded_quotient(x, y); }
template <class C> __device__ __forceinline__ C floor_quotient(C x, C y) {
    return y == 0 ? C(0) : C(x / y - (x % y != 0 && (x < 0) != (y < 0)));
}
template <class C> __device__ __forceinline__ C common_divisor(C x, C y) {
    while (y != 0) {
        const C rest = C(x % y);
        x = y;
        y = rest;
    }
    return x < 0 ? C(-x) : x;
}

template <class C> __device__ __forceinline__ C infinity() { return C(__int_as_float(0x7f800000)); }
template <class C> __device__ __forceinline__ C not_a_number() { return C(__int_as_float(0x7fffffff)); }

// Sums of one value per lane: over a warp, and over a block with `shared` holding one C per warp.
template <class C> __device__ __forceinline__ C warp_sum(C x) {
    for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}
template <class C> __device__ __forceinline__ C warp_max(C x) {
    for (int lanes = 16; lanes > 0; lanes >>= 1) x = max_nan(x, C(__shfl_xor_sync(~0u, x, lanes)));
    return x;
}
template <class C> __device__ __forceinline__ C block_sum(C x, C* shared) {
    x = warp_sum(x);
    if (blockDim.x <= 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : C(0);
    return warp_sum(x);
}
template <class C> __device__ __forceinline__ C block_max(C x, C* shared) {
    x = warp_max(x);
    if (blockDim.x <= 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[threadIdx.x % 32 < blockDim.x / 32 ? threadIdx.x % 32 : 0];
    return warp_max(x);
}

// The n-th derivative of the digamma function: its recurrence up to where Stirling's series holds. NaN far below 0.
template <class C> __device__ __forceinline__ C polygamma(C x, int n) {
    constexpr double B[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000,
        1.0 / 74724249600, -3617.0 / 10670622842880000};  // Bernoulli's numbers B_2k / (2k)!
    if (x < C(-10000) || (n == 0 && x <= C(0) && x == floor(x))) return not_a_number<C>();
    C shifted = C(0), factorial = C(1);
    for (int k = 2; k <= n; ++k) factorial *= C(k);
    C extra = C(0);
    if (n == 0 && x < C(0)) {  // reflection
        extra = C(-3.141592653589793) * cospi(x) / sinpi(x);
        x = C(1) - x;
    }
    for (; x < C(16 + n); x += C(1)) shifted += power(x, C(-1 - n));
    const C inverse = C(1) / x;
    C term = n == 0 ? inverse * inverse : C(n + 1) * power(inverse, C(n + 2)), series = C(0);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        series += C(B[k]) * term;
        term *= inverse * inverse * C(n + 2 * k + 2) * C(n + 2 * k + 3);
    }
    if (n == 0) return log(x) - C(0.5) * inverse - series - shifted + extra;
    const C zeta = shifted + power(inverse, C(n)) / C(n) + C(0.5) * power(inverse, C(n + 1)) + series;
    return (n % 2 ? factorial : -factorial) * zeta;
}

// A modified Bessel function of order 0 or 1, divided by e^|x|: its power series, beyond 20 Hankel's expansion.
template <class C> __device__ __forceinline__ C scaled_bessel(C x, int order) {
    const C size = x < C(0) ? -x : x;
    const bool near = size <= C(20);
    C term = near ? exp(-size) * (order ? size / C(2) : C(1)) : C(1) / sqrt(C(6.283185307179586) * size), sum = term;
    for (int k = 1; k < (near ? 64 : 30); ++k) {
        term *= near ? size * size / C(4 * k * (k + order)) : C((2 * k - 1) * (2 * k - 1) - 4 * order) / (C(8 * k) * size);
        sum += term;
    }
    return order && x < C(0) ? -sum : sum;
}

// The normal distribution function and its density. In float, 2^p(|x|) is what lies beyond |x|: p is a polynomial
// fitted to log2 of it, falling everywhere, so that the result is within 8e-8, and in the lower tail relatively small.
__device__ __forceinline__ float normal_cdf(float x) {
    const float t = fabs(x);
    float p = -2.3349112e-06f * t + 3.3737397e-05f;
    p = p * t - 1.6129208e-04f;
    p = p * t - 1.9170705e-04f;
    p = p * t + 7.1268682e-03f;
    p = p * t - 5.2533615e-02f;
    p = p * t - 4.5919830e-01f;
    p = p * t - 1.1511060f;
    const float beyond = power_of_two(p * t - 1.0f);
    return x < 0.0f ? beyond : 1.0f - beyond;
}
__device__ __forceinline__ double normal_cdf(double x) { return 0.5 * erfc(x * -0.7071067811865476); }
template <class C> __device__ __forceinline__ C normal_pdf(C x) {
    return C(0.3989422804014327) * power_of_two(x * x * C(-0.7213475204444817));
}
template <class C> __device__ __forceinline__ C logistic(C x) {
    return reciprocal(C(1) + power_of_two(x * C(-1.4426950408889634)));
}

// gelu in its tanh form, 0.5 x (1 + tanh(u)) = x logistic(2 u): u, and the derivative of the whole.
template <class C> __device__ __forceinline__ C gelu_inner(C x) {
    return C(0.7978845608028654) * x * (C(1) + C(0.044715) * x * x);
}
template <class C> __device__ __forceinline__ C gelu_tanh_slope(C x) {
    const C s = logistic(C(2) * gelu_inner(x));
    return s + x * (s * (C(1) - s)) * (C(2 * 0.7978845608028654) * (C(1) + C(3 * 0.044715) * x * x));
}

// The first fault since the host looked: which step, and the value that was out of range. The host reads these. What
// follows says whether the run that goes on now has one, with which nothing of it may be kept:
//   looked   grows whenever a kernel that may report begins
//   settled  twice what `looked` was when the last run ended, and 1 if that run had a fault
//   latest   above settled / 2 once this run has a fault
struct Fault {
    u64 taken;
    i64 step, value, row;
    u64 looked, settled, latest;
};
__device__ __forceinline__ bool is_first_thread() {
    return threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
}
// Every kernel that may report does this; nobody waits for it.
__device__ __forceinline__ void look(Fault* fault) {
    if (is_first_thread()) atomicAdd(&fault->looked, 1ull);
}
// `step` is ~ its number where all that the run keeps is written already.
__device__ __forceinline__ void report(Fault* fault, i64 step, i64 value, i64 row) {
    if (step >= 0) fault->latest = fault->settled / 2 + 1;
    if (atomicCAS(&fault->taken, 0ull, 1ull) == 0ull) {
        fault->step = step < 0 ? ~step : step;
        fault->value = value;
        fault->row = row;
    }
}
// Whether this run has a fault, once all kernels that may report have ended: loaded early and asked late, nobody waits
// for it. Others may settle it meanwhile.
struct Answer {
    u64 looked, settled, latest;
    __device__ __forceinline__ bool bad() const {
        return settled / 2 == looked ? settled % 2 : latest > settled / 2;
    }
};
__device__ __forceinline__ Answer ask(const Fault* fault) {
#ifdef __CUDACC__
    Answer found;  // volatile: a compiler would load it where it is asked
    asm volatile("ld.global.v2.u64 {%0, %1}, [%3];\nld.global.u64 %2, [%3 + 16];"
        : "=l"(found.looked), "=l"(found.settled), "=l"(found.latest) : "l"(&fault->looked));
    return found;
#else
    return {fault->looked, fault->settled, fault->latest};
#endif
}
// What the last kernels to ask do with the answer: the next fault is one of the next run.
__device__ __forceinline__ void settle(Fault* fault, Answer answer) {
    if (is_first_thread()) fault->settled = 2 * answer.looked + answer.bad();
}
