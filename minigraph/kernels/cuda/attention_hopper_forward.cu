// Flash attention, forward, on Hopper (FlashAttention-3's division of work): one warpgroup loads tiles of keys and
// values, GROUPS compute 64 queries each, in turns: scores of the next tile are multiplied while those of this one
// become probabilities.
struct Barriers {
    u64 q, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

extern "C" __global__ __launch_bounds__(GROUPS * 128 + 128, 1) void attention_forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* out, float* lse, int queries, int keys, int heads, int group, int width,
    float scale, int low, int high, i64 out_batch, i64 out_head, i64 out_row) {
    extern __shared__ unsigned char raw[];
    __shared__ Barriers barriers;
    const u32 q_tile = (shared_address(raw) + 1023) & ~1023u, k_tile = q_tile + TILE_BYTES;
    const u32 v_tile = k_tile + STAGES * STEP_BYTES;
    const u32 q_full = shared_address(&barriers.q);
    const u32 k_full = shared_address(barriers.k_full), k_empty = shared_address(barriers.k_empty);
    const u32 v_full = shared_address(barriers.v_full), v_empty = shared_address(barriers.v_empty);
    const int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
    const int first_row = tile * ROWS;
    const int last_key = min(keys - 1, first_row + ROWS - 1 + high);
    const int first_key = max(0, first_row + low);
    const int end = last_key < 0 ? 0 : last_key / STEP + 1, begin = first_key / STEP;
    const int tiles = max(0, end - begin);

    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, GROUPS * 4);  // one arrival for each warp that computes
            barrier_init(v_empty + 8 * i, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            barrier_expect(q_full, TILE_BYTES);
            load_tile<ROWS>(q_tile, q_map, q_full, first_row, head, batch);
            for (int i = 0; i < tiles; i++) {
                const int stage = i % STAGES, key = (end - 1 - i) * STEP;
                const u32 parity = (i / STAGES & 1) ^ 1;
                barrier_wait(k_empty + 8 * stage, parity);
                barrier_expect(k_full + 8 * stage, STEP_BYTES);
                load_tile<STEP>(k_tile + stage * STEP_BYTES, k_map, k_full + 8 * stage, key, head / group, batch);
                barrier_wait(v_empty + 8 * stage, parity);
                barrier_expect(v_full + 8 * stage, STEP_BYTES);
                load_tile<STEP>(v_tile + stage * STEP_BYTES, v_map, v_full + 8 * stage, key, head / group, batch);
            }
        }
    } else {
        more_registers<REGISTERS>();
        const int part = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        const int own_first = first_row + part * 64;              // of this warpgroup
        const int row = own_first + warp * 16 + lane / 4;         // and row + 8
        const u32 own_q = q_tile + part * 64 * 128;
        const float c = scale * LOG2E;
        float o[HEAD / 2], s[STEP / 2], top[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {0, 0};
        u32 p[STEP / 4];

        // products of one warpgroup run under the exponentials of the others
        auto take_turn = [&]() { asm volatile("bar.sync %0, 256;" ::"r"(8 + part) : "memory"); };
        auto give_turn = [&]() { asm volatile("bar.arrive %0, 256;" ::"r"(8 + (part + 1) % GROUPS) : "memory"); };
        auto scores = [&](int i) {
            const u32 k = k_tile + i % STAGES * STEP_BYTES;
            barrier_wait(k_full + 8 * (i % STAGES), i / STAGES & 1);
            multiply(s, own_q, k);
        };
        auto values = [&](int i) {
            const u32 v = v_tile + i % STAGES * STEP_BYTES;
            barrier_wait(v_full + 8 * (i % STAGES), i / STAGES & 1);
            add_rows(o, p, v);
        };
        // s becomes exp(scale * (s - maximum)); returns by how much what was summed before shrinks
        auto softmax = [&](int i, float (&shrink)[2]) {
            const int key = (end - 1 - i) * STEP;
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
        auto to_probabilities = [&]() {
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) p[j] = pack(s[2 * j], s[2 * j + 1]);
            keep(p);
        };

#pragma unroll
        for (int j = 0; j < HEAD / 2; j++) o[j] = 0;
        barrier_wait(q_full, 0);
        float shrink[2];
        if (part == GROUPS - 1 && tiles > 1) give_turn();
        if (tiles > 0) {
            scores(0);
            wgmma_wait<0>();
            keep(s);
            if (lane == 0) barrier_arrive(k_empty);
            softmax(0, shrink);
            to_probabilities();
            for (int i = 1; i < tiles; i++) {
                take_turn();
                scores(i);
                values(i - 1);
                if (part < GROUPS - 1 || i < tiles - 1) give_turn();
                wgmma_wait<1>();
                keep(s);
                if (lane == 0) barrier_arrive(k_empty + 8 * (i % STAGES));
                softmax(i, shrink);
                wgmma_wait<0>();
                keep(p);  // registers that a product reads may not be used again before it is done
                keep(o);
                if (lane == 0) barrier_arrive(v_empty + 8 * ((i - 1) % STAGES));
#pragma unroll
                for (int j = 0; j < HEAD / 2; j++) o[j] *= shrink[j % 4 / 2];
                to_probabilities();
            }
            values(tiles - 1);
            wgmma_wait<0>();
            keep(p);
            keep(o);
        }

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = over_quad_sum(total[h]), inverse = sum == 0 ? 0.0f : 1 / sum;
#pragma unroll
            for (int j = 2 * h; j < HEAD / 2; j += 4) {
                o[j] *= inverse;
                o[j + 1] *= inverse;
            }
            const int r = row + 8 * h;
            if (lse != nullptr && lane % 4 == 0 && r < queries)
                lse[(i64(batch) * heads + head) * queries + r] = sum == 0 ? EMPTY_LSE : top[h] * scale + logf(sum);
        }
        T* to = out + batch * out_batch + head * out_head + own_first * out_row;
        store_rows(o, true, 1, own_q, part + 1, to, out_row, queries - own_first, width);
    }
}
