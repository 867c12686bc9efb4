// The kernel of attention's backward that walks from blocks of keys over queries; backward.cu says what it computes.
struct Barriers {
    u64 own_full, own_empty, q_full[Q_STAGES], q_empty[Q_STAGES], dout_full[DOUT_STAGES], dout_empty[DOUT_STAGES];
    u64 slopes_full[2], sum_full[2], sum_empty[2], ticket_full[2], ticket_empty[2];
    int tickets[2];
};
// Where things lie in shared memory: tiles of own keys and values, of queries and of dOut for each stage, dS of two
// steps, dQ, the numbers of each stage of queries; barriers; two tickets.
struct Places {
    u32 k, v, q, dout, slopes, sums, numbers;
    u32 own_full, own_empty, q_full, dout_full, q_empty, dout_empty, slopes_full, sum_full, sum_empty;
    u32 ticket_full, ticket_empty;
    volatile int* tickets;

    // The ticket of a round, which thread 0 takes; the caller has read it before when it asks for the one after the next.
    __device__ __forceinline__ int ticket(u32 round) const {
        barrier_wait(ticket_full + 8 * (round % 2), round / 2 & 1);
        return tickets[round % 2];
    }
    __device__ __forceinline__ void ticket_read(u32 round) const { barrier_arrive(ticket_empty + 8 * (round % 2)); }

    // The same for a warp that computes: who reads is who says so.
    __device__ __forceinline__ int warps_ticket(u32 round, int lane) const {
        int found = 0;
        if (lane == 0) {
            found = ticket(round);
            ticket_read(round);
        }
        return __shfl_sync(~0u, found, 0);
    }
};
__device__ __forceinline__ Places prepared() {
    extern __shared__ __align__(1024) unsigned char raw[];
    Places at;
    at.k = shared_address(raw);
    at.v = at.k + TILE_BYTES;
    at.q = at.v + TILE_BYTES;
    at.dout = at.q + Q_STAGES * STEP_BYTES;
    at.slopes = at.dout + DOUT_STAGES * STEP_BYTES;
    at.sums = at.slopes + 2 * SLOPE_BYTES;
    at.numbers = at.sums + SUM_BYTES;
    Barriers& barriers = *reinterpret_cast<Barriers*>(raw + (at.numbers - at.k) + Q_STAGES * NUMBER_BYTES);
    at.own_full = shared_address(&barriers.own_full);
    at.own_empty = shared_address(&barriers.own_empty);
    at.q_full = shared_address(barriers.q_full);
    at.dout_full = shared_address(barriers.dout_full);
    at.q_empty = shared_address(barriers.q_empty);
    at.dout_empty = shared_address(barriers.dout_empty);
    at.slopes_full = shared_address(barriers.slopes_full);
    at.sum_full = shared_address(barriers.sum_full);
    at.sum_empty = shared_address(barriers.sum_empty);
    at.ticket_full = shared_address(barriers.ticket_full);
    at.ticket_empty = shared_address(barriers.ticket_empty);
    at.tickets = barriers.tickets;
    if (threadIdx.x == 0) {
        barrier_init(at.own_full, 1);
        barrier_init(at.own_empty, 8);  // one arrival for each warp that computes
        for (int i = 0; i < Q_STAGES; i++) {
            barrier_init(at.q_full + 8 * i, 1);
            barrier_init(at.q_empty + 8 * i, 256);  // all that compute: each has read numbers of the stage
        }
        for (int i = 0; i < DOUT_STAGES; i++) {
            barrier_init(at.dout_full + 8 * i, 1);
            barrier_init(at.dout_empty + 8 * i, 8);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(at.slopes_full + 8 * i, 8);
            barrier_init(at.sum_full + 8 * i, 8);
            barrier_init(at.sum_empty + 8 * i, 1);
            barrier_init(at.ticket_full + 8 * i, 1);
            barrier_init(at.ticket_empty + 8 * i, 8 + 3);  // who computes, loads dOut, brings dQ away
        }
        barriers_ready();
    }
    __syncthreads();
    return at;
}

// Tiles of STEP rows into the stages in turn, those of each head upwards from the first, and round; with NUMBERS what
// attention_prepare found too. `done` tiles went before.
template <bool NUMBERS, int COUNT>
__device__ __forceinline__ void load_steps(const TensorMap& map, const Walk& walk, u32 done, int steps, int head,
                                           u32 tile, u32 full, u32 empty, const float* numbers, u32 number, int heads,
                                           int padded) {
#pragma unroll 1
    for (int i = 0, m = walk.start; i < steps; i++, m++) {
        if (m == walk.end) m = walk.begin;
        if (m == walk.start && i > 0) head++;
        const u32 stage = (done + i) % COUNT;
        barrier_wait(empty + 8 * stage, ((done + i) / COUNT & 1) ^ 1);
        barrier_expect(full + 8 * stage, STEP_BYTES + (NUMBERS ? NUMBER_BYTES : 0));
        load_tile<STEP>(tile + stage * STEP_BYTES, map, full + 8 * stage, m * STEP, head, walk.batch);
        const i64 row = (walk.batch * heads + head) * padded + m * STEP;  // anew: there are few registers
        if (NUMBERS) load_bytes(number + stage * NUMBER_BYTES, numbers + 2 * row, full + 8 * stage, NUMBER_BYTES);
    }
}
// Every second tile of dQ, when its turn has come, into the sums; `turns` counts who has added. `done` tiles went before.
__device__ __forceinline__ void add_sums(const Places& at, const Walk& walk, u32 done, int steps, u32 which,
                                         int first_tile, int tiles, float* sums, u32* turns) {
#pragma unroll 1
    for (int i = 0, m = walk.start; i < steps; i++, m++) {
        if (m == walk.end) m = walk.begin;
        if (m == walk.start && i > 0) first_tile += tiles;
        if ((done + i) % 2 != which) continue;
        const u32 before = walk.before(m);
        u32* turn = turns + first_tile + m;
        if (before > 0) {
            u32 seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory");
            while (seen != before);
        }
        barrier_wait(at.sum_full + 8 * which, (done + i) / 2 & 1);
        float* to = sums + i64(first_tile + m) * SUM_FLOATS;
        if (before > 0) add_bytes(to, at.sums, SUM_BYTES);
        else store_bytes(to, at.sums, SUM_BYTES);
        bulk_read();
        barrier_arrive(at.sum_empty + 8 * which);
        bulk_done();
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(before + 1) : "memory");
    }
}

// dq = 64 x 64 of dS K, rows of queries and columns of the head dimension, summed over all keys of the block. With HEAD
// 64 each warpgroup has 64 of the 128 queries, with HEAD 128 64 of the columns.
__device__ __forceinline__ void multiply_slopes(float (&dq)[32], u32 slopes, u32 k, int part) {
    const u32 a = (slopes + (HEAD == 64 ? part * 64 * 128 : 0)) >> 4;
    const u32 b = (k + (HEAD == 64 ? 0 : part * ROWS * 128)) >> 4;
    keep(dq);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < ROWS / 64; n++)
        wgmma_ss_bt<2, 128>(dq, descriptor(a + n * STEP * 8, 16, 1024), descriptor(b + n * 512, ROWS * 128, 1024), n > 0);
    wgmma_commit();
}

extern "C" __global__ __launch_bounds__(384, 1) void attention_backward(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap dout_map, const float* numbers,
    float* sums, u32* turns, T* dk, T* dv, int queries, int padded, int keys, int heads, int group, int width,
    float scale, int low, int high, int lines, int together, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row) {
    const Places at = prepared();
    const int tiles = padded / STEP, tickets = (keys + ROWS - 1) / ROWS * lines;
    auto walk_of = [&](int ticket) { return Walk(ticket, lines, together, queries, keys, heads / group, low, high); };
    auto steps_of = [&](const Walk& walk) { return (walk.end - walk.begin) * group; };
    auto first_head = [&](const Walk& walk) { return walk.key_head * group; };  // of those that read these keys
    auto first_line = [&](const Walk& walk) { return walk.batch * heads + first_head(walk); };
    u32 done = 0;  // steps before the keys of this round

    if (threadIdx.x < 128) {  // each warp's first thread: tickets and Q; K, V and dOut; two that bring dQ away in turn
        fewer_registers<FEW>();
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (u32 round = 0; STAYS || round == 0; round++) {
                barrier_wait(at.ticket_empty + 8 * (round % 2), (round / 2 & 1) ^ 1);
                const int ticket = atomicAdd(turns, 1u);
                at.tickets[round % 2] = ticket;
                barrier_arrive(at.ticket_full + 8 * (round % 2));
                if (ticket >= tickets) break;
                const Walk walk = walk_of(ticket);
                load_steps<true, Q_STAGES>(q_map, walk, done, steps_of(walk), first_head(walk), at.q, at.q_full,
                                           at.q_empty, numbers, at.numbers, heads, padded);
                done += steps_of(walk);
            }
        } else if (threadIdx.x % 32 == 0) {
            const u32 which = threadIdx.x / 32 % 2;
#pragma unroll 1
            for (u32 round = 0; STAYS || round == 0; round++) {
                const int ticket = at.ticket(round);
                at.ticket_read(round);
                if (ticket >= tickets) break;
                const Walk walk = walk_of(ticket);
                if (threadIdx.x == 32) {
                    barrier_wait(at.own_empty, (round & 1) ^ 1);
                    barrier_expect(at.own_full, 2 * TILE_BYTES);
                    load_tile<ROWS>(at.k, k_map, at.own_full, walk.block * ROWS, walk.key_head, walk.batch);
                    load_tile<ROWS>(at.v, v_map, at.own_full, walk.block * ROWS, walk.key_head, walk.batch);
                    load_steps<false, DOUT_STAGES>(dout_map, walk, done, steps_of(walk), first_head(walk), at.dout,
                                                   at.dout_full, at.dout_empty, nullptr, 0, 0, 0);
                } else {
                    add_sums(at, walk, done, steps_of(walk), which, first_line(walk) * tiles, tiles, sums, turns + 1);
                }
                done += steps_of(walk);
            }
        }
    } else {
        more_registers<MANY>();
        const int part = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // so the compiler knows that a warp agrees on it
        const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
        const u32 own_k = at.k + part * 64 * 128, own_v = at.v + part * 64 * 128;
        const float c = scale * LOG2E;
        u32 p[STEP / 4], finer[STEP / 4], ds[STEP / 4];
        float s[STEP / 2], dp[STEP / 2], dq[32], dk_sum[HEAD / 2], dv_sum[HEAD / 2];
        int own_first = 0, key = 0;              // of this round: the warpgroup's first one, this lane's first one
        int first = 0, begin = 0, end = 0;       // the query of the step whose scores are next; queries of the walk

        auto scores = [&](u32 i) {
            const u32 stage = i % Q_STAGES;
            barrier_wait(at.q_full + stage * 8, i / Q_STAGES & 1);
            multiply(s, own_k, at.q + stage * STEP_BYTES);
        };
        auto probabilities = [&](u32 i) {
            const u32 own_numbers = at.numbers + i % Q_STAGES * NUMBER_BYTES + lane % 4 * 8;
            keep(s);
            // numbers are compared with one bound a row; also behind the last key, where exp2(-lse) may be infinite and dQ
            // would be NaN
            const int at = key - first - lane % 4 * 2;
            if (own_first + 63 > min(first + high, keys - 1)) {
                const int begin[2] = {key >= keys ? STEP : at - high, key + 8 >= keys ? STEP : at + 8 - high};
#pragma unroll
                for (int j = 0; j < STEP / 2; j++)
                    if (j / 4 * 8 + j % 2 < begin[j % 4 / 2]) s[j] = -infinity<float>();
            }
            if (own_first < first + STEP - 1 + low) {
                const int last = at - low;
#pragma unroll
                for (int j = 0; j < STEP / 2; j++)
                    if (j / 4 * 8 + j % 2 - j % 4 / 2 * 8 > last) s[j] = -infinity<float>();
            }
            first = first + STEP < end ? first + STEP : begin;
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 4) {
                float base[2];
                load_pair(base, own_numbers + j / 4 * 32);
#pragma unroll
                for (int e = 0; e < 4; e++) s[j + e] = exp2_fast(s[j + e] * c - base[e % 2]);
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    p[(j + e) / 2] = pack(s[j + e], s[j + e + 1]);
                    if (FINER) finer[(j + e) / 2] = pack_half(s[j + e], s[j + e + 1]);
                }
            }
        };
        auto values = [&](u32 i) {
            const u32 stage = i % DOUT_STAGES;
            barrier_wait(at.dout_full + 8 * stage, i / DOUT_STAGES & 1);
            multiply(dp, own_v, at.dout + stage * STEP_BYTES);
            add_rows(dv_sum, p, at.dout + stage * STEP_BYTES);
        };
        // dS of both warpgroups as rows of queries, 64 keys from each; that of the step before may be read still
        auto slopes = [&](u32 i) {
            const u32 own_numbers = at.numbers + i % Q_STAGES * NUMBER_BYTES + STEP * 4 + lane % 4 * 8;
            keep(dp);
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 4) {
                float shift[2];
                load_pair(shift, own_numbers + j / 4 * 32);
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    float x[2];
                    unpack_half(x, (FINER ? finer : p)[(j + e) / 2]);
                    ds[(j + e) / 2] = pack(x[0] * (dp[j + e] - shift[0]), x[1] * (dp[j + e + 1] - shift[1]));
                }
            }
            const u32 to = at.slopes + i % 2 * SLOPE_BYTES + part * STEP * 128;
#pragma unroll
            for (int j = 0; j < STEP / 4; j += 4)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                             ::"r"(piece_address(to, STEP, j * 4 + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2)),
                               "r"(ds[j]), "r"(ds[j + 1]), "r"(ds[j + 2]), "r"(ds[j + 3]) : "memory");
            async_fence();
            __syncwarp();
            if (lane == 0) barrier_arrive(at.slopes_full + i % 2 * 8);
        };
        auto give_sums = [&](u32 i) {
            keep(dq);
            const u32 to = at.sums + part * (SUM_BYTES / 2) + thread * 16;
#pragma unroll
            for (int j = 0; j < 32; j += 4)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                             ::"r"(to + j * 512), "f"(dq[j]), "f"(dq[j + 1]), "f"(dq[j + 2]), "f"(dq[j + 3]) : "memory");
            async_fence();
            __syncwarp();
            if (lane == 0) barrier_arrive(at.sum_full + i % 2 * 8);
        };
        auto sums_free = [&](u32 i) {  // the copy engine has read what was there before
            barrier_wait(at.sum_empty + (i + 1) % 2 * 8, ((i + 1) / 2 & 1) ^ 1);
        };

        auto release_queries = [&](u32 i) { barrier_arrive(at.q_empty + i % Q_STAGES * 8); };
        auto release_values = [&](u32 i) {
            if (lane == 0) barrier_arrive(at.dout_empty + i % DOUT_STAGES * 8);
        };
        auto store_values = [&](const Walk& walk) {
            const float factor[2] = {UNSHIFT, UNSHIFT};
            T* to = dv + walk.batch * dv_batch + walk.key_head * dv_head + key * dv_row;
            store_results(dv_sum, factor, to, dv_row, keys - key, width);
        };
#pragma unroll 1
        for (u32 round = 0; STAYS || round == 0; round++) {
            const int ticket = at.warps_ticket(round, lane);
            if (ticket >= tickets) break;
            const Walk walk = walk_of(ticket);
            const u32 last = done + steps_of(walk) - 1;
            own_first = walk.block * ROWS + part * 64, key = own_first + warp * 16 + lane / 4;
            first = walk.start * STEP, begin = walk.begin * STEP, end = walk.end * STEP;
#pragma unroll
            for (int j = 0; j < HEAD / 2; j++) dk_sum[j] = dv_sum[j] = 0;
            barrier_wait(at.own_full, round & 1);
            if (begin < end) {
                u32 i = done;
                scores(i);
                wgmma_wait<0>();
                probabilities(i);
                values(i);
                wgmma_wait<1>();
                slopes(i);
                wgmma_wait<0>();
                keep(p);
                keep(dv_sum);
                release_values(i);
#pragma unroll 1
                for (; i != last; i++) {
                    scores(i + 1);
                    add_rows(dk_sum, ds, at.q + i % Q_STAGES * STEP_BYTES);
                    barrier_wait(at.slopes_full + i % 2 * 8, i / 2 & 1);
                    multiply_slopes(dq, at.slopes + i % 2 * SLOPE_BYTES, at.k, part);
                    wgmma_wait<2>();
                    probabilities(i + 1);
                    sums_free(i);
                    wgmma_wait<0>();
                    keep(ds);
                    keep(dk_sum);
                    release_queries(i);
                    give_sums(i);
                    values(i + 1);
                    wgmma_wait<1>();
                    slopes(i + 1);
                    wgmma_wait<0>();
                    keep(p);
                    keep(dv_sum);
                    release_values(i + 1);
                }
                add_rows(dk_sum, ds, at.q + i % Q_STAGES * STEP_BYTES);
                barrier_wait(at.slopes_full + i % 2 * 8, i / 2 & 1);
                multiply_slopes(dq, at.slopes + i % 2 * SLOPE_BYTES, at.k, part);
                store_values(walk);
                sums_free(i);
                wgmma_wait<0>();
                keep(ds);
                keep(dk_sum);
                release_queries(i);
                if (lane == 0) barrier_arrive(at.own_empty);
                give_sums(i);
            } else {
                store_values(walk);
                if (lane == 0) barrier_arrive(at.own_empty);
            }
            const float factor[2] = {scale * UNSHIFT, scale * UNSHIFT};
            T* to = dk + walk.batch * dk_batch + walk.key_head * dk_head + key * dk_row;
            store_results(dk_sum, factor, to, dk_row, keys - key, width);
            done = last + 1;
        }
    }
}
