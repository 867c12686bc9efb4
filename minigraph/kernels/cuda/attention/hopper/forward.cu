// Flash attention, forward, on Hopper (FlashAttention-3's division of work): one warpgroup loads tiles of keys and
// values, GROUPS compute 64 queries each, in turns: scores of the next tile are multiplied while those of this one
// become probabilities. Blocks stay: each works through its column of `order`, pieces, a tile of -1 behind the last,
// and the first scores of a piece are multiplied together with the last values of the one before. PAIR blocks of a
// cluster have tiles of queries beside each other and load one part of every tile of keys for all of them. A tile that
// is cut among blocks is put together by whoever is done with it last, in the order of its parts, so results have the
// same bits in every run. BANDED: a window or causal; PAIR is 1 then.
constexpr int PART = STEP / PAIR;  // rows that one block loads
static_assert(PART % 8 == 0 && (!BANDED || PAIR == 1) && 64 * (GROUPS - 1) <= STEP, "");

struct Barriers {
    u64 q_full[Q_STAGES], q_empty[Q_STAGES], k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};
// Tiles of keys [begin, end) of a tile of queries. Of a tile that is cut: the number of its first part among all, how
// many they are and which one this is, first << 8 | parts << 4 | index; else -1.
struct alignas(16) Piece {
    int tile, begin, end, cut;
};
// A piece, and where its queries are: the first row, of this block.
struct Work : Piece {
    int first_row, head, batch;
    __device__ __forceinline__ Work(const Piece& piece, int tiles, int heads, int rank)
        : Piece(piece), first_row((tile % tiles * PAIR + rank) * ROWS), head(tile / tiles % heads),
          batch(tile / tiles / heads) {}
};

extern "C" __global__ __cluster_dims__(PAIR, 1, 1) __launch_bounds__(GROUPS * 128 + 128, 1) void attention_forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* out, float* lse, const Piece* order, float4* parts_of_tiles,
    int* arrived, int tiles_of_queries, int queries, int keys, int heads, int group, int width, float scale, int low,
    int high, i64 out_batch, i64 out_head, i64 out_row) {
    extern __shared__ unsigned char raw[];
    __shared__ Barriers barriers;
    const u32 q_tile = (shared_address(raw) + 1023) & ~1023u, k_tile = q_tile + Q_STAGES * TILE_BYTES;
    const u32 v_tile = k_tile + STAGES * STEP_BYTES;
    const u32 q_full = shared_address(barriers.q_full), q_empty = shared_address(barriers.q_empty);
    const u32 k_full = shared_address(barriers.k_full), k_empty = shared_address(barriers.k_empty);
    const u32 v_full = shared_address(barriers.v_full), v_empty = shared_address(barriers.v_empty);
    const int rank = PAIR == 1 ? 0 : blockIdx.x % PAIR, across = gridDim.x / PAIR;

    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_STAGES; i++) {
            barrier_init(q_full + 8 * i, 1);
            barrier_init(q_empty + 8 * i, GROUPS * 4);  // one arrival for each warp that computes
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, GROUPS * 4 * PAIR);
            barrier_init(v_empty + 8 * i, GROUPS * 4 * PAIR);
        }
        barriers_ready();
    }
    if (PAIR == 1) __syncthreads();
    else cluster_sync();
    order += blockIdx.x / PAIR;

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            // this block's part of a tile, for all of the cluster
            auto load = [&](u32 tile, const TensorMap& map, u32 full, int row, int head, int batch) {
                barrier_expect(full, STEP_BYTES);
#pragma unroll 1
                for (int c = 0; c < CHUNKS; c++) {
                    const u32 to = tile + (c * STEP + rank * PART) * 128;
                    if (PAIR == 1) load_box(to, map, full, c * 64, row, head, batch);
                    else load_box_for(to, map, full, c * 64, row + rank * PART, head, batch, (1 << PAIR) - 1);
                }
            };
            u32 n = 0;
#pragma unroll 1
            for (u32 r = 0;; r++) {
                const Piece piece = order[r * across];
                if (piece.tile < 0) break;
                const Work work(piece, tiles_of_queries, heads, rank);
                const u32 q_stage = r % Q_STAGES;
                barrier_wait(q_empty + 8 * q_stage, (r / Q_STAGES & 1) ^ 1);
                barrier_expect(q_full + 8 * q_stage, TILE_BYTES);
                load_tile<ROWS>(
                    q_tile + q_stage * TILE_BYTES, q_map, q_full + 8 * q_stage, work.first_row, work.head, work.batch);
                const int key_head = work.head / group;
#pragma unroll 1
                for (int j = work.end - 1; j >= work.begin; j--, n++) {
                    const u32 stage = n % STAGES, parity = (n / STAGES & 1) ^ 1;
                    barrier_wait(k_empty + 8 * stage, parity);
                    load(k_tile + stage * STEP_BYTES, k_map, k_full + 8 * stage, j * STEP, key_head, work.batch);
                    barrier_wait(v_empty + 8 * stage, parity);
                    load(v_tile + stage * STEP_BYTES, v_map, v_full + 8 * stage, j * STEP, key_head, work.batch);
                }
            }
        }
    } else {
        more_registers<REGISTERS>();
        const int part = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        // descriptors take no more bits; in a cluster addresses have more
        const u32 own_q = (q_tile & 0x3ffff) + part * 64 * 128;
        const u32 keys_at = k_tile & 0x3ffff, values_at = v_tile & 0x3ffff;
        const float c = scale * LOG2E;
        float o[HEAD / 2], s[STEP / 2], top[2] = {}, total[2] = {}, shrink[2];
        u32 p[STEP / 4], n = 0, r = 0;  // tiles of keys so far, pieces so far

        // what all lanes hold, where the compiler cannot know it: descriptors are computed once for a warp then
        auto uniform = [](u32 x) { return __shfl_sync(~0u, x, 0); };
        // products of one warpgroup run under the exponentials of the others
        auto take_turn = [&]() { asm volatile("bar.sync %0, 256;" ::"r"(8 + part) : "memory"); };
        const int next_turn = part == GROUPS - 1 ? 8 : 9 + part;
        auto give_turn = [&]() { asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory"); };
        auto release = [&](u32 barrier) {  // in all blocks that loaded a part
            if (PAIR == 1) {
                if (lane == 0) barrier_arrive(barrier);
            } else if (lane < PAIR) {
                barrier_arrive_at(barrier, lane);
            }
        };
        auto own_queries = [&]() { return uniform(own_q + r % Q_STAGES * TILE_BYTES); };
        auto queries_here = [&]() { barrier_wait(q_full + 8 * (r % Q_STAGES), r / Q_STAGES & 1); };
        auto scores = [&](u32 n, u32 from) {
            barrier_wait(k_full + 8 * (n % STAGES), n / STAGES & 1);
            multiply(s, from, keys_at + n % STAGES * STEP_BYTES);
        };
        auto scores_done = [&](bool last) {  // of these queries
            keep(s);
            release(k_empty + 8 * (n % STAGES));
            if (last && lane == 0) barrier_arrive(q_empty + 8 * (r % Q_STAGES));
        };
        auto values = [&](u32 n) {
            barrier_wait(v_full + 8 * (n % STAGES), n / STAGES & 1);
            add_rows(o, p, values_at + n % STAGES * STEP_BYTES);
        };
        auto values_done = [&]() {
            wgmma_wait<0>();
            keep(p);  // registers that a product reads may not be used again before it is done
            keep(o);
        };
        auto to_probabilities = [&]() {
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) p[j] = pack(s[2 * j], s[2 * j + 1]);
            keep(p);
        };
        auto clear = [&]() {
#pragma unroll
            for (int j = 0; j < HEAD / 2; j++) o[j] = 0;
        };
        // What queries of this warpgroup may not see of tile j becomes -infinity: numbers are compared with one bound a row.
        auto hide = [&](const Work& work, int j) {
            const int key = j * STEP, first = work.first_row + part * 64, at = key + lane % 4 * 2;
            const int row = first + warp * 16 + lane / 4;
            if (key + STEP > keys || (BANDED && key + STEP - 1 > first + high)) {
                const int last[2] = {(BANDED ? min(keys - 1, row + high) : keys - 1) - at,
                                     (BANDED ? min(keys - 1, row + 8 + high) : keys - 1) - at};
#pragma unroll
                for (int j = 0; j < STEP / 2; j++)
                    if (j / 4 * 8 + j % 2 > last[j % 4 / 2]) s[j] = -infinity<float>();
            }
            if (BANDED && key < first + 63 + low) {
                const int begin = row + low - at;
#pragma unroll
                for (int j = 0; j < STEP / 2; j++)
                    if (j / 4 * 8 + j % 2 - j % 4 / 2 * 8 < begin) s[j] = -infinity<float>();
            }
        };
        // s becomes exp(scale * (s - maximum)). Where it goes on, what was found before counts, and what was summed up
        // before is to shrink.
        auto softmax = [&](bool goes_on, float (&top)[2], float (&total)[2]) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float found = goes_on ? top[h] : -infinity<float>();
#pragma unroll
                for (int j = 2 * h; j < STEP / 2; j += 4) found = fmaxf(found, fmaxf(s[j], s[j + 1]));
                found = over_quad_max(found);
                const float base = found == -infinity<float>() ? 0.0f : found * c;
                if (goes_on) shrink[h] = exp2_fast(top[h] * c - base);
                top[h] = found;
                float sum = 0;
#pragma unroll
                for (int j = 2 * h; j < STEP / 2; j += 4) {
                    s[j] = exp2_fast(s[j] * c - base);
                    s[j + 1] = exp2_fast(s[j + 1] * c - base);
                    sum += s[j] + s[j + 1];
                }
                total[h] = goes_on ? total[h] * shrink[h] + sum : sum;
            }
        };
        // Passes over tiles that only later queries of the block see; at most one, so that what runs keeps its stage.
        auto skip = [&](Work& work) {
            const int seen = work.first_row + part * 64 + 63 + high;  // the last key
            while (BANDED && (work.end - 1) * STEP > seen && work.end - 1 > work.begin) {
                take_turn();
                give_turn();
                barrier_wait(k_full + 8 * (n % STAGES), n / STAGES & 1);
                release(k_empty + 8 * (n % STAGES));
                barrier_wait(v_full + 8 * (n % STAGES), n / STAGES & 1);
                release(v_empty + 8 * (n % STAGES));
                work.end--;
                n = uniform(n + 1);
            }
        };
        // Hands in a part of a tile. Whether this warp's rows of all parts are there: o, top, total are of the tile then.
        auto complete = [&](int cut) {
            const int first = cut >> 8, parts = cut >> 4 & 15, index = cut & 15;
            constexpr int SIZE = (HEAD / 8 + 1) * 128, NEXT = PAIR * GROUPS * SIZE;  // pieces of 16 bytes
            const int own = (first * PAIR + rank) * GROUPS + part;
            float4 *all = parts_of_tiles + i64(own) * SIZE + threadIdx.x % 128, *mine = all + index * NEXT;
#pragma unroll
            for (int i = 0; i < HEAD / 8; i++)
                mine[i * 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
            mine[HEAD / 8 * 128] = make_float4(top[0], top[1], total[0], total[1]);
            __threadfence();
            __syncwarp();
            int before = 0;
            if (lane == 0) before = atomicAdd(arrived + own * 4 + warp, 1);
            if (__shfl_sync(~0u, before, 0) < parts - 1) return false;
            __threadfence();
            if (lane == 0) arrived[own * 4 + warp] = 0;  // as the next run wants to find it
            top[0] = top[1] = -infinity<float>();
            total[0] = total[1] = 0;
            clear();
#pragma unroll 1
            for (int i = 0; i < parts; i++) {
                const float4 x = load_from_others(all + i * NEXT + HEAD / 8 * 128);
                top[0] = fmaxf(top[0], x.x), top[1] = fmaxf(top[1], x.y);
            }
#pragma unroll 1
            for (int i = 0; i < parts; i++) {
                const float4 x = load_from_others(all + i * NEXT + HEAD / 8 * 128);
                const float weight[2] = {x.x == -infinity<float>() ? 0.0f : exp2_fast((x.x - top[0]) * c),
                                         x.y == -infinity<float>() ? 0.0f : exp2_fast((x.y - top[1]) * c)};
                total[0] += weight[0] * x.z, total[1] += weight[1] * x.w;
#pragma unroll
                for (int j = 0; j < HEAD / 8; j++) {
                    const float4 y = load_from_others(all + i * NEXT + j * 128);
                    o[4 * j] += weight[0] * y.x, o[4 * j + 1] += weight[0] * y.y;
                    o[4 * j + 2] += weight[1] * y.z, o[4 * j + 3] += weight[1] * y.w;
                }
            }
            return true;
        };
        auto finish = [&](const Work& work) {
            if (work.cut >= 0 && !complete(work.cut)) return;
            const int row = work.first_row + part * 64 + warp * 16 + lane / 4;  // and row + 8
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float sum = over_quad_sum(total[h]);
                total[h] = sum == 0 ? 0.0f : 1 / sum;
                const int r = row + 8 * h;
                if (lse != nullptr && lane % 4 == 0 && r < queries)
                    lse[(i64(work.batch) * heads + work.head) * queries + r] =
                        sum == 0 ? EMPTY_LSE : top[h] * scale + logf(sum);
            }
            T* to = out + work.batch * out_batch + work.head * out_head + row * out_row;
            store_results(o, total, to, out_row, queries - row, width);
        };

        if (part == GROUPS - 1) give_turn();
        Work work(order[0], tiles_of_queries, heads, rank);
        queries_here();
        skip(work);
        take_turn();
        scores(n, own_queries());
        give_turn();
        wgmma_wait<0>();
        scores_done(work.end - 1 == work.begin);
        hide(work, work.end - 1);
        softmax(false, top, total);
        to_probabilities();
        clear();
        for (;;) {
            const Piece next = order[(r + 1) * across];
            const u32 from = own_queries();
#pragma unroll 1
            for (int j = work.end - 2; j >= work.begin; j--) {
                n = uniform(n + 1);
                take_turn();
                scores(n, from);
                values(n - 1);
                give_turn();
                wgmma_wait<1>();
                scores_done(j == work.begin);
                if (BANDED) hide(work, j);
                softmax(true, top, total);
                values_done();
                release(v_empty + 8 * ((n - 1) % STAGES));
#pragma unroll
                for (int j = 0; j < HEAD / 2; j++) o[j] *= shrink[j % 4 / 2];
                to_probabilities();
            }
            const Work done = work;
            const bool more = next.tile >= 0;
            float next_top[2] = {}, next_total[2] = {};
            if (more) {
                const u32 last = n;
                r = uniform(r + 1);
                n = uniform(n + 1);
                work = Work(next, tiles_of_queries, heads, rank);
                queries_here();
                skip(work);
                take_turn();
                scores(n, own_queries());
                values(last);
                give_turn();
                wgmma_wait<1>();
                scores_done(work.end - 1 == work.begin);
                hide(work, work.end - 1);
                softmax(false, next_top, next_total);
                values_done();
                release(v_empty + 8 * (last % STAGES));
                to_probabilities();
            } else {
                values(n);
                values_done();
            }
            finish(done);
            if (!more) break;
            clear();
#pragma unroll
            for (int h = 0; h < 2; h++) top[h] = next_top[h], total[h] = next_total[h];
        }
        if (part == 0) take_turn();  // what the last one gave
    }
    if (PAIR > 1) cluster_sync();  // the other block may still load for this one, and arrive at its barriers
}
