// Attention on tensor cores (mma.sync), forward. Q [B,H,Sq,D], K [B,Hk,Sk,D], V [B,Hk,Sk,Dv] in either layout
// -> Out [B,H,Sq,Dv], LSE [B,H,Sq].
//
// A warp owns 16 MT queries, a block WARPS times as many, of one head; it walks over the keys that they see, BN at a
// time, in two stages of shared memory: copies of the next tile run under the products of this one. Probabilities go
// from results to operands in registers. A tile's part of a float Out is summed by itself and added in float, since
// tensor cores cut off what they add. Where blocks are few, the blocks of a cluster share the keys of a tile and add up
// among themselves; or blockIdx.y takes its part of the keys, and `join` of exact/forward.cu joins them in order.

// Registers are: none is left for which tiles a warp may skip.
constexpr bool FULL = HEAD + HEAD_V > (SINGLE ? 224 : 384);

__device__ __forceinline__ float log_sum(float total, float largest, bool whole) {
    if (total == 0) return -infinity<float>();
    return whole ? infinity<float>() : logf(total) + largest;
}

// What is added to scores or put in their place, as an exponent of 2. Only -inf becomes -inf.
__device__ __forceinline__ float exponent_of(float x) {
    const float y = x * LOG2E;
    return y == -infinity<float>() && x != y ? -3.3e38f : y;
}

// part: null, or float [splits][B,H,Sq,Dv in Out's layout]; part_sums: for each split the sum of exponentials and the
// largest score of each row, float [splits][2][B,H,Sq]
extern "C" __global__ void OF_CLUSTER __launch_bounds__(THREADS, LEAST) attention_mma_forward(
    INPUTS, T* Out, float* sums, float* part, float* part_sums, i64 tiles, i64 splits, i64 elements, i64 rows_of_all)
{
    READ_INPUTS
    extern __shared__ uint4 memory[];
    Byte* const own = (Byte*)memory;
    Byte* const stages = own + BM * HEAD * sizeof(T);
    constexpr int K_BYTES = BN * HEAD * sizeof(T), V_BYTES = BN * HEAD_V * sizeof(T);
    Byte* const inbox = stages + 2 * (K_BYTES + V_BYTES);
    __shared__ Interval seen[BM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (CLUSTER > 1) cluster_arrive();
    const u32 tile = blockIdx.x / CLUSTER;
    const int first = int(u32(tiles) - 1 - tile % u32(tiles)) * BM, head = tile / u32(tiles);
    const int b = head / heads, h = head % heads;
    const int kv = h / groups, own_row = warp * 16 * MT;
    const Rows q_rows = rows_in(z.q, b, h), k_rows = rows_in(z.k, b, kv);
    const Rows v_rows = rows_in(z.v, b, kv);
    const Place at = place_of(m, z, b, h);
    const float unit = GENERAL ? 1.0f : m.scale * LOG2E;  // scores times this are exponents of 2
    const float product_unit = m.scale * LOG2E, masked_unit = exponent_of(m.masked_score);

    load_tile<BM, HEAD>(own, Q + q_rows.at + first * q_rows.step, int(q_rows.step), queries - first, d);
    for (int r = threadIdx.x; r < BM; r += THREADS)
        seen[r] = sight.of_query(first + r);
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

    Left q[OWN_HELD ? HEAD / 16 : 1][MT];
    hold<HEAD>(q, own, own_row);
    float out[MT][HEAD_V / 8][4], largest[MT][2], total[MT][2];
    clear(out);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        largest[i][0] = largest[i][1] = -infinity<float>();
        total[i][0] = total[i][1] = 0;
    }
#pragma unroll 1
    for (int next; n < last; n = next, stage.turn()) {
        next = next_shown(n + 1, last, shows);
        const Byte* const k_tile = stages + stage.of(n) * (K_BYTES + V_BYTES);
        const Byte* const v_tile = k_tile + K_BYTES;
        const int k0 = all.begin + n * BN;
        if (next < last) load_stage(next, stage.after(next));
        if (FULL || (k0 < mine.end && k0 + BN > mine.begin)) {
            float s[MT][BN / 8][4];
#pragma unroll
            for (int j = 0; j < BN / 32; ++j) scores<HEAD, FILLED_D>(s, 4 * j, q, own, own_row, k_tile, j);
            const bool edge = k0 < mine.full_begin || k0 + BN > mine.full_end;
            float shrink[MT][2];
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = own_row + 16 * i + lane / 4 + 8 * half, q_row = first + row;
                    if (GENERAL) {
#pragma unroll
                        for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const int k = k0 + 8 * c + 2 * (lane % 4) + e;
                                float& x = s[i][c][2 * half + e];
                                x *= product_unit;
                                if (q_row < queries && k < keys) {
                                    if (BIASED && m.bias) x += exponent_of(up(m.bias[at.bias + q_row * m.bias_q + k * m.bias_k]));
                                    if (hides(m, at, q_row, k)) x = masked_unit;
                                    if (!WHOLE_TILES && !sight.shows(h, q_row, k)) x = -infinity<float>();
                                }
                            }
                        }
                    }
                    if (edge) {
                        const Interval span = seen[row];
#pragma unroll
                        for (int c = 0; c < BN / 8; ++c)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const int k = k0 + 8 * c + 2 * (lane % 4) + e;
                                if (k < span.lo || k >= span.hi) s[i][c][2 * half + e] = -infinity<float>();
                            }
                    }
                    if (!GENERAL && !WHOLE_TILES) {
#pragma unroll
                        for (int c = 0; c < BN / 8; ++c)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const int k = k0 + 8 * c + 2 * (lane % 4) + e;
                                const bool inside = q_row < queries && k < keys;
                                if (inside && !sight.shows(h, q_row, k)) s[i][c][2 * half + e] = -infinity<float>();
                            }
                    }
                    float most = largest[i][half];
#pragma unroll
                    for (int c = 0; c < BN / 8; ++c)
                        most = max_nan(most, max_nan(s[i][c][2 * half], s[i][c][2 * half + 1]));
                    most = over_quad_max(most);
                    const float below = most == -infinity<float>() ? 0.0f : __fmul_rn(most, unit);  // never fused
                    shrink[i][half] = power_of_two(__fmul_rn(largest[i][half], unit) - below);
                    largest[i][half] = most;
                    float sum = 0;
#pragma unroll
                    for (int c = 0; c < BN / 8; ++c) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            float& x = s[i][c][2 * half + e];
                            x = power_of_two(fmaf(x, unit, -below));
                            sum += x;
                            if (DROPS && x != 0) x *= kept(q_row, k0 + 8 * c + 2 * (lane % 4) + e, m, z, at);
                        }
                    }
                    total[i][half] = total[i][half] * shrink[i][half] + sum;
                }
#pragma unroll
            for (int piece = 0; piece < BN / 16; piece += AT_ONCE) {
#pragma unroll
                for (int c = 0; c < HEAD_V / 32; ++c) {
                    Sums found[MT];
#pragma unroll
                    for (int i = 0; i < MT; ++i) found[i].begin(out[i][4 * c], shrink[i], piece == 0);
                    multiply(found, AT_ONCE, [&](int more, Left (&left)[MT], Right& right) {
                        const int k = piece + more;
                        right.load_columns<HEAD_V>(v_tile, k, c);
#pragma unroll
                        for (int i = 0; i < MT; ++i) left[i].take(s[i][2 * k], s[i][2 * k + 1]);
                    });
#pragma unroll
                    for (int i = 0; i < MT; ++i) found[i].end(out[i][4 * c], shrink[i], piece == 0);
                }
            }
        }
        wait_for_copies();
        __syncthreads();
    }
    const Rows o_rows = rows_of(z, heads, queries, dv, b, h);
    const i64 place = o_rows.at + first * o_rows.step;
    auto is_hidden = [&](float most) {
        return MASKED && m.masked_score <= float(HIDDEN_WHOLE) && most == masked_unit;
    };
    if (CLUSTER > 1) {
        cluster_wait();
        send_sums<HEAD_V>(out, inbox, own_row);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = own_row + 16 * i + lane / 4 + 8 * half;
                const Pack<float, 4> sent = {{__fmul_rn(largest[i][half], unit), over_quad_sum(total[i][half])}};
                if (lane % 4 == 0)
                    send<CLUSTER>(inbox_row<HEAD_V>(inbox, split, row % SHARE) + 4 * HEAD_V, row / SHARE, sent);
            }
        cluster_arrive(), cluster_wait();
        auto weigh = [&](int row, int r, float (&weights)[CLUSTER]) {
            float most = -infinity<float>(), of_row = 0;
            Pack<float, 2> found[CLUSTER];
#pragma unroll
            for (int s = 0; s < CLUSTER; ++s) {
                found[s] = *(const Pack<float, 2>*)(inbox_row<HEAD_V>(inbox, s, r) + 4 * HEAD_V);
                most = max_nan(most, found[s].v[0]);
            }
            const float below = most == -infinity<float>() ? 0.0f : most;
#pragma unroll
            for (int s = 0; s < CLUSTER; ++s) {
                weights[s] = power_of_two(found[s].v[0] - below);
                of_row = fmaf(weights[s], found[s].v[1], of_row);
            }
            const float factor = of_row == 0 ? 0.0f : 1.0f / of_row;
#pragma unroll
            for (int s = 0; s < CLUSTER; ++s) weights[s] *= factor;
            const bool hidden = is_hidden(most);
            const float natural = hidden ? m.masked_score : most * LN2;
            if (sums && lane % 4 == 0) sums[i64(head) * queries + first + row] = log_sum(of_row, natural, hidden);
        };
        store_joined<HEAD_V>(inbox, Out + place, o_rows.step, queries - first, dv, weigh);
        return;
    }
    float factor[MT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all_of_row = over_quad_sum(total[i][half]);
            const int q_row = first + own_row + 16 * i + lane / 4 + 8 * half;
            factor[i][half] = all_of_row == 0 ? 0.0f : 1.0f / all_of_row;
            if (q_row >= queries || lane % 4 != 0) continue;
            const bool hidden = is_hidden(largest[i][half]);
            const float natural = hidden ? m.masked_score : __fmul_rn(largest[i][half], unit) * LN2;
            const i64 row = i64(head) * queries + q_row;
            if (part) {
                part_sums[2 * split * rows_of_all + row] = all_of_row;
                part_sums[(2 * split + 1) * rows_of_all + row] = natural;
            } else if (sums) {
                sums[row] = log_sum(all_of_row, natural, hidden);
            }
        }
    if (part) store_sums<HEAD_V>(out, factor, part + split * elements + place, o_rows.step, own_row, queries - first, dv);
    else store_sums<HEAD_V>(out, factor, Out + place, o_rows.step, own_row, queries - first, dv);
}
