// The update of all tensors of a list: one pass over parameter, gradient and states, 16 bytes of a state
// per access. T is the parameter's type, G the gradient's, C that of states and arithmetic, L the rate's.
// Columns: 0 parameter, 1 gradient, 2... states, the last one the float32 parameter where MASTER is defined. With ROWS
// two numbers follow: elements of a row of a gradient that is part of a larger array, else 0, and those between two rows.
// Bytes moved: each column read and written once, but the gradient only read, and with MASTER the
// parameter only written. The arithmetic `step` and the `numbers` of a step come from kernels/updates.py.

#ifdef UPDATE
#ifdef ROWS
#define STATES (COLUMNS - 4)
#else
#define STATES (COLUMNS - 2)
#endif
#define VARIABLES (STATES + 1 - PAIR)  // what step() changes: parameter and states
#ifdef MASTER
#define PAIR 1
#else
#define PAIR 0
#endif

template <int V> __device__ __forceinline__ Answer update_pack(
    T* param, const G* grad, C* const* states, const C* k, const C scale, const C decay, const Fault* fault)
{
    C g[V], x[VARIABLES][V];
    const Pack<G, V> gradient = load_once<Pack<G, V>>(grad);
#if PAIR
    const Pack<C, V> p = *(const Pack<C, V>*)states[VARIABLES - 1];
#else
    const Pack<T, V> p = *(const Pack<T, V>*)param;
#endif
#pragma unroll
    for (int s = 1; s < VARIABLES; ++s) {
        const Pack<C, V> state = *(const Pack<C, V>*)states[s - 1];
#pragma unroll
        for (int j = 0; j < V; ++j) x[s][j] = state.v[j];
    }
    const Answer answer = ASK;  // among the loads: nothing waits for it before the stores
    Pack<T, V> rounded;
#pragma unroll
    for (int j = 0; j < V; ++j) {
        x[0][j] = up(p.v[j]);
        g[j] = up(gradient.v[j]);
#ifdef SCALE
        g[j] = multiply(g[j], scale);
#endif
#ifdef DECAY
        g[j] = add(g[j], multiply(x[0][j], decay));
#endif
        C values[VARIABLES];
#pragma unroll
        for (int s = 0; s < VARIABLES; ++s) values[s] = x[s][j];
        step(g[j], values, k);
#pragma unroll
        for (int s = 0; s < VARIABLES; ++s) x[s][j] = values[s];
        rounded.v[j] = down<T>(x[0][j]);
    }
    store((Pack<T, V>*)param, rounded, answer);
#pragma unroll
    for (int s = 1 - PAIR; s < VARIABLES; ++s) {
        Pack<C, V> state;
#pragma unroll
        for (int j = 0; j < V; ++j) state.v[j] = x[s][j];
        store((Pack<C, V>*)states[s ? s - 1 : VARIABLES - 1], state, answer);
    }
    return answer;
}

extern "C" __global__ void __launch_bounds__(256, 1) update(
    TENSORS, NUMBERS_FROM, const bool* skip, const F* scale, C decay AND_FAULT)
{
    Answer answer = {};
#ifdef SKIP
    if (*skip) {
        answer = ASK;
        SETTLE
        return;
    }
#endif
    FIND
    C k[KNOWN];
    LOAD_NUMBERS
#ifdef SCALE
    const C factor = C(up(*scale));
#else
    const C factor = C(1);
#endif
    T* const param = (T*)ADDRESS(0) + start;
#ifdef ROWS
    const u32 row = u32(ADDRESS(COLUMNS - 2)), gap = u32(ADDRESS(COLUMNS - 1));
    const i64 first = row ? start / row : 0;  // the row in which the block begins
    const u32 inside = u32(start - first * row);
    const G* const grad = (const G*)ADDRESS(1) + start + first * gap;
    const auto gradient = [&](int i) { return grad + i + (row ? multiply_wide((inside + i) / row, gap) : 0); };
#else
    constexpr u32 row = 0, gap = 0;
    const G* const grad = (const G*)ADDRESS(1) + start;
    const auto gradient = [&](int i) { return grad + i; };
#endif
    C* states[STATES > 0 ? STATES : 1];
    u64 places = u64(row | gap) * (16 / PACK) | (u64)param * (16 / (PACK * sizeof(T))) | (u64)grad * (16 / (PACK * sizeof(G)));
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
        states[s] = (C*)ADDRESS(s + 2) + start;
        places |= (u64)states[s];
    }
    C* at[STATES > 0 ? STATES : 1];
    if (left >= CHUNK && places % 16 == 0) {
#pragma unroll
        for (int i = int(threadIdx.x) * PACK; i < CHUNK; i += 256 * PACK) {
#pragma unroll
            for (int s = 0; s < STATES; ++s) at[s] = states[s] + i;
            answer = update_pack<PACK>(param + i, gradient(i), at, k, factor, decay, FAULT);
        }
    } else {
        for (int i = threadIdx.x; i < CHUNK && i < left; i += 256) {
#pragma unroll
            for (int s = 0; s < STATES; ++s) at[s] = states[s] + i;
            answer = update_pack<1>(param + i, gradient(i), at, k, factor, decay, FAULT);
        }
    }
    SETTLE
}
#endif

// The numbers of the step of each tensor, from its powers of beta, which are advanced.
#ifdef PREPARE
#if WAY == 1
struct Powers {
    u64 addresses[POWERS][WIDTH];
    i64 count, before;
};
#define POWERS_FROM const __grid_constant__ Powers given
#define POWER_COUNT given.count
#define POWER_BEFORE given.before
#define POWER_ADDRESS(i, t) given.addresses[i][t]
#else
#define POWERS_FROM const u64 *given, i64 count
#define POWER_COUNT count
#define POWER_BEFORE 0
#define POWER_ADDRESS(i, t) given[i * count + t]
#endif
extern "C" __global__ void __launch_bounds__(256) prepare(
    POWERS_FROM, const L* learning_rate, C* known, const bool* skip ATTRIBUTES AND_FAULT)
{
    const i64 t = i64(blockIdx.x) * 256 + threadIdx.x;
    if (t >= POWER_COUNT) return;
    const double rate = double(up(*learning_rate));
    double* powers[POWERS];
    double values[POWERS];
#pragma unroll
    for (int i = 0; i < POWERS; ++i) {
        powers[i] = (double*)POWER_ADDRESS(i, t);
        values[i] = *powers[i];
    }
    const Answer answer = ASK;
    C* const k = known + (POWER_BEFORE + t) * PREPARED;
    numbers(rate, values, k ATTRIBUTE_NAMES);
    SETTLE
    if (answer.bad()) return;
#ifdef SKIP
    if (*skip) return;
#endif
    const double betas[POWERS] = {BETAS};
#pragma unroll
    for (int i = 0; i < POWERS; ++i) *powers[i] = multiply(values[i], betas[i]);
}
#endif
