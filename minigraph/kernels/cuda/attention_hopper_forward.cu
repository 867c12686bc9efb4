// Flash attention, forward, on Hopper (FlashAttention-3's division of work): one warpgroup loads tiles of keys and
// values, GROUPS compute 64 queries each, in turns: scores of the next tile are multiplied while those of this one
// become probabilities. Blocks stay: each works through its column of `order`, numbers of tiles of queries with -1 behind
// the last, so that what a tile begins and ends with runs beside the products of the next. BANDED: a window or causal.
struct Barriers {
    u64 q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};
// A tile of queries, and the tiles of keys that it sees.
struct Work {
    int first_row, head, batch, begin, end;
    __device__ __forceinline__ Work(int item, int tiles, int heads, int keys, int low, int high)
        : first_row(item % tiles * ROWS), head(item / tiles % heads), batch(item / tiles / heads) {
        const int last_key = min(keys - 1, first_row + ROWS - 1 + high);
        begin = max(0, first_row + low) / STEP;
        end = max(begin, last_key < 0 ? 0 : last_key / STEP + 1);
    }
};

extern "C" __global__ __launch_bounds__(GROUPS * 128 + 128, 1) void attention_forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* out, float* lse, const int* order, int tiles_of_queries, int queries,
    int keys, int heads, int group, int width, float scale, int low, int high, i64 out_batch, i64 out_head,
    i64 out_row) {
    extern __shared__ unsigned char raw[];
    __shared__ Barriers barriers;
    const u32 q_tile = (shared_address(raw) + 1023) & ~1023u, k_tile = q_tile + TILE_BYTES;
    const u32 v_tile = k_tile + STAGES * STEP_BYTES;
    const u32 q_full = shared_address(&barriers.q_full), q_empty = shared_address(&barriers.q_empty);
    const u32 k_full = shared_address(barriers.k_full), k_empty = shared_address(barriers.k_empty);
    const u32 v_full = shared_address(barriers.v_full), v_empty = shared_address(barriers.v_empty);

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        barrier_init(q_empty, GROUPS * 4);  // one arrival for each warp that computes
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, GROUPS * 4);
            barrier_init(v_empty + 8 * i, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    order += blockIdx.x;

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            u32 n = 0;
#pragma unroll 1
            for (u32 r = 0;; r++) {
                const int item = order[r * gridDim.x];
                if (item < 0) break;
                const Work work(item, tiles_of_queries, heads, keys, low, high);
                barrier_wait(q_empty, (r & 1) ^ 1);
                barrier_expect(q_full, TILE_BYTES);
                load_tile<ROWS>(q_tile, q_map, q_full, work.first_row, work.head, work.batch);
                const int key_head = work.head / group;
#pragma unroll 1
                for (int j = work.end - 1; j >= work.begin; j--, n++) {
                    const u32 stage = n % STAGES, parity = (n / STAGES & 1) ^ 1;
                    barrier_wait(k_empty + 8 * stage, parity);
                    barrier_expect(k_full + 8 * stage, STEP_BYTES);
                    load_tile<STEP>(k_tile + stage * STEP_BYTES, k_map, k_full + 8 * stage, j * STEP, key_head,
                                    work.batch);
                    barrier_wait(v_empty + 8 * stage, parity);
                    barrier_expect(v_full + 8 * stage, STEP_BYTES);
                    load_tile<STEP>(v_tile + stage * STEP_BYTES, v_map, v_full + 8 * stage, j * STEP, key_head,
                                    work.batch);
                }
            }
        }
    } else {
        more_registers<REGISTERS>();
        const int part = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const u32 own_q = q_tile + part * 64 * 128;
        const float c = scale * LOG2E;
        float o[HEAD / 2], s[STEP / 2], top[2], total[2];
        u32 p[STEP / 4], n = 0;  // tiles of keys so far

        // products of one warpgroup run under the exponentials of the others
        auto take_turn = [&]() { asm volatile("bar.sync %0, 256;" ::"r"(8 + part) : "memory"); };
        const int next_turn = part == GROUPS - 1 ? 8 : 9 + part;
        auto give_turn = [&]() { asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory"); };
        auto scores = [&](u32 n) {
            barrier_wait(k_full + 8 * (n % STAGES), n / STAGES & 1);
            multiply(s, own_q, k_tile + n % STAGES * STEP_BYTES);
        };
        auto values = [&](u32 n) {
            barrier_wait(v_full + 8 * (n % STAGES), n / STAGES & 1);
            add_rows(o, p, v_tile + n % STAGES * STEP_BYTES);
        };
        auto to_probabilities = [&]() {
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) p[j] = pack(s[2 * j], s[2 * j + 1]);
            keep(p);
        };

        if (part == GROUPS - 1) give_turn();
        for (u32 r = 0;; r++) {
            const int item = order[r * gridDim.x];
            if (item < 0) break;
            const Work work(item, tiles_of_queries, heads, keys, low, high);
            const int own_first = work.first_row + part * 64;  // of this warpgroup
            const int row = own_first + warp * 16 + lane / 4;  // and row + 8
            // s becomes exp(scale * (s - maximum)); returns by how much what was summed before shrinks
            auto softmax = [&](int key, float (&shrink)[2]) {
                if (key + STEP > keys || key + STEP - 1 > own_first + high || key < own_first + 63 + low) {
#pragma unroll
                    for (int j = 0; j < STEP / 2; j++) {
                        const int at = key + j / 4 * 8 + lane % 4 * 2 + j % 2;
                        const int r = row + (j % 4 / 2) * 8;
                        if (at >= keys || at > r + high || at < r + low) s[j] = -infinity<float>();
                    }
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float found = top[h];
#pragma unroll
                    for (int j = 2 * h; j < STEP / 2; j += 4) found = fmaxf(found, fmaxf(s[j], s[j + 1]));
                    found = over_quad_max(found);
                    const float base = found == -infinity<float>() ? 0.0f : found * c;
                    shrink[h] = exp2_fast(top[h] * c - base);
                    top[h] = found;
                    float sum = 0;
#pragma unroll
                    for (int j = 2 * h; j < STEP / 2; j += 4) {
                        s[j] = exp2_fast(s[j] * c - base);
                        s[j + 1] = exp2_fast(s[j + 1] * c - base);
                        sum += s[j] + s[j + 1];
                    }
                    total[h] = total[h] * shrink[h] + sum;
                }
            };
            float shrink[2];
            top[0] = top[1] = -infinity<float>();
            total[0] = total[1] = 0;
#pragma unroll
            for (int j = 0; j < HEAD / 2; j++) o[j] = 0;
            barrier_wait(q_full, r & 1);
            if (work.begin < work.end) {
                int key = (work.end - 1) * STEP;
                // tiles that only later queries of the block see
                while (BANDED && key > own_first + 63 + high && key > work.begin * STEP) {
                    take_turn();
                    give_turn();
                    barrier_wait(k_full + 8 * (n % STAGES), n / STAGES & 1);
                    if (lane == 0) barrier_arrive(k_empty + 8 * (n % STAGES));
                    barrier_wait(v_full + 8 * (n % STAGES), n / STAGES & 1);
                    if (lane == 0) barrier_arrive(v_empty + 8 * (n % STAGES));
                    key -= STEP;
                    n++;
                }
                take_turn();
                scores(n);
                give_turn();
                wgmma_wait<0>();
                keep(s);
                if (lane == 0) barrier_arrive(k_empty + 8 * (n % STAGES));
                if (key == work.begin * STEP && lane == 0) barrier_arrive(q_empty);
                softmax(key, shrink);
                to_probabilities();
                while (key > work.begin * STEP) {
                    key -= STEP;
                    n++;
                    take_turn();
                    scores(n);
                    values(n - 1);
                    give_turn();
                    wgmma_wait<1>();
                    keep(s);
                    if (lane == 0) {
                        barrier_arrive(k_empty + 8 * (n % STAGES));
                        if (key == work.begin * STEP) barrier_arrive(q_empty);
                    }
                    softmax(key, shrink);
                    wgmma_wait<0>();
                    keep(p);  // registers that a product reads may not be used again before it is done
                    keep(o);
                    if (lane == 0) barrier_arrive(v_empty + 8 * ((n - 1) % STAGES));
#pragma unroll
                    for (int j = 0; j < HEAD / 2; j++) o[j] *= shrink[j % 4 / 2];
                    to_probabilities();
                }
                values(n);
                wgmma_wait<0>();
                keep(p);
                keep(o);
                if (lane == 0) barrier_arrive(v_empty + 8 * (n % STAGES));
                n++;
            } else if (lane == 0) {
                barrier_arrive(q_empty);
            }
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
        }
        if (part == 0) take_turn();  // what the last one gave
    }
}
