// What every kernel on a CPU shares: threads as fibers, barriers, warps and their matrix products (see cuda_host.h).
#include "cuda_host.h"

#include <cstdio>
#include <ucontext.h>

struct Barrier {
    int alive = 0, waiting = 0;
    unsigned generation = 0;
    void release() {
        if (alive == 0 || waiting < alive) return;
        waiting = 0;
        ++generation;
    }
};
typedef void* Place[5];  // for the compiler's own jumps, which need no system call and save only what is in use
struct Fiber : HostThread {
    Place place;
    bool done, begun;
};

static const int STACK = 256 * 1024;
static Fiber fibers[MOST];
static Place scheduler;
static Barrier cluster_barrier, block_barriers[CLUSTER_BLOCKS], warp_barriers[MOST / 32];
static unsigned long long lanes[2][MOST];
long progress;
static HostKernel* kernel;
static const void** arguments;
HostThread* host_thread;
Dim gridDim, blockDim;

void fail(const char* why) { fprintf(stderr, "%s\n", why), abort(); }
static Fiber* running() { return static_cast<Fiber*>(host_thread); }
// A function that jumps is not the one to which it jumps.
[[noreturn, gnu::noinline]] static void jump(Place& place) { __builtin_longjmp(place, 1); }
[[gnu::noinline]] void leave() {
    if (!__builtin_setjmp(running()->place)) jump(scheduler);
}
static void meet(Barrier& b) {
    const unsigned generation = b.generation;
    ++b.waiting;
    ++progress;
    b.release();
    while (b.generation == generation) leave();
}
static void fiber_main() {
    for (;;) {  // one thread of every block
        kernel(arguments);
        running()->done = true;
        ++progress;
        for (Barrier* b : {&cluster_barrier, block_barriers + host_thread->rank, warp_barriers + host_thread->number / 32})
            --b->alive, b->release();
        leave();
    }
}
[[gnu::noinline]] static void enter(Fiber& f) {
    host_thread = &f;
    if (__builtin_setjmp(scheduler)) return;
    if (f.begun) jump(f.place);
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
        if (progress == before) fail("threads wait at different barriers");
    }
}
void run_grid(HostKernel* one, const void** args, Dim grid, unsigned threads, unsigned cluster) {
    kernel = one, arguments = args, gridDim = grid, blockDim = {threads, 1, 1};
    Dim first;
    for (first.z = 0; first.z < grid.z; ++first.z)
        for (first.y = 0; first.y < grid.y; ++first.y)
            for (first.x = 0; first.x < grid.x; first.x += cluster) run_cluster(first, cluster);
}

static Barrier& warp() { return warp_barriers[host_thread->number / 32]; }
void __syncthreads() { meet(block_barriers[host_thread->rank]); }
void __syncwarp(unsigned) { meet(warp()); }
void cluster_arrive() { meet(cluster_barrier); }
void cluster_wait() { meet(cluster_barrier); }
// What the lanes of a warp show each other: the place changes with each meeting, so who is behind still reads what was
// shown before it.
static const unsigned long long* shown_words(unsigned long long mine) {
    unsigned long long* words = lanes[warp().generation % 2];
    words[host_thread->number] = mine;
    meet(warp());
    return words + host_thread->number / 32 * 32;
}
unsigned long long word_from_lane(unsigned long long x, unsigned lane) { return shown_words(x)[lane]; }
template <class Fact> static unsigned lanes_where(const Fact& fact) {
    unsigned mask = 0;
    for (unsigned l = 0; l < 32; ++l)
        if (!fibers[host_thread->number / 32 * 32 + l].done && fact(l)) mask |= 1u << l;
    meet(warp());  // nobody ends before all have looked
    return mask;
}
unsigned __match_any_sync(unsigned, unsigned x) {
    const unsigned long long* words = shown_words(x);
    return lanes_where([&](unsigned l) { return unsigned(words[l]) == x; });
}
unsigned __ballot_sync(unsigned, int x) {
    const unsigned long long* words = shown_words(x != 0);
    return lanes_where([&](unsigned l) { return words[l] != 0; });
}

double erfinv(double y) {
    double x = 0;
    for (int i = 0; i < 60; ++i) x -= (erf(x) - y) * sqrt(3.14159265358979323846) / 2 * exp(x * x);
    return x;
}

unsigned shown[MOST][6];
// What a register holds, one TF32 number or two 16-bit floats of `type`; a product of two such numbers is exact in double.
template <int K> static void numbers_of(double* numbers, const char* type, unsigned x) {
    if (K == 8) numbers[0] = bits_as<float>(x & 0xffffe000u);  // the rest is not read
    else numbers[0] = half_of(type, x & 0xffff), numbers[1] = half_of(type, x >> 16);
}
// 2 ^ exponent. Sums of products of floats are far from the ends of double, so their bits do what ldexp and ilogb do.
static double power_of_2(int exponent) { return bits_as<double>((unsigned long long)(1023 + exponent) << 52); }
// As tensor cores add: of each term is cut off what lies below 2^-25 of the largest one's power of 2, and of the sum what
// float has no bits for.
template <int COUNT> static float cut_sum(const double (&terms)[COUNT]) {
    double largest = 0, sum = 0;
    for (double term : terms) {
        const double size = fabs(term);
        largest = size > largest ? size : largest, sum += term;
    }
    if (!(fabs(sum) <= 3e38) || largest == 0) return float(sum);
    const int exponent = int(bits_as<unsigned long long>(largest) >> 52) - 1023 - 25;
    const double per_unit = power_of_2(-exponent);
    int units = 0;  // of the 2^26 that a term may have
    for (double term : terms) units += int(term * per_unit);
    return __double2float_rz(units * power_of_2(exponent));
}
template <int K>
static void mma_on_host(const char* type, float (&c)[4], const unsigned* a, unsigned b0, unsigned b1) {
    constexpr int EACH = K / 8;  // numbers of a register
    static double held[2][MOST][6 * EACH];
    const unsigned first = host_thread->number / 32 * 32, g = lane_id() / 4, t = lane_id() % 4;
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    auto& lanes = held[warp().generation % 2];
    for (int r = 0; r < 6; ++r) numbers_of<K>(lanes[host_thread->number] + r * EACH, type, mine[r]);
    meet(warp());
    for (int e = 0; e < 4; ++e) {
        double terms[8 * EACH + 1];
        terms[8 * EACH] = c[e];
        for (int r = 0; r < 8; ++r) {  // registers of a row of A, of a column of B
            const double* x = lanes[first + 4 * g + r % 4] + (r / 4 * 2 + e / 2) * EACH;
            const double* y = lanes[first + 4 * (2 * t + e % 2) + r % 4] + (4 + r / 4) * EACH;
            for (int i = 0; i < EACH; ++i) terms[r * EACH + i] = x[i] * y[i];
        }
        c[e] = cut_sum(terms);
    }
}
void matrices_on_host(unsigned* x, const unsigned char* tile, int row, bool transposed) {
    const unsigned first = host_thread->number / 32 * 32, g = lane_id() / 4, t = lane_id() % 4;
    static const unsigned char* shown[MOST];
    shown[host_thread->number] = tile + row;
    meet(warp());
    for (unsigned i = 0; i < 4; ++i) {
        unsigned short two[2];
        for (unsigned e = 0; e < 2; ++e) {
            const unsigned r = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
            memcpy(&two[e], shown[first + 8 * i + r] + 2 * column, 2);
        }
        x[i] = two[0] | unsigned(two[1]) << 16;
    }
    meet(warp());  // nobody overwrites a tile before all have read
}
void mma_tf32(float (&c)[4], const unsigned* a, unsigned b0, unsigned b1) { mma_on_host<8>("", c, a, b0, b1); }
void mma_16(const char* type, float (&c)[4], const unsigned* a, unsigned b0, unsigned b1) {
    mma_on_host<16>(type, c, a, b0, b1);
}
