// The log-sum-exp of scores: their largest one, and the sum of exp(score - largest).
// Powers of e in float of x <= 0, exact at 0: 2^h, where h is x * log2(e) rounded. That leaves up to |x| 2^-24 of x out,
// which results of 16 bits do not show; others get it back to the first order, and are then within 5e-7 of themselves.
struct Scores {
    C max, sum;
};
__device__ __forceinline__ float exponential(float x) {
    if (sizeof(T) < 4) return power_of_two(x * 1.4426950408889634f);
    const float finite = max_nan(x, -128.0f), h = finite * 1.4426950408889634f;  // e^-128 is 0 as well
    const float power = power_of_two(h);
    return fmaf(power, fmaf(h, -0.6931471805599453f, finite), power);
}
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ Scores no_scores() { return {-infinity<C>(), C(0)}; }
// exp(max - top), also where both are infinite.
__device__ __forceinline__ C ratio(C max, C top) { return max == top ? C(1) : exponential(max - top); }
// What scores are measured from: the largest one; 0 where it is -inf, which has no distance to itself.
__device__ __forceinline__ C base(C max) { return max == -infinity<C>() ? C(0) : max; }
// N more scores; KEEP leaves exp(score - base(s.max)) in `a`. NaN is no maximum, but it reaches the sum.
template <int N, bool KEEP> __device__ __forceinline__ void absorb_scores(Scores& s, C (&a)[N]) {
    C top = s.max, sum = C(0);
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmax(top, a[i]);
    const C from = base(top);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const C e = exponential(a[i] - from);
        sum += e;
        if (KEEP) a[i] = e;
    }
    s.sum = s.sum * ratio(s.max, top) + sum;
    s.max = top;
}
__device__ __forceinline__ Scores merge(Scores s, Scores t) {
    const bool first = s.max >= t.max;
    const Scores large = first ? s : t, small = first ? t : s;
    return {large.max, large.sum + small.sum * ratio(small.max, large.max)};
}
__device__ __forceinline__ Scores from_lane(Scores s, int lanes) {
    return {C(__shfl_xor_sync(~0u, s.max, lanes)), C(__shfl_xor_sync(~0u, s.sum, lanes))};
}
