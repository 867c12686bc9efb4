// Exact attention, forward. Q [B,H,Sq,D], K [B,Hk,Sk,D], V [B,Hk,Sk,Dv] in either layout -> Out [B,H,Sq,Dv], LSE [B,H,Sq].
//
// A block owns BM queries of one head and walks over the keys that they see, BN at a time: scores, the
// largest so far, exp, the sum, and Out rescaled whenever the largest grows. 4 Sq Sk D flops a head; K and V
// are read once for each BM queries. Where blocks are few, blockIdx.y takes its part of the tiles of keys
// and the parts are joined by `join`, in order: results do not depend on timing.

// LSE of a row from its sum of exponentials below the largest score; +inf where Mask hides all keys, see
// minigraph/ops/attention/attention.py.
__device__ __forceinline__ C log_sum(C total, C largest, bool masked, C masked_score) {
    if (total == 0) return -infinity<C>();
    if (masked && masked_score <= C(HIDDEN_WHOLE) && largest == masked_score) return infinity<C>();
    return log(total) + largest;
}

// part: null, or C [splits][B,H,Sq,Dv in Out's layout], and in part_sums for each split the sum of
// exponentials and the largest score of each row, C [splits][2][B,H,Sq]
extern "C" __global__ void __launch_bounds__(THREADS, LEAST) attention_forward(
    INPUTS, T* Out, ST* sums, C* part, C* part_sums, i64 tiles, i64 splits, i64 elements, i64 rows_of_all)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    C* const own = (C*)memory;
    C* const stage = own + BM * (CHUNKS_D * CHUNK + W);
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
    __syncthreads();
    const Interval all = reach(lo, hi, keys);
    const int steps = tiles_of(all), split = blockIdx.y;
    const int last = i64(steps) * (split + 1) / splits;

    C largest[RM], total[RM], acc[RM][CHUNKS_V][PER];
    int row_lo[RM], row_hi[RM];
    clear(acc);
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        largest[i] = -infinity<C>();
        total[i] = 0;
        row_lo[i] = lo[ty * RM + i];
        row_hi[i] = hi[ty * RM + i];
    }
    auto shows = [&](int n) { return sight.shows(h, first, BM, all.lo + n * BN, BN); };
#pragma unroll 1
    for (int n = next_shown(int(i64(steps) * split / splits), last, shows); n < last; n = next_shown(n + 1, last, shows)) {
        const int k0 = all.lo + n * BN;
        C s[RM][RN];
        dot<CHUNKS_D>(s, own, K + k_rows.at + i64(k0) * k_rows.step, k_rows.step, keys - k0, d, stage, &odd);
#pragma unroll
        for (int i = 0; i < RM; ++i) {
            const int q = first + ty * RM + i;
            C most = largest[i];
#pragma unroll
            for (int j = 0; j < RN; ++j) {
                const int k = k0 + tx + TX * j;
                bool drawn;
                const bool seen = k >= row_lo[i] && k < row_hi[i] && sight.shows(h, q, k);
                s[i][j] = seen ? score(s[i][j], q, k, m, at, &drawn) : -infinity<C>();
                most = max_nan(most, s[i][j]);
            }
            most = row_max(most);
            const C below = most == -infinity<C>() ? C(0) : most;
            const C shrink = exponential(largest[i] - below);
            largest[i] = most;
            total[i] *= shrink;
#pragma unroll
            for (int j = 0; j < RN; ++j) {
                const int k = k0 + tx + TX * j;
                const C e = exponential(s[i][j] - below);
                total[i] += e;
                p[(ty * RM + i) * LDP + tx + TX * j] = e == 0 ? C(0) : e * kept(q, k, m, z, at);
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS_V; ++chunk)
#pragma unroll
                for (int e = 0; e < PER; ++e) acc[i][chunk][e] *= shrink;
        }
        accumulate<CHUNKS_V>(acc, p, V + v_rows.at + i64(k0) * v_rows.step, v_rows.step, keys - k0, dv, stage, &odd);
    }
    C factor[RM];
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        const C sum = row_sum(total[i]);
        const int q = first + ty * RM + i;
        factor[i] = sum == 0 ? C(0) : C(1) / sum;
        if (tx == 0 && q < queries) {
            const i64 row = i64(head) * queries + q;
            if (part) {
                part_sums[2 * split * rows_of_all + row] = sum;
                part_sums[(2 * split + 1) * rows_of_all + row] = largest[i];
            } else if (sums) {
                sums[row] = ST(log_sum(sum, largest[i], mask != nullptr, C(masked_score)));
            }
        }
    }
    if (part) store_rows(acc, factor, part + split * elements + o_rows.at + first * o_rows.step, o_rows.step, valid, dv);
    else store_rows(acc, factor, Out + o_rows.at + first * o_rows.step, o_rows.step, valid, dv);
}

// Out = sum of the splits' parts, weighted by their sums of exponentials: one warp for each query of each head.
extern "C" __global__ void __launch_bounds__(THREADS) join(
    const C* part, const C* part_sums, T* Out, ST* sums, int heads, int queries, int dv, int bshd, i64 masked,
    double masked_score, i64 splits, i64 elements, i64 rows_of_all)
{
    const i64 row = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows_of_all) return;
    const Sizes z = {heads, 1, queries, 0, 0, dv, bshd != 0};
    const i64 head = row / queries, q = row % queries;
    const Rows o = rows_of(z, heads, queries, dv, head / heads, head % heads);
    C most = -infinity<C>(), total = 0;
    for (i64 s = 0; s < splits; ++s) most = max_nan(most, part_sums[(2 * s + 1) * rows_of_all + row]);
    const C below = most == -infinity<C>() ? C(0) : most;
    for (i64 s = 0; s < splits; ++s)
        total += part_sums[2 * s * rows_of_all + row] * exponential(part_sums[(2 * s + 1) * rows_of_all + row] - below);
    for (i64 x = lane; x < dv; x += 32) {
        const i64 place = o.at + q * o.step + x;
        C value = 0;
        for (i64 s = 0; s < splits; ++s) {
            const C weight =
                part_sums[2 * s * rows_of_all + row] * exponential(part_sums[(2 * s + 1) * rows_of_all + row] - below);
            if (weight != 0) value += weight * part[s * elements + place];
        }
        Out[place] = down<T>(total == 0 ? C(0) : value / total);
    }
    if (sums && lane == 0) sums[row] = ST(log_sum(total, below, masked != 0, C(masked_score)));
}

// Reports cumulative lengths that do not start at 0, fall, or end beyond the array.
extern "C" __global__ void __launch_bounds__(THREADS) check_lengths(
    const L* lengths_q, const L* lengths_k, i64 count, i64 queries, i64 keys, Fault* fault, i64 step)
{
    look(fault);
    for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i <= count; i += i64(gridDim.x) * THREADS)
        for (int side = 0; side < 2; ++side) {
            const L* lengths = side ? lengths_k : lengths_q;
            const i64 n = i64(lengths[i]), low = i ? i64(lengths[i - 1]) : 0;
            if (n < low || n > (side ? keys : queries) || (i == 0 && n != 0)) report(fault, step, n, i);
        }
}
