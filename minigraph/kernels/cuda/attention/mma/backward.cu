// Attention on tensor cores (mma.sync), backward: the gradients of Q, K, V from LSE.
//
//   P = exp(S - LSE)    dP = kept * (dO V^T)    delta = rowsum(dO * Out) - dLSE    dS = P (dP - delta)
//   query_grad   a warp owns 16 MT queries and walks over keys:        dQ = scale * sum dS K       3 products
//   key_grad     a warp owns 16 MT keys of a head of K and V and walks over the queries of all heads that read it,
//                scores transposed: dV = sum (kept P)^T dO, dK = scale * sum dS^T Q                4 products
// No atomics: every sum has one order. Scores of 32 columns at a time become operands in registers. Sums of 32 rows (16
// in wide heads of float) are added in float, since tensor cores cut off what they add. Where blocks are few, they share
// the other axis within a cluster, which adds up; or among blockIdx.y, and add_parts of exact/backward.cu adds up.

#ifdef PREPARE
// For each query of each head: its numbers. rowsum(dO * Out) is found as dP is, from sums that tensor cores cut off alike:
// where a query sees one key, or one counts, dP - delta is the small difference of the two. LSE is infinite where no key is
// seen, so that probabilities are 0. dsums: null, or the gradient of LSE.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_mma_prepare(
    INPUTS, const T* Out, const T* dO, const float* sums, const float* dsums, Numbers* numbers, i64 tiles)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    Byte* const grads = (Byte*)memory;
    Byte* const results = grads + BM * HEAD_V * sizeof(T);
    __shared__ float products[BM];
    const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * 16;
    const int first = int(blockIdx.x % u32(tiles)) * BM, head = blockIdx.x / u32(tiles), b = head / heads, h = head % heads;
    const Rows o = rows_of(z, heads, queries, dv, b, h);
    const i64 place = o.at + first * o.step;
    load_tile<BM, HEAD_V>(grads, dO + place, int(o.step), queries - first, dv);
    load_tile<BM, HEAD_V>(results, Out + place, int(o.step), queries - first, dv);
    wait_for_copies();
    __syncthreads();

    Left held[1][MT];
    float s[MT][4][4];
    scores<HEAD_V, FILLED_V>(s, 0, held, grads, own_row, results, own_row / 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a row's product with itself
        const int row = lane / 4 + 8 * half;
        const bool upper = own_row % 32 == 0, even = row % 2 == 0;
        const float x = even ? s[0][half][2 * half] : s[0][half][2 * half + 1];
        const float y = even ? s[0][2 + half][2 * half] : s[0][2 + half][2 * half + 1];
        if (lane % 4 == row % 8 / 2) products[own_row + row] = upper ? x : y;
    }
    __syncwarp();
    const i64 own = i64(head) * queries + first + own_row;
    const int valid = min(16, queries - first - own_row);
    auto delta = [&](int r) { return products[own_row + r] - grad_of_lse(sums[own + r], dsums, own + r); };
    const float lse = lane < valid ? sums[own + lane] : 0.0f;
    const bool far = is_far(lse, m);
    if (lane < valid && !far)
        numbers[own + lane] = numbers_of(lse == -infinity<float>() ? infinity<float>() : lse, delta(lane));
#if GENERAL
    for (u32 rest = __ballot_sync(~0u, far); rest; rest &= rest - 1) {
        const int r = __ffs(rest) - 1;
        const Numbers found = far_numbers(delta(r), b, h, first + own_row + r, Q, K, z, sight, m);
        if (lane == 0) numbers[own + r] = found;
    }
#endif
}
#endif

// Leaves the probability that counts for values in `s`, the gradient of the score in `dp`. LSE is subtracted before
// powers of 2 are taken, so that what is rounded is small.
__device__ __forceinline__ void slope(
    float& s, float& dp, bool seen, Numbers of_query, int q, int k, const Modifiers& m, const Sizes& z,
    const Place& at)
{
#if GENERAL
    bool drawn = true;
    float x = seen ? score(s, q, k, m, at, &drawn) : -infinity<float>(), keep = 1;
    const float p = power_of_two(fmaf(x - of_query.lse, LOG2E, -of_query.rest * LOG2E));
    if (DROPS && p != 0) keep = kept(q, k, m, z, at);
    s = p * keep;
    dp = p * (dp * keep - of_query.delta);
    if (!drawn || p == 0) dp = 0;
#else
    s = seen ? power_of_two(fmaf(s, m.scale, -of_query.lse) * LOG2E) : 0.0f;
    dp = s * (dp - of_query.delta);
#endif
}

// sum += weights^T of 32 rows of `tile`, from row 32 j on, times these rows.
template <int WIDTH>
__device__ __forceinline__ void add_rows(
    float (&sum)[MT][WIDTH / 8][4], const float (&weights)[MT][4][4], const Byte* tile, int j)
{
    const float one[2] = {1, 1};
#pragma unroll
    for (int piece = 0; piece < 2; piece += AT_ONCE)
#pragma unroll
        for (int c = 0; c < WIDTH / 32; ++c) {
            Sums found[MT];
#pragma unroll
            for (int i = 0; i < MT; ++i) found[i].begin(sum[i][4 * c], one, false);
            multiply(found, AT_ONCE, [&](int more, Left (&left)[MT], Right& right) {
                const int k = piece + more;
                right.load_columns<WIDTH>(tile, 2 * j + k, c);
#pragma unroll
                for (int i = 0; i < MT; ++i) left[i].take(weights[i][2 * k], weights[i][2 * k + 1]);
            });
#pragma unroll
            for (int i = 0; i < MT; ++i) found[i].end(sum[i][4 * c], one, false);
        }
}
__device__ __forceinline__ void fill(float (&to)[MT][2], float x) {
#pragma unroll
    for (int i = 0; i < MT; ++i) to[i][0] = to[i][1] = x;
}

struct Same {  // weight of the parts of a cluster
    float weight;
    __device__ __forceinline__ void operator()(int, int, float (&weights)[CLUSTER]) const {
#pragma unroll
        for (int s = 0; s < CLUSTER; ++s) weights[s] = weight;
    }
};

#ifdef QUERY_GRAD
// part: null, or float [splits][as dQ]
extern "C" __global__ void OF_CLUSTER __launch_bounds__(THREADS, LEAST) attention_mma_query_grad(
    INPUTS, const T* dO, const Numbers* numbers, T* dQ, float* part, i64 tiles, i64 splits, i64 elements)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    Byte* const own = (Byte*)memory;
    Byte* const own_grad = own + BM * HEAD * sizeof(T);
    Byte* const stages = own_grad + BM * HEAD_V * sizeof(T);
    constexpr int K_BYTES = BN * HEAD * sizeof(T), V_BYTES = BN * HEAD_V * sizeof(T);
    Byte* const inbox = stages + 2 * (K_BYTES + V_BYTES);
    __shared__ Interval seen[BM];
    __shared__ Numbers own_numbers[BM];
    const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * 16 * MT;
    if (CLUSTER > 1) cluster_arrive();
    const u32 tile = blockIdx.x / CLUSTER;
    const int first = int(u32(tiles) - 1 - tile % u32(tiles)) * BM, head = tile / u32(tiles);
    const int b = head / heads, h = head % heads, kv = h / groups;
    const Rows q_rows = rows_in(z.q, b, h), k_rows = rows_in(z.k, b, kv);
    const Rows v_rows = rows_in(z.v, b, kv), o_rows = rows_of(z, heads, queries, dv, b, h);
    const Place at = place_of(m, z, b, h);

    load_tile<BM, HEAD>(own, Q + q_rows.at + first * q_rows.step, int(q_rows.step), queries - first, d);
    load_tile<BM, HEAD_V>(own_grad, dO + o_rows.at + first * o_rows.step, int(o_rows.step), queries - first, dv);
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        own_numbers[r] = first + r < queries ? numbers[i64(head) * queries + first + r] : numbers_of(infinity<float>(), 0);
        seen[r] = sight.of_query(first + r);
    }
    __syncthreads();
    const Reach all = on_tiles(reach_of(seen, BM)), mine = reach_of(seen + own_row, 16 * MT);
    const Steps steps = steps_of(all, 1, splits);
    const int last = steps.last, split = own_split();
    auto shows = [&](int step) { return sight.shows(h, first, BM, all.begin + step * BN, BN); };
    int n = next_shown(steps.first, last, shows);
    Stage stage;
    auto load_stage = [&](int step, int place) {
        Byte* const to = stages + place * (K_BYTES + V_BYTES);
        const i64 k0 = all.begin + step * BN;
        load_tile<BN, HEAD>(to, K + k_rows.at + k0 * k_rows.step, int(k_rows.step), all.end - int(k0), d);
        load_tile<BN, HEAD_V>(to + K_BYTES, V + v_rows.at + k0 * v_rows.step, int(v_rows.step), all.end - int(k0), dv);
    };
    if (n < last) load_stage(n, stage.of(n));
    wait_for_copies();
    __syncthreads();

    Left q[OWN_HELD ? HEAD / 16 : 1][MT], grad[OWN_HELD ? HEAD_V / 16 : 1][MT];
    hold<HEAD>(q, own, own_row);
    hold<HEAD_V>(grad, own_grad, own_row);
    float sum[MT][HEAD / 8][4];
    clear(sum);
#pragma unroll 1
    for (int next; n < last; n = next, stage.turn()) {
        next = next_shown(n + 1, last, shows);
        const Byte* const k_tile = stages + stage.of(n) * (K_BYTES + V_BYTES);
        const Byte* const v_tile = k_tile + K_BYTES;
        if (next < last) load_stage(next, stage.after(next));
#pragma unroll
        for (int j = 0; j < BN / 32; ++j) {
            const int k0 = all.begin + n * BN + 32 * j;
            if (k0 >= mine.end || k0 + 32 <= mine.begin) continue;
            float s[MT][4][4], dp[MT][4][4];
            scores<HEAD, FILLED_D>(s, 0, q, own, own_row, k_tile, j);
            scores<HEAD_V, FILLED_V>(dp, 0, grad, own_grad, own_row, v_tile, j);
            const bool edge = k0 < mine.full_begin || k0 + 32 > mine.full_end;
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = fresh(own_row) + 16 * i + lane / 4 + 8 * half;
                    const Interval span = edge ? seen[row] : Interval{0, 1 << 30};
                    const Numbers number = own_numbers[row];
#pragma unroll
                    for (int t = 0; t < 4; ++t) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int k = k0 + 8 * t + 2 * (lane % 4) + e;
                            const bool inside = k >= span.lo && k < span.hi;
                            slope(s[i][t][2 * half + e], dp[i][t][2 * half + e],
                                  inside && (WHOLE_TILES || sight.shows(h, first + row, k)), number, first + row, k, m,
                                  z, at);
                        }
                    }
                }
            add_rows<HEAD>(sum, dp, k_tile, j);
        }
        wait_for_copies();
        __syncthreads();
    }
    const Rows dq_rows = rows_of(z, heads, queries, d, b, h);
    const i64 place = dq_rows.at + first * dq_rows.step;
    if (CLUSTER > 1) {
        cluster_wait();
        send_sums<HEAD>(sum, inbox, own_row);
        cluster_arrive(), cluster_wait();
        store_joined<HEAD>(inbox, dQ + place, dq_rows.step, queries - first, d, Same{m.scale});
        return;
    }
    float factor[MT][2];
    fill(factor, m.scale);
    if (part) store_sums<HEAD>(sum, factor, part + split * elements + place, dq_rows.step, own_row, queries - first, d);
    else store_sums<HEAD>(sum, factor, dQ + place, dq_rows.step, own_row, queries - first, d);
}
#endif

#ifdef KEY_GRAD
// dK where FOR_K, dV where FOR_V. part: null, or float [splits][as dK, then as dV]
extern "C" __global__ void OF_CLUSTER __launch_bounds__(THREADS, LEAST) attention_mma_key_grad(
    INPUTS, const T* dO, const Numbers* numbers, T* dK, T* dV, float* part, i64 tiles, i64 splits, i64 elements_k,
    i64 elements_v)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    Byte* const own = (Byte*)memory;
    Byte* const own_value = own + BM * HEAD * sizeof(T);
    Byte* const stages = own_value + BM * HEAD_V * sizeof(T);
    constexpr int Q_BYTES = BN * HEAD * sizeof(T), O_BYTES = BN * HEAD_V * sizeof(T);
    constexpr int NUMBERS = Q_BYTES + O_BYTES, BYTES = NUMBERS + BN * sizeof(Numbers);
    Byte* const of_keys = stages + 2 * BYTES;  // inboxes
    Byte* const of_values = of_keys + (FOR_K ? INBOX<HEAD> : 0);
    __shared__ Interval seen[BM];
    const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 * 16 * MT, kv_heads = heads / groups;
    if (CLUSTER > 1) cluster_arrive();
    const u32 tile = blockIdx.x / CLUSTER;
    const int first = int(tile % u32(tiles)) * BM, kv_head = tile / u32(tiles), b = kv_head / kv_heads;
    const int kv = kv_head % kv_heads;
    const Rows k_rows = rows_in(z.k, b, kv), v_rows = rows_in(z.v, b, kv);

    load_tile<BM, HEAD>(own, K + k_rows.at + first * k_rows.step, int(k_rows.step), keys - first, d);
    load_tile<BM, HEAD_V>(own_value, V + v_rows.at + first * v_rows.step, int(v_rows.step), keys - first, dv);
    for (int r = threadIdx.x; r < BM; r += THREADS)
        seen[r] = sight.of_key(first + r);
    __syncthreads();
    const Reach all = on_tiles(reach_of(seen, BM)), mine = reach_of(seen + own_row, 16 * MT);
    const Steps steps = steps_of(all, groups, splits);
    const int last = steps.last, split = own_split();
    auto shows = [&](int step) {
        return sight.shows(kv * groups + step / steps.count, all.begin + step % steps.count * BN, BN, first, BM);
    };
    int n = next_shown(steps.first, last, shows);
    Stage stage;
    int h = kv * groups + n / max(steps.count, 1), q_step = n % max(steps.count, 1);  // of step n: head, tile of queries
    auto load_stage = [&](int place, int h, int q_step) {
        Byte* const to = stages + place * BYTES;
        const int q0 = all.begin + q_step * BN;
        const Rows q_rows = rows_in(z.q, b, h), o_rows = rows_of(z, heads, queries, dv, b, h);
        load_tile<BN, HEAD>(to, Q + q_rows.at + q0 * q_rows.step, int(q_rows.step), all.end - q0, d);
        load_tile<BN, HEAD_V>(to + Q_BYTES, dO + o_rows.at + q0 * o_rows.step, int(o_rows.step), all.end - q0, dv);
        for (int r = threadIdx.x; r < BN; r += THREADS) {
            const bool inside = r < all.end - q0;
            const Numbers* const from = numbers + (inside ? i64(b * heads + h) * queries + q0 + r : 0);
            copy_or_clear(to, NUMBERS + int(sizeof(Numbers)) * r, from, inside);
        }
    };
    if (n < last) load_stage(stage.of(n), h, q_step);
    wait_for_copies();
    __syncthreads();

    Left own_keys[OWN_HELD ? HEAD / 16 : 1][MT], own_values[OWN_HELD ? HEAD_V / 16 : 1][MT];
    hold<HEAD>(own_keys, own, own_row);
    if (FOR_K) hold<HEAD_V>(own_values, own_value, own_row);
    float to_k[MT][HEAD / 8][4], to_v[MT][HEAD_V / 8][4];
    clear(to_k);
    clear(to_v);
#pragma unroll 1
    for (int next; n < last; n = next, stage.turn()) {
        next = next_shown(n + 1, last, shows);
        const Byte* const q_tile = stages + stage.of(n) * BYTES;
        const Byte* const o_tile = q_tile + Q_BYTES;
        const Place at = place_of(m, z, b, h);
        int next_step = q_step + 1 < steps.count ? q_step + 1 : 0, next_h = next_step ? h : h + 1;
        if (BLOCK) next_h = kv * groups + next / steps.count, next_step = next % steps.count;
        if (next < last) load_stage(stage.after(next), next_h, next_step);
#pragma unroll
        for (int j = 0; j < BN / 32; ++j) {
            const int q0 = all.begin + q_step * BN + 32 * j;
            if (q0 >= mine.end || q0 + 32 <= mine.begin) continue;
            float s[MT][4][4], dp[MT][4][4];
            scores<HEAD, FILLED_D>(s, 0, own_keys, own, own_row, q_tile, j);
            if (FOR_K) scores<HEAD_V, FILLED_V>(dp, 0, own_values, own_value, own_row, o_tile, j);
            else clear(dp);
            no_load_moves();
            const bool edge = q0 < mine.full_begin || q0 + 32 > mine.full_end;
            Interval spans[MT][2];
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    spans[i][half] = edge ? seen[fresh(own_row) + 16 * i + lane / 4 + 8 * half] : Interval{0, 1 << 30};
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const int column = 8 * t + 2 * (lane % 4);
                const Numbers* const from = (const Numbers*)(q_tile + NUMBERS) + 32 * j + column;
                const Numbers of_queries[2] = {from[0], from[1]};
#pragma unroll
                for (int i = 0; i < MT; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = own_row + 16 * i + lane / 4 + e / 2 * 8, q = q0 + column + e % 2;
                        const bool met = q >= spans[i][e / 2].lo && q < spans[i][e / 2].hi;
                        const bool inside = met && (WHOLE_TILES || sight.shows(h, q, first + row));
                        slope(s[i][t][e], dp[i][t][e], inside, of_queries[e % 2], q, first + row, m, z, at);
                    }
            }
            if (FOR_V) add_rows<HEAD_V>(to_v, s, o_tile, j);
            if (FOR_K) add_rows<HEAD>(to_k, dp, q_tile, j);
        }
        h = next_h;
        q_step = next_step;
        wait_for_copies();
        __syncthreads();
    }
    float *const part_k = part + split * (elements_k + elements_v), *const part_v = part_k + elements_k;
    const Rows dk_rows = rows_of(z, kv_heads, keys, d, b, kv), dv_rows = rows_of(z, kv_heads, keys, dv, b, kv);
    const i64 at_k = dk_rows.at + first * dk_rows.step, at_v = dv_rows.at + first * dv_rows.step;
    const int valid = keys - first;
    if (CLUSTER > 1) {
        cluster_wait();
        if (FOR_K) send_sums<HEAD>(to_k, of_keys, own_row);
        if (FOR_V) send_sums<HEAD_V>(to_v, of_values, own_row);
        cluster_arrive(), cluster_wait();
        if (FOR_K) store_joined<HEAD>(of_keys, dK + at_k, dk_rows.step, valid, d, Same{m.scale});
        if (FOR_V) store_joined<HEAD_V>(of_values, dV + at_v, dv_rows.step, valid, dv, Same{1});
        return;
    }
    float factor[MT][2], one[MT][2];
    fill(factor, m.scale);
    fill(one, 1);
    if (FOR_K && part) store_sums<HEAD>(to_k, factor, part_k + at_k, dk_rows.step, own_row, valid, d);
    else if (FOR_K) store_sums<HEAD>(to_k, factor, dK + at_k, dk_rows.step, own_row, valid, d);
    if (FOR_V && part) store_sums<HEAD_V>(to_v, one, part_v + at_v, dv_rows.step, own_row, valid, dv);
    else if (FOR_V) store_sums<HEAD_V>(to_v, one, dV + at_v, dv_rows.step, own_row, valid, dv);
}
#endif
