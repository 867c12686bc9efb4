// Cross entropy of scores along rows; rows.cuh has the kernels. L is the type of class numbers.
//   HARD       Loss = log(sum) + max - a[label], 0 in ignored rows; Y = exp(a - max) / sum     a = Logits
//   SOFT       Loss = sum of b * (log(sum) + max - a)                                           b = Label
//   HARD_GRAD  Y = (a - [i == label]) * Loss_grad, 0 in ignored rows                            a = Softmax
//   SOFT_GRAD  Y = (a * sum(b) - b) * Loss_grad
// A label that is no class and not ignored is reported, and its row ignored.
#define HARD 0
#define SOFT 1
#define HARD_GRAD 2
#define SOFT_GRAD 3
#define ROW_PARAMETERS , const L *Label, T *Loss, i64 ignored, Fault *fault, i64 step
#define ROW_ARGUMENTS , Label, Loss, ignored, fault, step
#define FILL_B C(0)

struct Row {
    i64 label;  // -1 in ignored rows
    C number;   // the score of the row's own class, or Loss_grad
};

__device__ __forceinline__ Row open_row(const T* x, i64 row, i64 n, i64 stride ROW_PARAMETERS) {
#if KIND == SOFT
    return {0, C(0)};
#elif KIND == SOFT_GRAD
    return {0, C(up(Loss[row]))};
#else
    look(fault);
    i64 label = i64(Label[row]);
    if (label == ignored)
        label = -1;
    else if (label < 0 || label >= n) {
        report(fault, step, label, row);
        label = -1;
    }
    return {label, C(KIND == HARD_GRAD ? up(Loss[row]) : label < 0 ? C(0) : C(up(x[label * stride])))};
#endif
}

#if KIND == HARD
#define INPUTS 1
#define REDUCES 1
#define FILL_A (-infinity<C>())
typedef Scores State;
__device__ __forceinline__ State empty() { return no_scores(); }
template <int N> __device__ __forceinline__ void absorb(State& s, C (&a)[N], C (&)[N]) { absorb_scores<N, true>(s, a); }
__device__ __forceinline__ Scores scores(State s) { return s; }
#elif KIND == SOFT
#define INPUTS 2
#define REDUCES 1
#define FILL_A (-infinity<C>())
struct State {
    Scores scores;
    C weight, dot;  // sums of Label and of Label * (score - base(max)); a class of weight 0 may have the score -inf
};
__device__ __forceinline__ State empty() { return {no_scores(), C(0), C(0)}; }
template <int N> __device__ __forceinline__ void absorb(State& s, C (&a)[N], C (&b)[N]) {
    C top = s.scores.max, weight = C(0), dot = C(0);
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmax(top, a[i]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        weight += b[i];
        if (b[i] != C(0)) dot += b[i] * (a[i] - base(top));
    }
    s.dot = s.dot + s.weight * (base(s.scores.max) - base(top)) + dot;
    s.weight += weight;
    absorb_scores<N, true>(s.scores, a);
}
__device__ __forceinline__ State merge(State s, State t) {
    const bool first = s.scores.max >= t.scores.max;
    const State large = first ? s : t, small = first ? t : s;
    const C moved = small.dot + small.weight * (base(small.scores.max) - base(large.scores.max));
    return {merge(s.scores, t.scores), s.weight + t.weight, large.dot + moved};
}
__device__ __forceinline__ State from_lane(State s, int lanes) {
    return {
        from_lane(s.scores, lanes), C(__shfl_xor_sync(~0u, s.weight, lanes)), C(__shfl_xor_sync(~0u, s.dot, lanes))
    };
}
__device__ __forceinline__ Scores scores(State s) { return s.scores; }
#else
#define FILL_A C(0)
struct State {
    C sum;
};
__device__ __forceinline__ State empty() { return {C(0)}; }
__device__ __forceinline__ State merge(State s, State t) { return {s.sum + t.sum}; }
__device__ __forceinline__ State from_lane(State s, int lanes) { return {C(__shfl_xor_sync(~0u, s.sum, lanes))}; }
#if KIND == SOFT_GRAD
#define INPUTS 2
#define REDUCES 1
#else
#define INPUTS 1
#define REDUCES 0
#endif
template <int N> __device__ __forceinline__ void absorb(State& s, C (&)[N], C (&b)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) s.sum += b[i];
}
#endif

__device__ __forceinline__ int distance(Row r, i64 i) {
    const i64 d = r.label - i;
    return d >= 0 && d < WIDTH ? int(d) : -1;
}
struct Finish {
    C factor;
};
__device__ __forceinline__ Finish prepare(State total, State s) {
#if KIND == HARD || KIND == SOFT
    return {ratio(scores(s).max, scores(total).max) / scores(total).sum};
#else
    return {total.sum};
#endif
}
__device__ __forceinline__ C value(Finish f, Row r, C a, C b, bool own) {
#if KIND == HARD || KIND == SOFT
    return a * f.factor;
#elif KIND == SOFT_GRAD
    return (a * f.factor - b) * r.number;
#else
    return r.label < 0 ? C(0) : (own ? a - C(1) : a) * r.number;
#endif
}
__device__ __forceinline__ void close_row(Row r, State total, i64 row ROW_PARAMETERS) {
#if LOSS && KIND == HARD
    Loss[row] = down<T>(r.label < 0 ? C(0) : log(total.sum) - (r.number - total.max));
#elif LOSS && KIND == SOFT
    Loss[row] = down<T>(log(total.scores.sum) * total.weight - total.dot);
#endif
}
