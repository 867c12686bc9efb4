// Runs CUDA C++ on a CPU: the threads of a block are fibers of one thread, taken up in turn at barriers.
// One block, or the blocks of one cluster, at a time; exited threads no longer count at barriers, as on a GPU. A
// barrier that can never be reached by all aborts.
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <utility>

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
    static inline type __##letter##sqrt_rn(type x) { return std::sqrt(x); }
ROUNDED(f, float)
ROUNDED(d, double)

struct Dim {
    unsigned x = 0, y = 0, z = 0;
};
struct Barrier {
    int alive = 0, waiting = 0;
    unsigned generation = 0;
    void release() {
        if (alive == 0 || waiting < alive) return;
        waiting = 0;
        ++generation;
    }
};
struct Fiber {
    jmp_buf place;  // switching by jumps needs no system call, only the first entry does
    Dim index, block;
    unsigned number, rank;  // of the thread, and of its block, in the cluster
    bool done, begun;
};

static const int MOST = 4096, STACK = 256 * 1024, CLUSTER_BLOCKS = 8, SHARED = 227 * 1024;
static Fiber fibers[MOST], *fiber;
static jmp_buf scheduler;
static Barrier cluster_barrier, block_barriers[CLUSTER_BLOCKS], warp_barriers[MOST / 32];
static unsigned long long lanes[MOST];
static Dim gridDim, blockDim;
static long progress;
#define threadIdx (fiber->index)
#define blockIdx (fiber->block)

static void leave() {
    if (!_setjmp(fiber->place)) _longjmp(scheduler, 1);
}
static void meet(Barrier& b) {
    const unsigned generation = b.generation;
    ++b.waiting;
    ++progress;
    b.release();
    while (b.generation == generation) leave();
}
static void (*run_thread)(const void**);
static const void** arguments;
static void fiber_main() {
    for (;;) {  // one thread of every block
        run_thread(arguments);
        fiber->done = true;
        ++progress;
        for (Barrier* b : {&cluster_barrier, block_barriers + fiber->rank, warp_barriers + fiber->number / 32})
            --b->alive, b->release();
        leave();
    }
}
static void enter(Fiber& f) {
    fiber = &f;
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.place, 1);
    f.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = malloc(STACK);
    context.uc_stack.ss_size = STACK;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
}
static void run_cluster(Dim first, int blocks) {  // blocks are neighbours along x
    const int size = blockDim.x, whole = (size + 31) / 32 * 32;
    cluster_barrier = Barrier();
    for (Barrier& b : block_barriers) b = Barrier();
    for (Barrier& b : warp_barriers) b = Barrier();
    for (int k = 0; k < blocks * whole; ++k) {
        Fiber& f = fibers[k];
        f.number = k, f.rank = k / whole, f.index.x = k % whole, f.block = first, f.block.x += f.rank;
        f.done = k % whole >= size;
        if (f.done) continue;
        for (Barrier* b : {&cluster_barrier, block_barriers + f.rank, warp_barriers + k / 32}) ++b->alive;
    }
    for (unsigned round = first.x; cluster_barrier.alive; ++round) {  // in turn from either end: no order is the rule
        const long before = progress;
        for (int k = 0; k < blocks * whole; ++k) {
            Fiber& f = fibers[round % 2 ? blocks * whole - 1 - k : k];
            if (!f.done) enter(f);
        }
        if (progress == before) fprintf(stderr, "threads wait at different barriers\n"), abort();
    }
}
template <class... P, size_t... N>
static void call(void (*kernel)(P...), const void** args, std::index_sequence<N...>) { kernel(*(P*)args[N]...); }
template <class... P> constexpr size_t parameters(void (*)(P...)) { return sizeof...(P); }
#define HOST_ENTRY(kernel, cluster)                                                                               \
    extern "C" long host_parameters() { return parameters(kernel); }                                              \
    extern "C" void host_run(const void** args, unsigned x, unsigned y, unsigned z, unsigned threads) {           \
        run_thread = [](const void** a) { call(kernel, a, std::make_index_sequence<parameters(kernel)>()); };     \
        arguments = args;                                                                                         \
        gridDim.x = x, gridDim.y = y, gridDim.z = z, blockDim.x = threads, blockDim.y = blockDim.z = 1;            \
        Dim first;                                                                                                \
        for (first.z = 0; first.z < z; ++first.z)                                                                 \
            for (first.y = 0; first.y < y; ++first.y)                                                             \
                for (first.x = 0; first.x < x; first.x += cluster) run_cluster(first, cluster);                   \
    }

static inline void __syncthreads() { meet(block_barriers[fiber->rank]); }
static inline void cluster_arrive() { meet(cluster_barrier); }
static inline void cluster_wait() { meet(cluster_barrier); }
static inline Barrier& warp() { return warp_barriers[fiber->number / 32]; }
static inline void __syncwarp(unsigned = ~0u) { meet(warp()); }
static inline void __threadfence() {}
template <class X> static X from_lane(X x, unsigned lane) {
    static_assert(sizeof(X) <= 8, "");
    memcpy(&lanes[fiber->number], &x, sizeof(X));
    meet(warp());
    X y;
    memcpy(&y, &lanes[fiber->number / 32 * 32 + lane], sizeof(X));
    meet(warp());
    return y;
}
static inline unsigned lane_id() { return fiber->index.x % 32; }
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
static inline unsigned __match_any_sync(unsigned, unsigned x) {
    lanes[fiber->number] = x;
    meet(warp());
    unsigned mask = 0;
    const unsigned first = fiber->number / 32 * 32;
    for (unsigned l = 0; l < 32; ++l)
        if (!fibers[first + l].done && unsigned(lanes[first + l]) == x) mask |= 1u << l;
    meet(warp());
    return mask;
}
static inline unsigned __reduce_min_sync(unsigned, unsigned x) {
    for (unsigned l = 16; l > 0; l /= 2) {
        const unsigned other = from_lane(x, lane_id() ^ l);
        x = other < x ? other : x;
    }
    return x;
}
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
static inline unsigned __ballot_sync(unsigned, int x) {
    lanes[fiber->number] = x != 0;
    meet(warp());
    unsigned mask = 0;
    const unsigned first = fiber->number / 32 * 32;
    for (unsigned l = 0; l < 32; ++l)
        if (!fibers[first + l].done && lanes[first + l]) mask |= 1u << l;
    meet(warp());
    return mask;
}

template <class X> static X atomicAdd(X* p, X x) { X old = *p; *p = old + x; return old; }
template <class X> static X atomicCAS(X* p, X expected, X x) { X old = *p; if (old == expected) *p = x; return old; }
template <class X> static X atomicOr(X* p, X x) { X old = *p; *p = old | x; return old; }
template <class X> static X atomicMax(X* p, X x) { X old = *p; if (x > old) *p = x; return old; }
template <class X> static X atomicMin(X* p, X x) { X old = *p; if (x < old) *p = x; return old; }

template <class A, class B> static std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> static std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
template <class To, class From> static To bits_as(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline float __double2float_rz(double x) {
    const float y = float(x);
    return std::fabs(double(y)) > std::fabs(x) ? std::nextafter(y, 0.0f) : y;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline float host_expf(float x) { return std::exp(x); }
static inline float host_logf(float x) { return std::log(x); }
#define __expf host_expf  // glibc has hidden ones of these names
#define __logf host_logf
static inline double rsqrt(double x) { return 1 / std::sqrt(x); }
static inline float rsqrt(float x) { return 1 / std::sqrt(x); }
using std::abs;
using std::exp;
using std::floor;
using std::log;
using std::sqrt;
using std::tanh;
static inline void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x), *c = cos(M_PI * x); }
static inline double erfinv(double y) {
    double x = 0;
    for (int i = 0; i < 60; ++i) x -= (erf(x) - y) * std::sqrt(M_PI) / 2 * exp(x * x);
    return x;
}

static inline float cvt_f32_f16(unsigned short x) { return float(bits_as<_Float16>(x)); }
static inline unsigned short cvt_rn_f16_f32(float x) { return bits_as<unsigned short>(_Float16(x)); }
static inline unsigned short cvt_rn_bf16_f32(float x) {
    const unsigned u = bits_as<unsigned>(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// mma.sync, ldmatrix and what goes with them: each lane shows its registers to its warp.
static unsigned shown[MOST][6];
static const unsigned char* rows_shown[MOST];
static inline float tf32_of(unsigned x) { return bits_as<float>(x & 0xffffe000u); }  // the rest is not read
static inline float half_of(const char* type, unsigned x) {
    return type[0] == 'f' ? float(bits_as<_Float16>((unsigned short)x)) : bits_as<float>(x << 16);
}
static inline unsigned two_of(const char* type, float low, float high) {
    if (type[0] == 'f') return cvt_rn_f16_f32(low) | unsigned(cvt_rn_f16_f32(high)) << 16;
    return cvt_rn_bf16_f32(low) | unsigned(cvt_rn_bf16_f32(high)) << 16;
}
// K 8: a register is one TF32 number; K 16: two 16-bit floats of `type`.
template <int K>
static void mma_on_host(const char* type, float (&c)[4], const unsigned* a, unsigned b0, unsigned b1) {
    const unsigned first = fiber->number / 32 * 32, g = lane_id() / 4, t = lane_id() % 4;
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(shown[fiber->number], mine, sizeof mine);
    meet(warp());
    for (int e = 0; e < 4; ++e) {
        double sum = c[e];
        for (int r = 0; r < 8; ++r) {  // registers of a row of A, of a column of B
            const unsigned x = shown[first + 4 * g + r % 4][r / 4 * 2 + e / 2];
            const unsigned y = shown[first + 4 * (2 * t + e % 2) + r % 4][4 + r / 4];
            if (K == 8) sum += double(tf32_of(x)) * tf32_of(y);
            else
                for (int shift = 0; shift < 32; shift += 16)
                    sum += double(half_of(type, x >> shift & 0xffff)) * half_of(type, y >> shift & 0xffff);
        }
        c[e] = float(sum);
    }
    meet(warp());
}
static void matrices_on_host(unsigned* x, const unsigned char* tile, int row, bool transposed) {
    const unsigned first = fiber->number / 32 * 32, g = lane_id() / 4, t = lane_id() % 4;
    rows_shown[fiber->number] = tile + row;
    meet(warp());
    for (unsigned i = 0; i < 4; ++i) {
        unsigned short two[2];
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned r = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
            memcpy(&two[e], rows_shown[first + 8 * i + r] + 2 * column, 2);
        }
        x[i] = two[0] | unsigned(two[1]) << 16;
    }
    meet(warp());
}
#define mma_k8(...) mma_on_host<8>("", __VA_ARGS__)
#define mma_k16(...) mma_on_host<16>(PTX_T, __VA_ARGS__)
#define pack_pair(...) two_of(PTX_T, __VA_ARGS__)
#define load_matrices(...) matrices_on_host(__VA_ARGS__, false)
#define load_transposed(...) matrices_on_host(__VA_ARGS__, true)
static inline void no_load_moves() {}
template <class X> static void copy_or_clear(unsigned char* tile, int place, const X* from, bool copied) {
    constexpr int BYTES = std::is_same<X, float2>::value ? 8 : 16;
    if (copied) memcpy(tile + place, from, BYTES);
    else memset(tile + place, 0, BYTES);
}

static inline void end_of_copies() {}
template <int PENDING> static void wait_for_groups() {}
// 16 bytes to the same place in the shared memory of another block of the cluster.
template <int BLOCKS, class P> static void send(void* place, unsigned rank, const P& v) {
    *(P*)((char*)place + (long(rank) - long(fiber->rank)) * SHARED) = v;
}
