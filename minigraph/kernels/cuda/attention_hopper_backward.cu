// Flash attention, backward, on Hopper, without atomics: one kernel for dQ, one for dK and dV; both recompute the
// probabilities from the log-sum-exp. Every product has its left operand in registers or its 64 rows to itself.

// Per query: lse in base 2 (infinite where no key is seen, so that probabilities are 0) and sum(dOut * Out), side by side.
extern "C" __global__ void attention_prepare(const T* out, const T* dout, const float* lse, float2* numbers,
    int queries, int padded, int heads, int width, i64 out_batch, i64 out_head, i64 out_row,
    i64 dout_batch, i64 dout_head, i64 dout_row) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, batch = blockIdx.z;
    if (row >= padded) return;
    float sum = 0;
    if (row < queries) {
        const T* o = out + batch * out_batch + head * out_head + row * out_row;
        const T* d = dout + batch * dout_batch + head * dout_head + row * dout_row;
        for (int i = lane * 2; i < width; i += 64) {
            const Pack<T, 2> x = *reinterpret_cast<const Pack<T, 2>*>(o + i);
            const Pack<T, 2> y = *reinterpret_cast<const Pack<T, 2>*>(d + i);
            sum += up(x.v[0]) * up(y.v[0]) + up(x.v[1]) * up(y.v[1]);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        const i64 line = i64(batch) * heads + head;
        const float found = row < queries ? lse[line * queries + row] : EMPTY_LSE;
        numbers[line * padded + row] = make_float2(found == EMPTY_LSE ? infinity<float>() : found * LOG2E, sum);
    }
}

__device__ __forceinline__ void load_fragments(u32 (&a)[HEAD / 4], u32 tile, int rows) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[4 * k]), "=r"(a[4 * k + 1]), "=r"(a[4 * k + 2]), "=r"(a[4 * k + 3])
                     : "r"(piece_address(tile, rows, row, 2 * k + lane / 16)));
}

struct Yes {
    static constexpr bool value = true;
};
struct No {
    static constexpr bool value = false;
};
struct Barriers {
    u64 own, number_full[STAGES], a_full[STAGES], b_full[STAGES], a_empty[STAGES], b_empty[STAGES];
};

// Tiles of STEP rows into the stages in turn: rows first, first + stride, ... (per_head of them) of each head.
__device__ __forceinline__ void load_steps(const TensorMap& map, u32 tile, u32 full, u32 empty, int first, int stride,
                                           int per_head, int steps, int head, int batch) {
    int row = first;
#pragma unroll 1
    for (int i = 0, left = per_head; i < steps; i++, row += stride) {
        if (left-- == 0) left = per_head - 1, row = first, head++;
        const int stage = i % STAGES;
        barrier_wait(empty + 8 * stage, (i / STAGES & 1) ^ 1);
        barrier_expect(full + 8 * stage, STEP_BYTES);
        load_tile<STEP>(tile + stage * STEP_BYTES, map, full + 8 * stage, row, head, batch);
    }
}

// Where things lie in shared memory: two own tiles, the tiles a and b of each stage, the numbers of each stage; barriers.
struct Places {
    u32 x, y, a, b, numbers, own_full, number_full, a_full, b_full, a_empty, b_empty;
};
__device__ __forceinline__ Places prepared(Barriers& barriers) {
    extern __shared__ unsigned char raw[];
    Places at;
    at.x = (shared_address(raw) + 1023) & ~1023u;
    at.y = at.x + TILE_BYTES;
    at.a = at.y + TILE_BYTES;
    at.b = at.a + STAGES * STEP_BYTES;
    at.numbers = at.b + STAGES * STEP_BYTES;
    at.own_full = shared_address(&barriers.own);
    at.number_full = shared_address(barriers.number_full);
    at.a_full = shared_address(barriers.a_full);
    at.b_full = shared_address(barriers.b_full);
    at.a_empty = shared_address(barriers.a_empty);
    at.b_empty = shared_address(barriers.b_empty);
    if (threadIdx.x == 0) {
        barrier_init(at.own_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(at.number_full + 8 * i, 1);
            barrier_init(at.a_full + 8 * i, 1);
            barrier_init(at.b_full + 8 * i, 1);
            barrier_init(at.a_empty + 8 * i, 8);  // one arrival for each warp that computes
            barrier_init(at.b_empty + 8 * i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    return at;
}

// dQ = scale * dS @ K. A block has 128 queries in registers (64 for each warpgroup) and walks over the keys.
extern "C" __global__ __launch_bounds__(384, 1) void attention_backward_query(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap dout_map,
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const float2* numbers,
    T* dq, int queries, int padded, int keys, int heads, int group, int width, float scale, int low, int high,
    i64 dq_batch, i64 dq_head, i64 dq_row) {
    __shared__ Barriers barriers;
    const Places at = prepared(barriers);
    const int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, batch = blockIdx.z, first_row = tile * ROWS;
    const int last_key = min(keys - 1, first_row + ROWS - 1 + high);
    const int first_key = max(0, first_row + low);
    const int end = last_key < 0 ? 0 : last_key / STEP + 1, begin = first_key / STEP, steps = max(0, end - begin);

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            barrier_expect(at.own_full, 2 * TILE_BYTES);
            load_tile<ROWS>(at.x, q_map, at.own_full, first_row, head, batch);
            load_tile<ROWS>(at.y, dout_map, at.own_full, first_row, head, batch);
            load_steps(k_map, at.a, at.a_full, at.a_empty, (end - 1) * STEP, -STEP, steps, steps, head / group, batch);
        } else if (threadIdx.x == 32) {
            load_steps(v_map, at.b, at.b_full, at.b_empty, (end - 1) * STEP, -STEP, steps, steps, head / group, batch);
        }
    } else {
        more_registers<REGISTERS>();
        const int part = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const int own_first = first_row + part * 64, row = own_first + warp * 16 + lane / 4;
        const float c = scale * LOG2E;
        const i64 line = (i64(batch) * heads + head) * padded;
        u32 q[HEAD / 4], dout[HEAD / 4], ds[STEP / 4];
        float s[STEP / 2], dp[STEP / 2], acc[HEAD / 2], base[2], shift[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 x = numbers[line + row + 8 * h];
            base[h] = x.x;
            shift[h] = x.y;
        }
        barrier_wait(at.own_full, 0);
        load_fragments(q, at.x + part * 64 * 128, ROWS);
        load_fragments(dout, at.y + part * 64 * 128, ROWS);
        auto step = [&](int i, auto begun) {
            const int stage = i % STAGES, key = (end - 1 - i) * STEP;
            const u32 parity = i / STAGES & 1, k = at.a + stage * STEP_BYTES, v = at.b + stage * STEP_BYTES;
            barrier_wait(at.a_full + 8 * stage, parity);
            multiply(s, q, k);
            barrier_wait(at.b_full + 8 * stage, parity);
            multiply(dp, dout, v);
            wgmma_wait<1>();  // the scores are there, and the product of the step before is done with its keys
            keep(s);
            if (begun.value) {
                keep(ds);
                keep(acc);
            }
            if (begun.value && lane == 0) barrier_arrive(at.a_empty + 8 * ((i - 1) % STAGES));
            const bool edge = key + STEP > keys || key + STEP - 1 > own_first + high || key < own_first + 63 + low;
#pragma unroll
            for (int j = 0; j < STEP / 2; j++) {
                s[j] = exp2_fast(s[j] * c - base[j % 4 / 2]);
                if (edge) {
                    const int found = key + j / 4 * 8 + lane % 4 * 2 + j % 2;
                    const int r = row + (j % 4 / 2) * 8;
                    if (found >= keys || found > r + high || found < r + low) s[j] = 0;
                }
            }
            wgmma_wait<0>();
            keep(q);
            keep(dout);
            keep(dp);
            if (lane == 0) barrier_arrive(at.b_empty + 8 * stage);
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 2)
                ds[j / 2] = pack(s[j] * (dp[j] - shift[j % 4 / 2]), s[j + 1] * (dp[j + 1] - shift[j % 4 / 2]));
            add_rows(acc, ds, k, begun.value);
        };
        if (steps > 0) step(0, No{});
        for (int i = 1; i < steps; i++) step(i, Yes{});
        wgmma_wait<0>();
        keep(acc);
        T* to = dq + batch * dq_batch + head * dq_head + own_first * dq_row;
        store_rows(acc, steps > 0, scale, at.x + part * 64 * 128, part + 1, to, dq_row, queries - own_first, width);
    }
}

// dV = P^T @ dOut, dK = scale * dS^T @ Q. A block has 128 keys (64 for each warpgroup) and walks over the queries of all
// heads that read them. Scores stand transposed, so that P^T and dS^T are left operands in registers.
extern "C" __global__ __launch_bounds__(384, 1) void attention_backward_key(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap dout_map, const float2* numbers,
    T* dk, T* dv, int queries, int padded, int keys, int heads, int group, int width, float scale, int low, int high,
    i64 dk_batch, i64 dk_head, i64 dk_row, i64 dv_batch, i64 dv_head, i64 dv_row) {
    __shared__ Barriers barriers;
    const Places at = prepared(barriers);
    const int key_head = blockIdx.y, batch = blockIdx.z, first_key = blockIdx.x * ROWS;
    const int first_row = max(0, first_key - high);
    const int last_row = min(queries - 1, first_key + ROWS - 1 - low);
    const int begin = first_row / STEP, end = last_row < 0 ? 0 : last_row / STEP + 1, per_head = max(0, end - begin);
    const int steps = per_head * group;

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            barrier_expect(at.own_full, 2 * TILE_BYTES);
            load_tile<ROWS>(at.x, k_map, at.own_full, first_key, key_head, batch);
            load_tile<ROWS>(at.y, v_map, at.own_full, first_key, key_head, batch);
            load_steps(q_map, at.a, at.a_full, at.a_empty, begin * STEP, STEP, per_head, steps, key_head * group, batch);
        } else if (threadIdx.x == 32) {
            load_steps(dout_map, at.b, at.b_full, at.b_empty, begin * STEP, STEP, per_head, steps, key_head * group, batch);
        } else if (threadIdx.x == 64) {
            const float2* from = numbers + (i64(batch) * heads + key_head * group) * padded;
            int row = begin * STEP;
#pragma unroll 1
            for (int i = 0, left = per_head; i < steps; i++, row += STEP) {
                if (left-- == 0) left = per_head - 1, row = begin * STEP, from += padded;
                const int stage = i % STAGES;
                barrier_wait(at.a_empty + 8 * stage, (i / STAGES & 1) ^ 1);
                barrier_expect(at.number_full + 8 * stage, STEP * 8);
                load_bytes(at.numbers + stage * STEP * 8, from + row, at.number_full + 8 * stage, STEP * 8);
            }
        }
    } else {
        more_registers<REGISTERS>();
        const int part = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const int own_first = first_key + part * 64, key = own_first + warp * 16 + lane / 4;
        u32 own_k = at.x + part * 64 * 128, own_v = at.y + part * 64 * 128;
        const float c = scale * LOG2E;
        u32 p[STEP / 4], ds[STEP / 4];
        float s[STEP / 2], dp[STEP / 2], dk_sum[HEAD / 2], dv_sum[HEAD / 2];
        barrier_wait(at.own_full, 0);
        int first = begin * STEP;
        auto step = [&](int i, auto begun) {
            const int stage = i % STAGES;
            const u32 parity = i / STAGES & 1, q = at.a + stage * STEP_BYTES, dout = at.b + stage * STEP_BYTES;
            asm volatile("" : "+r"(own_k), "+r"(own_v));  // descriptors are made here, not kept in 32 registers
            const u32 own_numbers = at.numbers + stage * STEP * 8 + lane % 4 * 16;
            barrier_wait(at.a_full + 8 * stage, parity);
            multiply(s, own_k, q);
            barrier_wait(at.b_full + 8 * stage, parity);
            multiply(dp, own_v, dout);
            barrier_wait(at.number_full + 8 * stage, parity);
            wgmma_wait<1>();  // the scores are there, and the products of the step before are done with their tiles
            keep(s);
            if (begun.value) {
                keep(ds);
                keep(dk_sum);
            }
            if (begun.value && lane == 0) barrier_arrive(at.a_empty + 8 * ((i - 1) % STAGES));
            const bool edge = first + STEP > queries || own_first + 63 > first + high || own_first < first + STEP - 1 + low;
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 4) {
                float base[2], shift[2];
                load_pairs(base, shift, own_numbers + j / 4 * 64);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j + e] = exp2_fast(s[j + e] * c - base[e % 2]);
                    if (edge) {
                        const int r = first + j / 4 * 8 + lane % 4 * 2 + e % 2;
                        const int found = key + e / 2 * 8;
                        if (found > r + high || found < r + low) s[j + e] = 0;
                    }
                }
                p[j / 2] = pack(s[j], s[j + 1]);
                p[j / 2 + 1] = pack(s[j + 2], s[j + 3]);
            }
            add_rows(dv_sum, p, dout, begun.value);
            wgmma_wait<1>();
            keep(dp);
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 4) {
                float base[2], shift[2];
                load_pairs(base, shift, own_numbers + j / 4 * 64);
                float above[2], below[2];  // P as dV saw it: held in 16 bits meanwhile
                unpack(above, p[j / 2]);
                unpack(below, p[j / 2 + 1]);
                ds[j / 2] = pack(above[0] * (dp[j] - shift[0]), above[1] * (dp[j + 1] - shift[1]));
                ds[j / 2 + 1] = pack(below[0] * (dp[j + 2] - shift[0]), below[1] * (dp[j + 3] - shift[1]));
            }
            add_rows(dk_sum, ds, q, begun.value);
            wgmma_wait<1>();  // dV is summed: dOut may go
            keep(p);
            keep(dv_sum);
            if (lane == 0) barrier_arrive(at.b_empty + 8 * stage);
            first = first + STEP < end * STEP ? first + STEP : begin * STEP;
        };
        if (steps > 0) step(0, No{});
        for (int i = 1; i < steps; i++) step(i, Yes{});
        wgmma_wait<0>();
        keep(dk_sum);
        T* to_k = dk + batch * dk_batch + key_head * dk_head + own_first * dk_row;
        T* to_v = dv + batch * dv_batch + key_head * dv_head + own_first * dv_row;
        store_rows(dk_sum, steps > 0, scale, own_k, part + 1, to_k, dk_row, keys - own_first, width);
        store_rows(dv_sum, steps > 0, 1, own_v, part + 1, to_v, dv_row, keys - own_first, width);
    }
}
