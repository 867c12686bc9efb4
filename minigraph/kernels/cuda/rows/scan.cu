// Running results along the middle axis of [outer, m, inner], each made of a state of two numbers.
//   KIND     RECURRENCE  Out = A * the Out before + B    LOGSUMEXP  log of the sum of e^X    EXTREMUM  the best X so far
//   T        type of X, A and B     C  type computed in    BEST  whether a beats b, for EXTREMUM
//   REVERSE  runs from the end      LAGGED  A of the place before
// rows     inner is 1: a warp takes a row, 32 elements at a time
// columns  a thread takes a column
#define RECURRENCE 0
#define LOGSUMEXP 1
#define EXTREMUM 2

#if KIND == EXTREMUM
struct State {
    C value;
    i64 place;
};
__device__ __forceinline__ bool stays(C a, C b) { return a != a || (b == b && (BEST)); }
__device__ __forceinline__ State combine(State a, State b) { return stays(a.value, b.value) ? a : b; }
#elif KIND == LOGSUMEXP
struct State {  // the sum of e^X is e^value * total
    C value, total;
};
__device__ __forceinline__ State combine(State a, State b) {
    const C most = max_nan(a.value, b.value);
    if (a.value == b.value) return {most, a.total + b.total};
    return a.value < b.value ? State{most, a.total * exp(a.value - most) + b.total}
                             : State{most, a.total + b.total * exp(b.value - most)};
}
#else
struct State {  // Out = value * the Out before + total
    C value, total;
};
__device__ __forceinline__ State combine(State a, State b) {
    return {a.value * b.value, b.value * a.total + b.total};
}
#endif

// The state of one element, the i-th in the order of the scan; `step` leads to the next one.
__device__ __forceinline__ State load(const T* X, const T* B, i64 at, i64 step, i64 i, i64 place) {
#if KIND == EXTREMUM
    return {C(up(X[at])), place};
#elif KIND == LOGSUMEXP
    return {C(up(X[at])), C(1)};
#else
    return {i == 0 ? C(0) : C(up(X[LAGGED ? at - step : at])), C(up(B[at]))};
#endif
}

__device__ __forceinline__ void store(T* out, i64* places, i64 at, State s) {
#if KIND == EXTREMUM
    if (HAS_OUT) out[at] = down<T>(s.value);
    if (HAS_PLACES) places[at] = s.place;
#elif KIND == LOGSUMEXP
    out[at] = down<T>(s.value + log(s.total));
#else
    out[at] = down<T>(s.total);
#endif
}

#ifdef ROWS
template <class V> __device__ __forceinline__ V from_lane(V v, int lane) { return V(__shfl_sync(~0u, v, lane)); }
#if KIND == EXTREMUM
__device__ __forceinline__ State of_lane(State s, int lane) { return {from_lane(s.value, lane), from_lane(s.place, lane)}; }
#else
__device__ __forceinline__ State of_lane(State s, int lane) { return {from_lane(s.value, lane), from_lane(s.total, lane)}; }
#endif

extern "C" __global__ void __launch_bounds__(256) rows(
    const T* __restrict__ X, const T* __restrict__ B, T* out, i64* places, i64 outer, i64 m)
{
    const i64 row = i64(blockIdx.x) * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const bool inside = row < outer;
    const i64 step = REVERSE ? -1 : 1, begin = (inside ? row * m : 0) + (REVERSE ? m - 1 : 0);
    State carry;
    for (i64 done = 0; done < m; done += 32) {
        const i64 i = done + lane;
        const bool active = inside && i < m;
        State s = load(X, B, begin + (active ? i : 0) * step, step, active ? i : 0, REVERSE ? m - 1 - i : i);
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const State before = of_lane(s, lane < far ? lane : lane - far);
            if (lane >= far) s = combine(before, s);
        }
        if (done > 0) s = combine(carry, s);
        carry = of_lane(s, 31);
        if (active) store(out, places, begin + i * step, s);
    }
}
#else
extern "C" __global__ void __launch_bounds__(256) columns(
    const T* __restrict__ X, const T* __restrict__ B, T* out, i64* places, i64 items, i64 m, i64 inner)
{
    const i64 item = i64(blockIdx.x) * 256 + threadIdx.x;
    if (item >= items) return;
    const i64 step = REVERSE ? -inner : inner;
    i64 at = item / inner * m * inner + item % inner + (REVERSE ? (m - 1) * inner : 0);
    State carry;
    for (i64 i = 0; i < m; ++i, at += step) {
        const State s = load(X, B, at, step, i, REVERSE ? m - 1 - i : i);
        carry = i == 0 ? s : combine(carry, s);
        store(out, places, at, carry);
    }
}
#endif
