// Runs CUDA C++ on a CPU: the threads of a block are fibers of one thread, taken up in turn at barriers.
// One block, or the blocks of one cluster, at a time; exited threads no longer count at barriers, as on a GPU. A
// barrier that can never be reached by all aborts.
// What is the same for every kernel is in cuda_host.cpp, compiled once and optimized. This file is small, and declares
// what it needs of C's mathematics by itself: compilers take longer for <cmath> than for most kernels.
#pragma once
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define MATH(name)                           \
    extern "C" double name(double) noexcept; \
    extern "C" float name##f(float) noexcept;
MATH(acos) MATH(acosh) MATH(asin) MATH(asinh) MATH(atan) MATH(atanh) MATH(cosh) MATH(expm1) MATH(lgamma) MATH(log10)
MATH(sinh) MATH(tan) MATH(ceil) MATH(cos) MATH(erf) MATH(erfc) MATH(exp) MATH(exp2) MATH(fabs) MATH(floor) MATH(log) MATH(log1p) MATH(log2)
MATH(rint) MATH(round) MATH(sin) MATH(sqrt) MATH(tanh) MATH(trunc)
#undef MATH
#define MATH(name)                                   \
    extern "C" double name(double, double) noexcept; \
    extern "C" float name##f(float, float) noexcept;
MATH(atan2) MATH(fmax) MATH(fmin) MATH(fmod) MATH(hypot) MATH(nextafter) MATH(pow)
#undef MATH
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
#define OF_FLOATS(name) static inline float name(float x) { return name##f(x); }
OF_FLOATS(exp) OF_FLOATS(floor) OF_FLOATS(log) OF_FLOATS(sqrt) OF_FLOATS(tanh)
#undef OF_FLOATS
using std::abs;

#define __device__
#define __global__
#define __shared__ static
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
template <class X> static inline X __ldcs(const X* x) { return *x; }
template <class X> static inline X __ldcg(const X* x) { return *x; }
template <class X> static inline void __stcg(X* to, X x) { *to = x; }
#define ROUNDED(letter, type)                                                                      \
    static inline type __##letter##add_rn(type a, type b) { return a + b; }                        \
    static inline type __##letter##sub_rn(type a, type b) { return a - b; }                        \
    static inline type __##letter##mul_rn(type a, type b) { return a * b; }                        \
    static inline type __##letter##div_rn(type a, type b) { return a / b; }                        \
    static inline type __##letter##sqrt_rn(type x) { return sqrt(x); }
ROUNDED(f, float)
ROUNDED(d, double)

struct Dim {
    unsigned x = 0, y = 0, z = 0;
};
struct HostThread {
    Dim index, block;
    unsigned number, rank;  // of the thread, and of its block, in the cluster
};
static const int MOST = 4096, CLUSTER_BLOCKS = 8, SHARED = 227 * 1024;
extern HostThread* host_thread;
extern Dim gridDim, blockDim;
#define threadIdx (host_thread->index)
#define blockIdx (host_thread->block)

typedef void HostKernel(const void** arguments);
void run_grid(HostKernel* kernel, const void** arguments, Dim grid, unsigned threads, unsigned cluster);
template <class... P, size_t... N>
static void call(void (*kernel)(P...), const void** args, std::index_sequence<N...>) { kernel(*(std::remove_reference_t<P>*)args[N]...); }
template <class... P> constexpr size_t parameters(void (*)(P...)) { return sizeof...(P); }
#define HOST_ENTRY(name, kernel, cluster)                                                                          \
    extern "C" long parameters_##name() { return parameters(name::kernel); }                                       \
    extern "C" void run_##name(const void** args, unsigned x, unsigned y, unsigned z, unsigned threads) {          \
        constexpr auto& entry = name::kernel;                                                                      \
        run_grid([](const void** a) { call(entry, a, std::make_index_sequence<parameters(entry)>()); }, args,      \
                 {x, y, z}, threads, cluster);                                                                     \
    }

[[noreturn]] void fail(const char* why);
void __syncthreads();
void __syncwarp(unsigned = ~0u);
void cluster_arrive();
void cluster_wait();
void leave();          // let the other threads run; what waits in a loop of these says
extern long progress;  // how often something happened that it may wait for
static inline void __threadfence() {}
unsigned long long word_from_lane(unsigned long long x, unsigned lane);
unsigned __match_any_sync(unsigned, unsigned x);
unsigned __ballot_sync(unsigned, int x);
template <class X> static X from_lane(X x, unsigned lane) {
    static_assert(sizeof(X) <= 8, "");
    unsigned long long word = 0;
    memcpy(&word, &x, sizeof(X));
    word = word_from_lane(word, lane);
    memcpy(&x, &word, sizeof(X));
    return x;
}
static inline unsigned lane_id() { return host_thread->index.x % 32; }
// The last argument cuts a warp into groups of so many lanes.
template <class X> static X __shfl_sync(unsigned, X x, unsigned from, unsigned width = 32) {
    return from_lane(x, lane_id() / width * width + from % width);
}
template <class X> static X __shfl_xor_sync(unsigned, X x, unsigned l, unsigned = 32) {
    return from_lane(x, lane_id() ^ l);
}
template <class X> static X __shfl_up_sync(unsigned, X x, unsigned d, unsigned width = 32) {
    return from_lane(x, lane_id() % width < d ? lane_id() : lane_id() - d);
}
template <class X> static X __shfl_down_sync(unsigned, X x, unsigned d, unsigned width = 32) {
    return from_lane(x, lane_id() % width + d >= width ? lane_id() : lane_id() + d);
}
static inline unsigned __reduce_min_sync(unsigned, unsigned x) {
    for (unsigned l = 16; l > 0; l /= 2) {
        const unsigned other = from_lane(x, lane_id() ^ l);
        x = other < x ? other : x;
    }
    return x;
}
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }

template <class X> static X atomicAdd(X* p, X x) { X old = *p; *p = old + x; return old; }
template <class X> static X atomicCAS(X* p, X expected, X x) { X old = *p; if (old == expected) *p = x; return old; }
template <class X> static X atomicOr(X* p, X x) { X old = *p; *p = old | x; return old; }
template <class X> static X atomicMax(X* p, X x) { X old = *p; if (x > old) *p = x; return old; }
template <class X> static X atomicMin(X* p, X x) { X old = *p; if (x < old) *p = x; return old; }

template <class A, class B> static std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
template <class To, class From> [[gnu::always_inline]] static inline To bits_as(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline float __double2float_rz(double x) {
    const float y = float(x);
    return fabs(double(y)) > fabs(x) ? nextafterf(y, 0.0f) : y;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline float host_expf(float x) { return exp(x); }
static inline float host_logf(float x) { return log(x); }
#define __expf host_expf  // glibc has hidden ones of these names
#define __logf host_logf
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float rsqrt(float x) { return 1 / sqrt(x); }
static inline void sincospi(double x, double* s, double* c) {
    *s = sin(3.14159265358979323846 * x), *c = cos(3.14159265358979323846 * x);
}
double erfinv(double y);
static inline double cospi(double x) { return cos(3.14159265358979323846 * fmod(x, 2)); }
static inline double sinpi(double x) { return x == floor(x) ? 0 : sin(3.14159265358979323846 * fmod(x, 2)); }

static inline unsigned short cvt_rn_f16_f32(float x) { return bits_as<unsigned short>(_Float16(x)); }
static inline unsigned short cvt_rn_bf16_f32(float x) {
    const unsigned u = bits_as<unsigned>(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// mma.sync, ldmatrix and what goes with them
void mma_tf32(float (&c)[4], const unsigned* a, unsigned b0, unsigned b1);
void mma_16(const char* type, float (&c)[4], const unsigned* a, unsigned b0, unsigned b1);
void matrices_on_host(unsigned* x, const unsigned char* tile, int row, bool transposed);
extern unsigned shown[MOST][6];  // registers that lanes show to their warp
// A 16-bit float of `type`, "f16" or "bf16". The exponent of f16 is 112 less than that of float; compilers call a function.
[[gnu::always_inline]] static inline float half_of(const char* type, unsigned x) {
    if (type[0] != 'f') return bits_as<float>(x << 16);
    const unsigned size = (x & 0x7fff) << 13, sign = (x & 0x8000) << 16;
    const float number = size < 0x0f800000 ? bits_as<float>(size) * 0x1p112f : bits_as<float>(size | 0x7f800000);
    return bits_as<float>(sign | bits_as<unsigned>(number));
}
static inline float cvt_f32_f16(unsigned short x) { return half_of("f16", x); }
static inline unsigned two_of(const char* type, float low, float high) {
    if (type[0] == 'f') return cvt_rn_f16_f32(low) | unsigned(cvt_rn_f16_f32(high)) << 16;
    return cvt_rn_bf16_f32(low) | unsigned(cvt_rn_bf16_f32(high)) << 16;
}
#define mma_k8(...) mma_tf32(__VA_ARGS__)
#define mma_k16(...) mma_16(PTX_T, __VA_ARGS__)
#define pack_pair(...) two_of(PTX_T, __VA_ARGS__)
#define load_matrices(...) matrices_on_host(__VA_ARGS__, false)
#define load_transposed(...) matrices_on_host(__VA_ARGS__, true)
static inline void no_load_moves() {}
template <class X> static void copy_or_clear(unsigned char* tile, int place, const X* from, bool copied) {
    constexpr int BYTES = sizeof(X) < 8 ? 16 : sizeof(X);  // a piece of a row, or what is known of a query
    if (copied) memcpy(tile + place, from, BYTES);
    else memset(tile + place, 0, BYTES);
}
static inline void end_of_copies() {}
template <int PENDING> static void wait_for_groups() {}
// 16 bytes to the same place in the shared memory of another block of the cluster.
template <int BLOCKS, class P> static void send(void* place, unsigned rank, const P& v) {
    *(P*)((char*)place + (long(rank) - long(host_thread->rank)) * SHARED) = v;
}
