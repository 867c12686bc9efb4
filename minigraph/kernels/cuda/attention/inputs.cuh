// What every attention kernel is told, and what it asks of a position: which columns a row meets, what changes its score.
// C type computed in, T type in memory, BT that of Bias, L that of cumulative lengths, GENERAL: there are Bias, Mask or
// dropout. BLOCK: queries and keys of a block of the table Blocks, 0 without one.

struct Strides {  // of an array: elements from one batch, head, row to the next
    i64 batch, head, row;
};
struct Sizes {
    int heads, groups, queries, keys, d, dv;
    bool bshd;
    Strides q, k, v;
};
struct Rows {  // of one head of an array: where they begin, elements from one to the next
    i64 at, step;
};
__device__ __forceinline__ Rows rows_in(const Strides& s, i64 b, i64 h) { return {b * s.batch + h * s.head, s.row}; }
// Of an array that is contiguous.
__device__ __forceinline__ Rows rows_of(const Sizes& z, i64 heads, i64 rows, i64 width, i64 b, i64 h) {
    const i64 batch = b * heads * rows * width;
    if (z.bshd) return {batch + h * width, heads * width};
    return {batch + h * rows * width, width};
}

struct Interval {
    int lo, hi;
};
// Packed sequences: which one holds `place`; -1 behind the last.
__device__ __forceinline__ i64 sequence_of(const L* lengths, i64 count, i64 place) {
    if (place >= i64(lengths[count])) return -1;
    i64 lo = 0, hi = count;
    while (hi - lo > 1) {
        const i64 middle = (lo + hi) / 2;
        if (i64(lengths[middle]) <= place) lo = middle;
        else hi = middle;
    }
    return lo;
}
// The columns that row `place` meets: of `others`, within `before` and `after` (-1: any distance) of the
// diagonal, which with `bottom_right` ends at the last row and column. `own` is null without sequences.
__device__ __forceinline__ Interval interval(
    i64 place, i64 rows, i64 columns, const L* own, const L* other, i64 count, i64 before, i64 after,
    bool bottom_right)
{
    if (place >= rows) return {0, 0};
    i64 start = 0, end = columns, shift = columns - rows;
    if (own) {
        const i64 s = sequence_of(own, count, place);
        if (s < 0) return {0, 0};
        start = min(max(i64(other[s]), i64(0)), columns);
        end = min(max(i64(other[s + 1]), start), columns);
        shift = end - start - (i64(own[s + 1]) - i64(own[s]));
        place -= i64(own[s]);
    }
    const i64 diagonal = start + place + (bottom_right ? shift : 0);
    const i64 lo = before < 0 ? start : min(max(start, diagonal - before), end);
    const i64 hi = after < 0 ? end : min(end, diagonal + after + 1);
    return {int(lo), int(max(lo, hi))};
}

// x, such that what follows from it is computed where it stands, not kept around a loop over tiles: beside a table of blocks
// registers are few.
__device__ __forceinline__ int fresh(int x) {
#if BLOCK
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// Which keys a query sees, which queries see a key.
struct Sight {
    const L *lengths_q, *lengths_k;
    int queries, keys;
    i64 count, before, after;
    bool bottom_right;
#if BLOCK
    const bool* blocks;
    i64 block_head;  // elements from one head's table to the next, 0 where all have one

    __device__ __forceinline__ const bool* table(int h, int row) const {
        return blocks + h * block_head + row * i64((keys + BLOCK - 1) / BLOCK);
    }
    // Whether query q of head h may see key k by the table.
    __device__ __forceinline__ bool shows(int h, int q, int k) const { return table(h, q / BLOCK)[k / BLOCK]; }
    // Whether some of these queries may see some of these keys.
    __device__ __forceinline__ bool shows(int h, int q, int count_q, int k, int count_k) const {
        h = fresh(h), q = fresh(q);
        const int last_q = (min(q + count_q, queries) - 1) / BLOCK, last_k = (min(k + count_k, keys) - 1) / BLOCK;
        for (int row = q / BLOCK; row <= last_q; ++row)
            for (int column = k / BLOCK; column <= last_k; ++column)
                if (table(h, row)[column]) return true;
        return false;
    }
#else
    __device__ __forceinline__ bool shows(int, int, int) const { return true; }
    __device__ __forceinline__ bool shows(int, int, int, int, int) const { return true; }
#endif

    __device__ __forceinline__ Interval of_query(i64 q) const {
        return interval(q, queries, keys, lengths_q, lengths_k, count, before, after, bottom_right);
    }
    __device__ __forceinline__ Interval of_key(i64 k) const {
        return interval(k, keys, queries, lengths_k, lengths_q, count, after, before, bottom_right);
    }
};

// The first of the steps [n, last) that shows something, `last` for none. A warp asks together, of 32 steps at a time.
template <class Shows> __device__ __forceinline__ int next_shown(int n, int last, const Shows& shows) {
#if BLOCK
    for (; n < last; n += 32) {
        const int mine = n + threadIdx.x % 32;
        const u32 found = __ballot_sync(~0u, mine < last && shows(mine));
        if (found) return n + __ffs(found) - 1;
    }
    return last;
#else
    return n;
#endif
}

__device__ __forceinline__ float exponential(float x) { return exp2f(x * 1.4426950408889634f); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

// What changes scores besides the interval. Strides are 0 along axes that broadcast.
struct Modifiers {
    const BT* bias;
    const bool* mask;
    i64 bias_b, bias_h, bias_q, bias_k, mask_b, mask_h, mask_q, mask_k;
    C scale, masked_score;
    u64 seed;
    i64 number, step;
    u64 threshold;  // 0: nothing is dropped
    C keep_scale;
};
struct Place {  // of a head's scores
    i64 bias, mask;
    u64 first;  // its first element among those that draw random numbers
};
__device__ __forceinline__ Place place_of(const Modifiers& m, const Sizes& z, i64 b, i64 h) {
    return {b * m.bias_b + h * m.bias_h, b * m.mask_b + h * m.mask_h, u64(b * z.heads + h) * z.queries * z.keys};
}
__device__ __forceinline__ bool hides(const Modifiers& m, const Place& at, int q, int k) {
    return MASKED && !m.mask[at.mask + q * m.mask_q + k * m.mask_k];
}
// x as a number to choose by: known, the compiler would write what follows twice, for each answer.
__device__ __forceinline__ bool settled(bool x) {
    int y = x;
    asm volatile("" : "+r"(y));
    return y;
}
// The score of query q and key k from their product; `drawn` tells whether a gradient flows back to the product.
__device__ __forceinline__ C score(C product, int q, int k, const Modifiers& m, const Place& at, bool* drawn) {
    C s = product * m.scale;
    *drawn = true;
#if GENERAL
    if (BIASED && m.bias) s += C(up(m.bias[at.bias + q * m.bias_q + k * m.bias_k]));
    const bool hidden = hides(m, at, q, k);
    if (hidden) s = m.masked_score;
    *drawn = settled(!hidden);
#endif
    return s;
}

// The gradient of LSE that backward takes from rowsum(dO * Out): dS = P (dP - (rowsum(dO * Out) - dLSE)). Nothing without
// one, and where LSE is infinite, whose row has no key, or keys that Mask hides all.
template <class S> __device__ __forceinline__ C grad_of_lse(C lse, const S* grads, i64 row) {
    return grads && lse - lse == 0 ? C(grads[row]) : C(0);
}

// What backward knows of a query: P = exp(S - lse - rest), dS = P (dP - delta). LSE has a rest where one number would
// round away how many keys count.
struct alignas((GENERAL ? 4 : 2) * sizeof(C)) Numbers {
    C lse, delta;
#if GENERAL
    C rest, unused;  // tiles are copied whole
#endif
};
__device__ __forceinline__ Numbers numbers_of(C lse, C delta) {
#if GENERAL
    return {lse, delta, C(0), C(0)};
#else
    return {lse, delta};
#endif
}
// Whether LSE needs a rest: Bias puts scores so far from 0 that it rounds the number of keys away, or it is +inf as
// masked keys have the largest score.
__device__ __forceinline__ bool is_far(C lse, const Modifiers& m) {
    if (!GENERAL || lse == -infinity<C>()) return false;
    return BIASED ? (lse < 0 ? -lse : lse) > C(-HIDDEN_WHOLE) : MASKED && lse == infinity<C>();
}
#if GENERAL
// Of a query that is far: the largest score, and the logarithm of the sum of exponentials below it. One warp.
__device__ __forceinline__ Numbers far_numbers(
    C delta, i64 b, int h, int q, const T* Q, const T* K, const Sizes& z, const Sight& sight, const Modifiers& m)
{
    const Rows q_rows = rows_in(z.q, b, h), k_rows = rows_in(z.k, b, h / z.groups);
    const Place at = place_of(m, z, b, h);
    const Interval seen = sight.of_query(q);
    C largest = -infinity<C>(), total = 0;
#pragma unroll 1  // more keys at once spill registers
    for (int k = seen.lo + threadIdx.x % 32; k < seen.hi; k += 32) {
        if (!sight.shows(h, q, k)) continue;
        C product = 0;
        const int width = hides(m, at, q, k) ? 0 : z.d;
#pragma unroll 1
        for (int x = 0; x < width; ++x)
            product += C(up(Q[q_rows.at + q * q_rows.step + x])) * C(up(K[k_rows.at + k * k_rows.step + x]));
        bool drawn;
        const C s = score(product, q, k, m, at, &drawn);
        if (s == -infinity<C>()) continue;
        const C most = max_nan(largest, s);
        total = total * exponential(largest - most) + exponential(s - most);
        largest = most;
    }
    C most = largest;
    for (int l = 16; l > 0; l >>= 1) most = max_nan(most, C(__shfl_xor_sync(~0u, most, l)));
    const C sum = warp_sum(largest == -infinity<C>() ? C(0) : total * exponential(largest - most));
    return {most, delta, logarithm(sum), C(0)};
}
#endif
// The dropout factor of a probability.
__device__ __forceinline__ C kept(int q, int k, const Modifiers& m, const Sizes& z, const Place& at) {
#if GENERAL
    if (m.threshold) {
        const u64 element = at.first + u64(q) * z.keys + k;
        const Words w = philox4x32(element / 4, m.seed, m.number, m.step);
        const u32 pair[2] = {element & 1 ? w.v[1] : w.v[0], element & 1 ? w.v[3] : w.v[2]};
        return (element & 2 ? pair[1] : pair[0]) >= m.threshold ? m.keep_scale : C(0);
    }
#endif
    return C(1);
}

#if BLOCK
#define BLOCK_INPUTS , const bool *blocks, i64 block_head
#define READ_BLOCK_INPUTS , blocks, block_head
#else
#define BLOCK_INPUTS
#define READ_BLOCK_INPUTS
#endif
#define INPUTS                                                                                                       \
    const T *Q, const T *K, const T *V, const BT *bias, const bool *mask, const L *lengths_q, const L *lengths_k,    \
        const i64 *key, int heads, int groups, int queries, int keys, int d, int dv, int bshd, i64 q_batch,          \
        i64 q_head, i64 q_row, i64 k_batch, i64 k_head, i64 k_row, i64 v_batch, i64 v_head, i64 v_row, i64 count,    \
        i64 before, i64 after, i64 bottom_right, i64 bias_b, i64 bias_h, i64 bias_q, i64 bias_k, i64 mask_b,         \
        i64 mask_h, i64 mask_q, i64 mask_k, double scale, double masked_score, u64 threshold, double keep_scale    \
        BLOCK_INPUTS
#define READ_INPUTS                                                                                                  \
    const Sizes z = {heads, groups, queries, keys, d, dv, bshd != 0, {q_batch, q_head, q_row},                       \
                     {k_batch, k_head, k_row}, {v_batch, v_head, v_row}};                                            \
    const Sight sight = {lengths_q, lengths_k, queries, keys, count, before, after, bottom_right != 0                \
                         READ_BLOCK_INPUTS};                                                                         \
    const Modifiers m = {bias, mask, bias_b, bias_h, bias_q, bias_k, mask_b, mask_h, mask_q, mask_k, C(scale),       \
                         C(masked_score), threshold ? u64(key[0]) : 0, threshold ? key[1] : 0,                       \
                         threshold ? key[2] : 0, threshold, C(keep_scale)};
