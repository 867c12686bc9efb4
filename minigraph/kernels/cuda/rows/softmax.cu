// Softmax, its logarithm and their gradients along rows; rows.cuh has the kernels.
//   SOFTMAX           Y = exp(a - max) / sum           a = X
//   LOG_SOFTMAX       Y = a - max - log(sum)
//   SOFTMAX_GRAD      Y = a * (b - sum(a * b))         a = Out, b = Out_grad
//   LOG_SOFTMAX_GRAD  Y = b - exp(a) * sum(b)
#define SOFTMAX 0
#define LOG_SOFTMAX 1
#define SOFTMAX_GRAD 2
#define LOG_SOFTMAX_GRAD 3
#define REDUCES 1
#define WRITES 1
#define ROW_PARAMETERS
#define ROW_ARGUMENTS

struct Row {};
__device__ __forceinline__ Row open_row(const T*, i64, i64, i64) { return {}; }
__device__ __forceinline__ int distance(Row, i64) { return -1; }

#if KIND == SOFTMAX || KIND == LOG_SOFTMAX
#define INPUTS 1
#define FILL_A (-infinity<C>())
#define FILL_B C(0)
typedef Scores State;
__device__ __forceinline__ State empty() { return no_scores(); }
struct Finish {
    C factor, max, logarithm;
};
template <int N> __device__ __forceinline__ void absorb(State& s, C (&a)[N], C (&)[N]) {
    absorb_scores<N, KIND == SOFTMAX>(s, a);
}
__device__ __forceinline__ Finish prepare(State total, State s) {
    return {ratio(s.max, total.max) / total.sum, total.max, log(total.sum)};
}
__device__ __forceinline__ C value(Finish f, Row, C a, C, bool) {
    return KIND == SOFTMAX ? a * f.factor : (a - f.max) - f.logarithm;
}
#else
#define INPUTS 2
#define FILL_A C(0)
#define FILL_B C(0)
struct State {
    C sum;
};
__device__ __forceinline__ State empty() { return {C(0)}; }
__device__ __forceinline__ State merge(State s, State t) { return {s.sum + t.sum}; }
__device__ __forceinline__ State from_lane(State s, int lanes) { return {C(__shfl_xor_sync(~0u, s.sum, lanes))}; }
template <int N> __device__ __forceinline__ void absorb(State& s, C (&a)[N], C (&b)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) s.sum += KIND == SOFTMAX_GRAD ? a[i] * b[i] : b[i];
}
struct Finish {
    C sum;
};
__device__ __forceinline__ Finish prepare(State total, State) { return {total.sum}; }
__device__ __forceinline__ C value(Finish f, Row, C a, C b, bool) {
    return KIND == SOFTMAX_GRAD ? a * (b - f.sum) : b - exponential(a) * f.sum;
}
#endif
__device__ __forceinline__ void close_row(Row, State, i64) {}
