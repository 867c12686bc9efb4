// Flash attention, backward, on Hopper, for wide heads: sums of one gradient fill the registers, so each has a kernel.
//
//   KIND   own rows   walks over             sum
//   QUERY  Q, dOut    K and V                dQ = scale * dS K        3 products
//   KEY    K, V       Q and dOut             dK = scale * dS^T Q      3 products
//   VALUE  K          dOut and Q             dV = P^T dOut            2 products
//
// P = exp(scale * S - lse) and dS = P (dP - delta) belong to own rows and walked columns: those of KEY and VALUE are
// transposed. `late` is the walked tile that weights add up, `other` the second one. A block has 128 own rows.
enum { QUERY, KEY, VALUE };
constexpr bool SLOPES = KIND != VALUE;
constexpr u32 NUMBER_BYTES = KIND == QUERY ? 0 : STEP * 8;

// Per query: lse in base 2 (infinite where no key is seen, so that probabilities are 0), and behind all of them
// delta = sum(dOut * Out), less the gradient of lse where dlse is not null.
extern "C" __global__ void attention_wide_prepare(const T* out, const T* dout, const float* lse, const float* dlse,
    float* numbers, int queries, int padded, int heads, int width, i64 out_batch, i64 out_head, i64 out_row, i64 dout_batch,
    i64 dout_head, i64 dout_row) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, piece = threadIdx.x % 32 * 8;
    const int head = blockIdx.y, batch = blockIdx.z;
    const float sum = row_product<32>(out + batch * out_batch + head * out_head + row * out_row + piece,
        dout + batch * dout_batch + head * dout_head + row * dout_row + piece, row < queries && piece < width);
    if (piece == 0 && row < padded) {
        const i64 line = i64(batch) * heads + head;
        const float found = row < queries ? lse[line * queries + row] : EMPTY_LSE;
        numbers[line * padded + row] = found == EMPTY_LSE ? infinity<float>() : found * LOG2E;
        numbers[(i64(gridDim.z) * heads + line) * padded + row] =
            sum - grad_of_lse(found, dlse, line * queries + row);
    }
}

struct Barriers {
    u64 own, late_full[LATE], late_empty[LATE], other_full[OTHER], other_empty[OTHER];
};

extern "C" __global__ __launch_bounds__(384, 1) void attention_wide_backward(
    const __grid_constant__ TensorMap own_map, const __grid_constant__ TensorMap own_slope_map,
    const __grid_constant__ TensorMap late_map, const __grid_constant__ TensorMap other_map, const float* numbers,
    T* to, int own_count, int count, int padded, int heads, int group, int width, float scale, int low, int high,
    int blocks, int lines, int together, i64 to_batch, i64 to_head, i64 to_row) {
    extern __shared__ __align__(1024) unsigned char raw[];
    const u32 own = shared_address(raw), own_slope = own + TILE_BYTES, late = own + (SLOPES ? 2 : 1) * TILE_BYTES;
    const u32 other = late + LATE * STEP_BYTES, stage_numbers = other + OTHER * STEP_BYTES;
    Barriers& barriers = *reinterpret_cast<Barriers*>(raw + (stage_numbers - own) + LATE * NUMBER_BYTES);
    const u32 own_full = shared_address(&barriers.own);
    const u32 late_full = shared_address(barriers.late_full), late_empty = shared_address(barriers.late_empty);
    const u32 other_full = shared_address(barriers.other_full), other_empty = shared_address(barriers.other_empty);

    // `together` lines take turns, those with much to do first
    const int first_line = blockIdx.x / (blocks * together) * together, members = min(together, lines - first_line);
    const int within = blockIdx.x - first_line * blocks, line = first_line + within % members;
    const int block = KIND == QUERY ? blocks - 1 - within / members : within / members;
    const int own_heads = KIND == QUERY ? heads : heads / group, head = line % own_heads, batch = line / own_heads;
    const int first_row = block * ROWS, last = min(count - 1, first_row + ROWS - 1 + high);
    const int begin = max(0, first_row + low) / STEP, end = max(begin, last < 0 ? 0 : last / STEP + 1);
    const int repeats = KIND == QUERY ? 1 : group, steps = (end - begin) * repeats;

    if (threadIdx.x == 0) {
        barrier_init(own_full, 1);
        for (int i = 0; i < LATE; i++) {
            barrier_init(late_full + 8 * i, 1);
            barrier_init(late_empty + 8 * i, 256);  // all that compute: each has read numbers of the stage
        }
        for (int i = 0; i < OTHER; i++) {
            barrier_init(other_full + 8 * i, 1);
            barrier_init(other_empty + 8 * i, 8);  // one arrival for each warp that computes
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        fewer_registers<LOADER_REGISTERS>();
        const int walked = KIND == QUERY ? head / group : head * group;
        if (threadIdx.x == 0) {
            barrier_expect(own_full, (SLOPES ? 2 : 1) * TILE_BYTES);
            load_tile<ROWS>(own, own_map, own_full, first_row, head, batch);
            if (SLOPES) load_tile<ROWS>(own_slope, own_slope_map, own_full, first_row, head, batch);
#pragma unroll 1
            for (int i = 0, m = begin, h = walked; i < steps; i++, m++) {
                if (m == end) m = begin, h++;
                const u32 stage = i % LATE, full = late_full + 8 * stage, to = stage_numbers + stage * NUMBER_BYTES;
                barrier_wait(late_empty + 8 * stage, (i / LATE & 1) ^ 1);
                barrier_expect(full, STEP_BYTES + NUMBER_BYTES);
                load_tile<STEP>(late + stage * STEP_BYTES, late_map, full, m * STEP, h, batch);
                if (KIND == QUERY) continue;
                const float* from = numbers + (i64(batch) * heads + h) * padded + m * STEP;
                load_bytes(to, from, full, STEP * 4);
                load_bytes(to + STEP * 4, from + i64(lines) * group * padded, full, STEP * 4);
            }
        } else if (threadIdx.x == 32) {
#pragma unroll 1
            for (int i = 0, m = begin, h = walked; i < steps; i++, m++) {
                if (m == end) m = begin, h++;
                const u32 stage = i % OTHER, full = other_full + 8 * stage;
                barrier_wait(other_empty + 8 * stage, (i / OTHER & 1) ^ 1);
                barrier_expect(full, STEP_BYTES);
                load_tile<STEP>(other + stage * STEP_BYTES, other_map, full, m * STEP, h, batch);
            }
        }
    } else {
        more_registers<REGISTERS>();
        const int part = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const int own_first = first_row + part * 64, row = own_first + warp * 16 + lane / 4;  // and row + 8
        const float c = scale * LOG2E;
        float sum[HEAD / 2], s[STEP / 2], dp[STEP / 2], base[2] = {0, 0}, shift[2] = {0, 0};
        u32 weights[STEP / 4];
#pragma unroll
        for (int j = 0; j < HEAD / 2; j++) sum[j] = 0;
        if (KIND == QUERY) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const i64 at = i64(line) * padded + row + 8 * h;
                base[h] = numbers[at];
                shift[h] = numbers[i64(lines) * padded + at];
            }
        }
        barrier_wait(own_full, 0);
        int first = begin * STEP;  // column of the step whose scores are next

        auto scores = [&](int i) {
            const u32 late_tile = late + i % LATE * STEP_BYTES, other_tile = other + i % OTHER * STEP_BYTES;
            if (SLOPES) barrier_wait(late_full + 8 * (i % LATE), i / LATE & 1);
            else barrier_wait(other_full + 8 * (i % OTHER), i / OTHER & 1);
            multiply(s, own + part * 64 * 128, SLOPES ? late_tile : other_tile);
            if (SLOPES) {
                barrier_wait(other_full + 8 * (i % OTHER), i / OTHER & 1);
                multiply(dp, own_slope + part * 64 * 128, other_tile);
            }
        };
        auto add = [&](int i) {
            add_rows(sum, weights, late + i % LATE * STEP_BYTES);
        };
        // s becomes what weighs the rows of the late tile
        auto weigh = [&](int i) {
            keep(s);
            if (SLOPES) keep(dp);
            if (lane == 0) barrier_arrive(other_empty + 8 * (i % OTHER));
            if (!SLOPES) barrier_wait(late_full + 8 * (i % LATE), i / LATE & 1);  // the numbers are there
            const u32 own_numbers = stage_numbers + i % LATE * NUMBER_BYTES + lane % 4 * 8;
            if (first + STEP > count || first + STEP - 1 > own_first + high || first < own_first + 63 + low) {
#pragma unroll
                for (int j = 0; j < STEP / 2; j++) {
                    const int at = first + j / 4 * 8 + lane % 4 * 2 + j % 2, r = row + j % 4 / 2 * 8;
                    if (at >= count || at > r + high || at < r + low) s[j] = -infinity<float>();
                }
            }
            first = first + STEP < end * STEP ? first + STEP : begin * STEP;
#pragma unroll
            for (int j = 0; j < STEP / 2; j += 4) {
                float below[2], delta[2];
                if (KIND != QUERY) load_pair(below, own_numbers + j / 4 * 32);
                if (KIND == KEY) load_pair(delta, own_numbers + STEP * 4 + j / 4 * 32);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float& x = s[j + e];
                    x = exp2_fast(x * c - (KIND == QUERY ? base[e / 2] : below[e % 2]));
                    if (SLOPES) x *= dp[j + e] - (KIND == QUERY ? shift[e / 2] : delta[e % 2]);
                }
            }
        };
        auto to_weights = [&]() {
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) weights[j] = pack(s[2 * j], s[2 * j + 1]);
            keep(weights);
        };

        if (steps > 0) {
            scores(0);
            wgmma_wait<0>();
            weigh(0);
            to_weights();
#pragma unroll 1
            for (int i = 1; i < steps; i++) {
                scores(i);
                add(i - 1);
                wgmma_wait<1>();
                weigh(i);
                wgmma_wait<0>();
                keep(weights);
                keep(sum);
                barrier_arrive(late_empty + 8 * ((i - 1) % LATE));
                to_weights();
            }
            add(steps - 1);
            wgmma_wait<0>();
            keep(weights);
            keep(sum);
        }
        const float all = KIND == VALUE ? 1 : scale, factor[2] = {all, all};
        to += batch * to_batch + head * to_head + row * to_row;
        store_results(sum, factor, to, to_row, own_count - row, width);
    }
}
