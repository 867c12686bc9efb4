// Random numbers by Philox4x32-10, laid out as in minigraph/kernels/philox.py: a thread computes the
// block of four words that its four (or, in dropout, eight) consecutive elements are made from.
// Values are computed in double, the products and sums of a uniform number without contraction, so that
// they are the CPU's bits. V elements per access; the size is a multiple of V. Every element is
// written once, dropout also reads each once.

constexpr double WORD = 1.0 / 4294967296.0;

// Write four elements from `at` on, rounded to C and then to T.
__device__ __forceinline__ void store(T* out, u64 at, u64 size, const C (&value)[4])
{
#pragma unroll
    for (int k = 0; k < 4; k += V)
        if (at + k < size) {
            Pack<T, V> pack;
#pragma unroll
            for (int j = 0; j < V; ++j) pack.v[j] = down<T>(value[k + j]);
            *(Pack<T, V>*)(out + at + k) = pack;
        }
}

#define BLOCK                                                         \
    const u64 block = u64(blockIdx.x) * 256 + threadIdx.x;            \
    if (block * 4 >= size) return;                                    \
    const Words w = philox4x32(block, seed, number, *step);

#ifdef FILL
// `largest` replaces values that rounding brought up to the end of the interval.
extern "C" __global__ void __launch_bounds__(256) uniform(
    T* out, u64 size, u64 seed, i64 number, const i64* step, double low, double span, double largest)
{
    BLOCK
    C value[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        value[k] = C(__dadd_rn(low, __dmul_rn(span, w.v[k] * WORD)));
        if (value[k] > C(largest)) value[k] = C(largest);
    }
    store(out, block * 4, size, value);
}

extern "C" __global__ void __launch_bounds__(256) normal(
    T* out, u64 size, u64 seed, i64 number, const i64* step, double mean, double std)
{
    BLOCK
    C value[4];
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        double sine, cosine;
        sincospi(w.v[k + 1] * (2 * WORD), &sine, &cosine);
        const double radius = sqrt(-2 * log((w.v[k] + 1.0) * WORD));
        value[k] = C(__dadd_rn(mean, __dmul_rn(std, radius * cosine)));
        value[k + 1] = C(__dadd_rn(mean, __dmul_rn(std, radius * sine)));
    }
    store(out, block * 4, size, value);
}

// inside: the probability of |z| < 2
extern "C" __global__ void __launch_bounds__(256) truncated(
    T* out, u64 size, u64 seed, i64 number, const i64* step, double mean, double std, double inside)
{
    BLOCK
    C value[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const double z = 1.4142135623730951 * erfinv(2 * inside * ((w.v[k] + 0.5) * WORD - 0.5));
        value[k] = C(__dadd_rn(mean, __dmul_rn(std, z)));
    }
    store(out, block * 4, size, value);
}
#endif

#ifdef BLOCKS
// out = x * scale where the element's word is at least `threshold`, else 0; mask = 1 and 0.
// HAS_OUT and HAS_MASK say which of them are wanted. BLOCKS blocks of words per thread.
extern "C" __global__ void __launch_bounds__(256) dropout(
    const T* x, T* out, unsigned char* mask, u64 size, u64 seed, i64 number, const i64* step,
    u64 threshold, double scale)
{
    constexpr int N = 4 * BLOCKS;
    const u64 thread = u64(blockIdx.x) * 256 + threadIdx.x, first = thread * N;
    if (first >= size) return;
    const i64 at_step = *step;
    const bool none = threshold > 0xffffffffu;
    const C factor = C(scale);
    Pack<T, V> pack[N / V];
#pragma unroll
    for (int k = 0; k < N / V; ++k)  // beyond the end the last one again: no load hangs on a condition
        if (HAS_OUT) pack[k] = *(const Pack<T, V>*)(x + min(first + k * V, size - V));
    bool kept[N];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
        const Words w = philox4x32(thread * BLOCKS + b, seed, number, at_step);
#pragma unroll
        for (int k = 0; k < 4; ++k) kept[4 * b + k] = w.v[k] >= u32(threshold) && !none;
    }
#pragma unroll
    for (int k = 0; k < N / V; ++k) {
        if (first + k * V >= size) break;
        Pack<unsigned char, V> ones;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            ones.v[j] = kept[k * V + j];
            if (HAS_OUT) pack[k].v[j] = down<T>(kept[k * V + j] ? up(pack[k].v[j]) * factor : C(0));
        }
        if (HAS_OUT) *(Pack<T, V>*)(out + first + k * V) = pack[k];
        if (HAS_MASK) *(Pack<unsigned char, V>*)(mask + first + k * V) = ones;
    }
}
#endif
