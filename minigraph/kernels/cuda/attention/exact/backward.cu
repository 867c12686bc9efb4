// Exact attention, backward: the gradients of Q, K, V and Bias from LSE, each by a kernel of its own.
//
//   P = exp(S - LSE)    dP = kept * (dO V^T)    delta = rowsum(dO * Out) - dLSE    dS = P (dP - delta)
//   row_products   LSE, its rest and delta [B,H,Sq]
//   query_grad     a block owns BM queries, walks over keys:      dQ = scale * sum dS K          3 products
//   key_grad       a block owns BM keys of a head of K and V and walks over the queries of all heads
//                  that read it: dV = sum (kept P)^T dO, dK = scale * sum dS^T Q                 4 products
//   bias_grad      a block owns a tile of Bias and sums dS over the axes along which it was broadcast
// No atomics: every sum has one order. Scores are computed three times instead of stored. Where blocks
// are few, query_grad and key_grad share the other axis among blockIdx.y, and add_parts adds up.

// One warp for each query of each head. dsums: null, or the gradient of LSE.
extern "C" __global__ void __launch_bounds__(THREADS) row_products(
    INPUTS, const T* Out, const T* dO, const ST* sums, const ST* dsums, Numbers* numbers, i64 rows_of_all)
{
    READ_INPUTS
    const i64 row = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows_of_all) return;
    const i64 head = row / queries, q = row % queries;
    const Rows o = rows_of(z, heads, queries, dv, head / heads, head % heads);
    C sum = 0;
    for (i64 x = lane; x < dv; x += 32) sum += C(up(Out[o.at + q * o.step + x])) * C(up(dO[o.at + q * o.step + x]));
    sum = warp_sum(sum);
    Numbers found = numbers_of(C(sums[row]), sum - grad_of_lse(C(sums[row]), dsums, row));
#if GENERAL
    if (is_far(found.lse, m)) found = far_numbers(found.delta, head / heads, head % heads, q, Q, K, z, sight, m);
#endif
    if (lane == 0) numbers[row] = found;
}

// The probability of a score that counts for values, and the gradient of that score.
struct Slope {
    C p, ds;
};
__device__ __forceinline__ Slope slope(
    C product, C dp, bool seen, const Numbers& of_query, int q, int k, const Modifiers& m, const Sizes& z,
    const Place& at)
{
    bool drawn = true;
    const C s = seen ? score(product, q, k, m, at, &drawn) : -infinity<C>();
    C below = s - of_query.lse;
#if GENERAL
    below -= of_query.rest;
#endif
    const C p = s == -infinity<C>() ? C(0) : exponential(below);
    if (p == 0) return {C(0), C(0)};
    const C keep = kept(q, k, m, z, at);
    return {p * keep, drawn ? p * (dp * keep - of_query.delta) : C(0)};
}

#ifdef QUERY_GRAD
// part: null, or C [splits][as dQ]
extern "C" __global__ void __launch_bounds__(THREADS, LEAST) query_grad(
    INPUTS, const T* dO, const Numbers* numbers, T* dQ, C* part, i64 tiles, i64 splits, i64 elements)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    C* const own = (C*)memory;
    C* const own_grad = own + BM * (CHUNKS_D * CHUNK + W);
    C* const stage = own_grad + BM * (CHUNKS_V * CHUNK + W);
    C* const p = stage + BN * LDS;
    __shared__ int lo[BM], hi[BM];
    __shared__ int odd;
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int first = int(blockIdx.x % tiles) * BM, head = blockIdx.x / tiles, b = head / heads, h = head % heads;
    const int kv = h / groups, valid = queries - first;
    const Rows q_rows = rows_in(z.q, b, h), k_rows = rows_in(z.k, b, kv);
    const Rows v_rows = rows_in(z.v, b, kv), o_rows = rows_of(z, heads, queries, dv, b, h);
    const Place at = place_of(m, z, b, h);

    if (threadIdx.x == 0) odd = 0;
    look(lo, hi, [&](int row) { return sight.of_query(first + row); });
    load_rows<BM, CHUNKS_D * CHUNK, CHUNKS_D * CHUNK + W>(own, Q + q_rows.at + first * q_rows.step, q_rows.step, valid, d);
    load_rows<BM, CHUNKS_V * CHUNK, CHUNKS_V * CHUNK + W>(
        own_grad, dO + o_rows.at + first * o_rows.step, o_rows.step, valid, dv);
    __syncthreads();
    const Interval all = reach(lo, hi, keys);
    const int steps = tiles_of(all), split = blockIdx.y;
    const int last = i64(steps) * (split + 1) / splits;

    C acc[RM][CHUNKS_D][PER], factor[RM];
    Numbers own_numbers[RM];
    clear(acc);
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        const int q = first + ty * RM + i;
        own_numbers[i] = q < queries ? numbers[i64(head) * queries + q] : numbers_of(0, 0);
        factor[i] = m.scale;
    }
    auto shows = [&](int n) { return sight.shows(h, first, BM, all.lo + n * BN, BN); };
#pragma unroll 1
    for (int n = next_shown(int(i64(steps) * split / splits), last, shows); n < last; n = next_shown(n + 1, last, shows)) {
        const int k0 = all.lo + n * BN;
        C s[RM][RN], dp[RM][RN];
        dot<CHUNKS_D>(s, own, K + k_rows.at + i64(k0) * k_rows.step, k_rows.step, keys - k0, d, stage, &odd);
        dot<CHUNKS_V>(dp, own_grad, V + v_rows.at + i64(k0) * v_rows.step, v_rows.step, keys - k0, dv, stage, &odd);
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < RN; ++j) {
                const int q = first + ty * RM + i, k = k0 + tx + TX * j;
                const bool seen = k >= lo[ty * RM + i] && k < hi[ty * RM + i] && sight.shows(h, q, k);
                p[(ty * RM + i) * LDP + tx + TX * j] =
                    slope(s[i][j], dp[i][j], seen, own_numbers[i], q, k, m, z, at).ds;
            }
        accumulate<CHUNKS_D>(acc, p, K + k_rows.at + i64(k0) * k_rows.step, k_rows.step, keys - k0, d, stage, &odd);
    }
    const Rows dq_rows = rows_of(z, heads, queries, d, b, h);
    const i64 place = dq_rows.at + first * dq_rows.step;
    if (part) store_rows(acc, factor, part + split * elements + place, dq_rows.step, valid, d);
    else store_rows(acc, factor, dQ + place, dq_rows.step, valid, d);
}
#endif

#ifdef KEY_GRAD
// dK, dV: null where not wanted. part: null, or C [splits][as dK, then as dV]
extern "C" __global__ void __launch_bounds__(THREADS, LEAST) key_grad(
    INPUTS, const T* dO, const Numbers* numbers, T* dK, T* dV, C* part, i64 tiles, i64 splits, i64 elements_k,
    i64 elements_v)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    C* const own = (C*)memory;
    C* const own_value = own + BM * (CHUNKS_D * CHUNK + W);
    C* const stage = own_value + BM * (CHUNKS_V * CHUNK + W);
    C* const p = stage + BN * LDS;
    __shared__ int lo[BM], hi[BM];
    __shared__ Numbers of_queries[BN];
    __shared__ int odd;
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int kv_heads = heads / groups, first = int(blockIdx.x % tiles) * BM, valid = keys - first;
    const int b = blockIdx.x / tiles / kv_heads, kv = blockIdx.x / tiles % kv_heads;
    const Rows k_rows = rows_in(z.k, b, kv), v_rows = rows_in(z.v, b, kv);

    if (threadIdx.x == 0) odd = 0;
    look(lo, hi, [&](int row) { return sight.of_key(first + row); });
    load_rows<BM, CHUNKS_D * CHUNK, CHUNKS_D * CHUNK + W>(own, K + k_rows.at + first * k_rows.step, k_rows.step, valid, d);
    load_rows<BM, CHUNKS_V * CHUNK, CHUNKS_V * CHUNK + W>(
        own_value, V + v_rows.at + first * v_rows.step, v_rows.step, valid, dv);
    __syncthreads();
    const Interval all = reach(lo, hi, queries);
    const i64 steps = tiles_of(all), split = blockIdx.y, whole = steps * groups;
    const int last = int(whole * (split + 1) / splits);

    C to_k[RM][CHUNKS_D][PER], to_v[RM][CHUNKS_V][PER], factor_k[RM], factor_v[RM];
    clear(to_k);
    clear(to_v);
#pragma unroll
    for (int i = 0; i < RM; ++i) factor_k[i] = m.scale, factor_v[i] = 1;
    auto shows = [&](int n) {
        return sight.shows(kv * groups + n / int(steps), all.lo + n % int(steps) * BN, BN, first, BM);
    };
#pragma unroll 1
    for (int n = next_shown(int(whole * split / splits), last, shows); n < last; n = next_shown(n + 1, last, shows)) {
        const int h = kv * groups + n / steps, q0 = all.lo + n % steps * BN;
        const i64 row = i64(b * heads + h) * queries;
        const Rows q_rows = rows_in(z.q, b, h), o_rows = rows_of(z, heads, queries, dv, b, h);
        const Place at = place_of(m, z, b, h);
        const T *const q_tile = Q + q_rows.at + q0 * q_rows.step, *const o_tile = dO + o_rows.at + q0 * o_rows.step;
        C s[RM][RN], dp[RM][RN];
        __syncthreads();
        for (int c = threadIdx.x; c < BN; c += THREADS)
            of_queries[c] = q0 + c < queries ? numbers[row + q0 + c] : numbers_of(0, 0);
        dot<CHUNKS_D>(s, own, q_tile, q_rows.step, queries - q0, d, stage, &odd);
        dot<CHUNKS_V>(dp, own_value, o_tile, o_rows.step, queries - q0, dv, stage, &odd);
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < RN; ++j) {
                const int c = tx + TX * j;
                const int k = first + ty * RM + i, q = q0 + c;
                const bool seen = q >= lo[ty * RM + i] && q < hi[ty * RM + i] && sight.shows(h, q, k);
                const Slope x = slope(s[i][j], dp[i][j], seen, of_queries[c], q, k, m, z, at);
                p[(ty * RM + i) * LDP + c] = x.p;
                s[i][j] = x.ds;
            }
        if (dV) accumulate<CHUNKS_V>(to_v, p, o_tile, o_rows.step, queries - q0, dv, stage, &odd);
        if (!dK) continue;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < RN; ++j) p[(ty * RM + i) * LDP + tx + TX * j] = s[i][j];
        accumulate<CHUNKS_D>(to_k, p, q_tile, q_rows.step, queries - q0, d, stage, &odd);
    }
    C *const part_k = part + split * (elements_k + elements_v), *const part_v = part_k + elements_k;
    const Rows dk_rows = rows_of(z, kv_heads, keys, d, b, kv), dv_rows = rows_of(z, kv_heads, keys, dv, b, kv);
    const i64 at_k = dk_rows.at + first * dk_rows.step, at_v = dv_rows.at + first * dv_rows.step;
    if (dK && part) store_rows(to_k, factor_k, part_k + at_k, dk_rows.step, valid, d);
    else if (dK) store_rows(to_k, factor_k, dK + at_k, dk_rows.step, valid, d);
    if (dV && part) store_rows(to_v, factor_v, part_v + at_v, dv_rows.step, valid, dv);
    else if (dV) store_rows(to_v, factor_v, dV + at_v, dv_rows.step, valid, dv);
}
#endif

// to[i] = sum over the splits of part[s][i], in order.
extern "C" __global__ void __launch_bounds__(THREADS) add_parts(
    const C* part, T* to, i64 elements, i64 stride, i64 splits)
{
    const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= elements) return;
    C sum = 0;
    for (i64 s = 0; s < splits; ++s) sum += part[s * stride + i];
    to[i] = down<T>(sum);
}

#ifdef BIAS_GRAD
// batch, own_heads, rows, columns: the sizes of Bias, each 1 or that of the scores. The block has a tile of
// rows x columns where these are not 1, and goes over the rest of the scores.
extern "C" __global__ void __launch_bounds__(THREADS, LEAST) bias_grad(
    INPUTS, const T* dO, const Numbers* numbers, BT* dBias, int batches, int batch, int own_heads, int rows,
    int columns, int row_tiles, int column_tiles)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    C* const own = (C*)memory;
    C* const own_grad = own + BM * (CHUNKS_D * CHUNK + W);
    C* const stage = own_grad + BM * (CHUNKS_V * CHUNK + W);
    __shared__ int lo[BM], hi[BM];
    __shared__ int odd;
    __shared__ C over_rows[THREADS / TX][BN];
    const int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    const int column_tile = blockIdx.x % column_tiles, row_tile = blockIdx.x / column_tiles % row_tiles;
    const int bias_head = blockIdx.x / column_tiles / row_tiles;
    const int b_first = batch == 1 ? 0 : bias_head / own_heads, b_last = batch == 1 ? batches : b_first + 1;
    const int h_first = own_heads == 1 ? 0 : bias_head % own_heads, h_last = own_heads == 1 ? heads : h_first + 1;
    const int q_first = rows == 1 ? 0 : row_tile * BM, q_last = rows == 1 ? queries : min(q_first + BM, queries);
    const int k_first = columns == 1 ? 0 : column_tile * BN, k_last = columns == 1 ? keys : min(k_first + BN, keys);

    C acc[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int j = 0; j < RN; ++j) acc[i][j] = 0;
    if (threadIdx.x == 0) odd = 0;
    for (int b = b_first; b < b_last; ++b)
        for (int h = h_first; h < h_last; ++h)
            for (int first = q_first; first < q_last; first += BM) {
                const int kv = h / groups, valid = queries - first, head = b * heads + h;
                const Rows q_rows = rows_in(z.q, b, h), k_rows = rows_in(z.k, b, kv);
                const Rows v_rows = rows_in(z.v, b, kv), o_rows = rows_of(z, heads, queries, dv, b, h);
                const Place at = place_of(m, z, b, h);
                __syncthreads();
                look(lo, hi, [&](int row) { return sight.of_query(first + row); });
                load_rows<BM, CHUNKS_D * CHUNK, CHUNKS_D * CHUNK + W>(
                    own, Q + q_rows.at + first * q_rows.step, q_rows.step, valid, d);
                load_rows<BM, CHUNKS_V * CHUNK, CHUNKS_V * CHUNK + W>(
                    own_grad, dO + o_rows.at + first * o_rows.step, o_rows.step, valid, dv);
                __syncthreads();
                const Interval all = reach(lo, hi, keys);
                for (int k0 = k_first; k0 < k_last; k0 += BN) {
                    if (k0 >= all.hi || k0 + BN <= all.lo) continue;  // the same for all threads
                    if (!sight.shows(h, first, BM, k0, BN)) continue;
                    C s[RM][RN], dp[RM][RN];
                    dot<CHUNKS_D>(s, own, K + k_rows.at + i64(k0) * k_rows.step, k_rows.step, keys - k0, d, stage, &odd);
                    dot<CHUNKS_V>(dp, own_grad, V + v_rows.at + i64(k0) * v_rows.step, v_rows.step, keys - k0, dv, stage, &odd);
#pragma unroll
                    for (int i = 0; i < RM; ++i) {
                        const int q = first + ty * RM + i;
                        const Numbers own_numbers = q < queries ? numbers[i64(head) * queries + q] : numbers_of(0, 0);
#pragma unroll
                        for (int j = 0; j < RN; ++j) {
                            const int k = k0 + tx + TX * j;
                            const bool seen = k >= lo[ty * RM + i] && k < hi[ty * RM + i] && sight.shows(h, q, k);
                            acc[i][j] += slope(s[i][j], dp[i][j], seen, own_numbers, q, k, m, z, at).ds;
                        }
                    }
                }
            }
    BT* const to = dBias + i64(bias_head) * rows * columns;
    if (rows == 1) {  // over the rows of a thread, then over the block's
        __syncthreads();
#pragma unroll
        for (int j = 0; j < RN; ++j) {
            C sum = 0;
#pragma unroll
            for (int i = 0; i < RM; ++i) sum += acc[i][j];
            over_rows[ty][tx + TX * j] = sum;
        }
        __syncthreads();
        if (ty != 0) return;
        C whole = 0;
#pragma unroll
        for (int j = 0; j < RN; ++j) {
            C sum = 0;
            for (int r = 0; r < THREADS / TX; ++r) sum += over_rows[r][tx + TX * j];
            if (columns != 1 && k_first + tx + TX * j < columns) to[k_first + tx + TX * j] = down<BT>(sum);
            whole += sum;
        }
        if (columns == 1) {
            for (int l = TX / 2; l > 0; l >>= 1) whole += __shfl_xor_sync(0xffffu, whole, l);
            if (tx == 0) to[0] = down<BT>(whole);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        const int q = q_first + ty * RM + i;
        C sum = 0;
#pragma unroll
        for (int j = 0; j < RN; ++j) {
            const int k = k_first + tx + TX * j;
            if (columns != 1 && q < rows && k < columns) to[i64(q) * columns + k] = down<BT>(acc[i][j]);
            sum += acc[i][j];
        }
        if (columns == 1) {
            sum = row_sum(sum);
            if (tx == 0 && q < rows) to[q] = down<BT>(sum);
        }
    }
}
#endif
