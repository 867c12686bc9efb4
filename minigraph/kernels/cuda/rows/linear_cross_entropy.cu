// Cross entropy of scores with its gradient in their place: Z[rows, n], a block for each row. Of a row's scores a:
//   z = a, CAPPED: CAP * tanh(a / CAP)        lse = log(sum of exp(z))       p = exp(z - lse)
//   Loss = lse - (1 - SMOOTHING) * z[label] - SMOOTHING * mean(z) + SQUARE * lse^2
//   Z = (p * (1 + 2 * SQUARE * lse) - (1 - SMOOTHING) * [i == label] - SMOOTHING / n) * dz/da * DLoss
// Ignored rows have 0. SQUARED: Square = lse^2, of ignored rows too; SQUARE_SEEDED: its gradient p * 2 * lse * DSquare is
// added. TOKEN_SCALED: Loss and its gradient times p[label]. Moved: a row comes from memory once and goes back once (WRITES). Between, its first `kept` packs
// stay in shared memory; the others are read again while they are still in L2, last ones first.
// L, S and Q are the types of labels, DLoss and DSquare. A label that is no class is reported with its row among those of all
// chunks, of which `first` is this one's first.
struct State {
    Scores scores;
    C sum;      // of the scores, SMOOTH
    C top;      // ARGMAX: the first of the largest scores; NaN is larger than all others, as in NumPy
    int place;  // where it stands
};
__device__ __forceinline__ bool precedes(C x, int i, C y, int j) {
    if (x != x || y != y) return x != x && (y == y || i < j);
    return x > y || (x == y && i < j);
}
__device__ __forceinline__ State merge(State s, State t) {
    const bool other = ARGMAX && precedes(t.top, t.place, s.top, s.place);
    return {
        merge(s.scores, t.scores), SMOOTH ? s.sum + t.sum : C(0), other ? t.top : s.top, other ? t.place : s.place
    };
}
__device__ __forceinline__ State over_warp(State s) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        State t = s;
        t.scores = from_lane(s.scores, lanes);
        if (SMOOTH) t.sum = __shfl_xor_sync(~0u, s.sum, lanes);
        if (ARGMAX) {
            t.top = __shfl_xor_sync(~0u, s.top, lanes);
            t.place = __shfl_xor_sync(~0u, s.place, lanes);
        }
        s = merge(s, t);
    }
    return s;
}
__device__ __forceinline__ C capped(C a) { return CAPPED ? CAP * tanh(a / CAP) : a; }

// What makes gradients of scores: of exp(z - max), and of every class alike.
struct Finish {
    C max, factor, even;
};
__device__ __forceinline__ C gradient(Finish f, C a) {
    if (!CAPPED) return exponential(a - f.max) * f.factor - f.even;
    const C t = tanh(a / CAP);
    return (exponential(CAP * t - f.max) * f.factor - f.even) * (C(1) - t * t);
}
typedef Pack<T, WIDTH> Scored;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) loss_and_gradient(
    T* Z, i64 n, i64 kept, const L* Label, const S* DLoss, const Q* DSquare, C* Loss, C* ZLoss, i64* Prediction, C* Square,
    i64 ignored, i64 first, Fault* fault, i64 step
) {
    extern __shared__ uint4 memory[];
    __shared__ State warps[THREADS / 32];
    Scored *shelf = (Scored*)memory, *row = (Scored*)(Z + blockIdx.x * n);
    const i64 count = n / WIDTH;
    look(fault);
    i64 label = i64(Label[blockIdx.x]);
    if (label == ignored)
        label = -1;
    else if (label < 0 || label >= n) {
        if (threadIdx.x == 0) report(fault, step, label, first + blockIdx.x);
        label = -1;
    }
    const bool counts = label >= 0;
    const C own = counts ? C(up(Z[blockIdx.x * n + label])) : C(0);

    State s = {no_scores(), C(0), -infinity<C>(), 0x7fffffff};
    for (i64 k = threadIdx.x; k < (counts || ARGMAX || SQUARED || SQUARE_SEEDED ? count : 0); k += UNROLL * THREADS) {
        Scored p[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * THREADS < count) p[u] = row[k + u * THREADS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k + u * THREADS;
            if (at >= count) break;
            if (WRITES && at < kept) shelf[at] = p[u];
            C z[WIDTH];
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                z[v] = capped(up(p[u].v[v]));
                if (SMOOTH) s.sum += z[v];
                if (ARGMAX && precedes(z[v], int(at * WIDTH + v), s.top, s.place)) {
                    s.top = z[v];
                    s.place = int(at * WIDTH + v);
                }
            }
            absorb_scores<WIDTH, false>(s.scores, z);
        }
    }
    s = over_warp(s);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
    __syncthreads();
    s = warps[threadIdx.x % 32 < THREADS / 32 ? threadIdx.x % 32 : 0];
    if (threadIdx.x % 32 >= THREADS / 32) s = {no_scores(), C(0), -infinity<C>(), 0x7fffffff};
    s = over_warp(s);

    const C log_sum = log(s.scores.sum), lse = log_sum + s.scores.max;
    const C scaling = TOKEN_SCALED ? exponential(capped(own) - s.scores.max) / s.scores.sum : C(1);
    const C square = SQUARE * lse * lse * scaling;
    if (threadIdx.x == 0) {
        C loss = log_sum - (C(1) - SMOOTHING) * (capped(own) - s.scores.max);
        if (SMOOTH) loss -= SMOOTHING * (s.sum / C(n) - s.scores.max);
        loss = loss * scaling + square;
        if (LOSS) Loss[blockIdx.x] = counts ? loss : C(0);
        if (Z_LOSS) ZLoss[blockIdx.x] = counts ? square : C(0);
        if (ARGMAX) Prediction[blockIdx.x] = s.place;
        if (SQUARED) Square[blockIdx.x] = lse * lse;
    }
#if WRITES
#if SQUARE_SEEDED
    const C to_lse = C(2) * lse * up(DSquare[blockIdx.x]);
    const bool used = counts || up(DSquare[blockIdx.x]) != C(0);
#else
    const C to_lse = C(0);
    const bool used = counts;
#endif
    if (!used) {
        Scored zero;
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) zero.v[v] = down<T>(C(0));
        for (i64 k = threadIdx.x; k < count; k += THREADS) row[k] = zero;
        return;
    }
#if SEEDED
    const C seed = counts ? C(up(DLoss[blockIdx.x])) * scaling : C(0);
#else
    const C seed = counts ? scaling : C(0);
#endif
    const Finish f = {
        s.scores.max, (seed * (C(1) + C(2) * SQUARE * lse) + to_lse) / s.scores.sum,
        SMOOTH ? seed * SMOOTHING / C(n) : C(0)
    };
    for (i64 k = count - 1 - threadIdx.x; k >= 0; k -= UNROLL * THREADS) {
        Scored p[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k - u * THREADS;
            if (at >= 0) p[u] = at < kept ? shelf[at] : row[at];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k - u * THREADS;
            if (at < 0) break;
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) p[u].v[v] = down<T>(gradient(f, up(p[u].v[v])));
            row[at] = p[u];
        }
    }
    __syncthreads();  // the row's own class once more
    if (threadIdx.x == 0 && counts) {
        C slope = C(1);
        if (CAPPED) {
            const C t = tanh(own / CAP);
            slope = C(1) - t * t;
        }
        Z[blockIdx.x * n + label] = down<T>(gradient(f, own) - seed * (C(1) - SMOOTHING) * slope);
    }
#endif
}
