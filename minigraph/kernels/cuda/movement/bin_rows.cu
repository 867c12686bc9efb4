// out[v, :] = sum of rows[i, :] over all i with index[i] == v, the same bits in every run, for tables with about as
// many rows as there are items, or more.
//
// put_into_bins  every item gets a number among those with its key, by an atomic add. The first BIN places lie in the
//                bin of the key, in any order. A key with more is crowded, and gets a number too
// bin_sums       a warp sorts the places of KEYS bins and adds up their rows, by rising places; keys without items get
//                zeros. The first `helpers` blocks have no bins: where keys are crowded they sort and add up those
//                (crowds.cuh), and the last `waiters` blocks help them when their bins are done
//
// Bytes moved: rows once, out once, (BIN + 1) * 4 for each key, 1/64 of the rows (in C) at most for sums of units.

constexpr int LANES = 32 / KEYS, OWN = BIN / LANES;  // threads that share a bin, places that each has

// counts[size]: zeros at first, items of a key.
extern "C" __global__ void __launch_bounds__(256) put_into_bins(
    const INDEX* __restrict__ index, State* state, u32* counts, u32* bins, u32* crowded, u32* numbers, i64 n, i64 size,
    i64 low, i64 padding, Fault* fault, i64 step)
{
    look(fault);
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    u32 key = NONE;
    if (i < n) {
        const i64 at = i64(index[i]);
        if (at < low || at >= size) report(fault, step, at, i);
        else key = key_of(at, size, padding);
    }
    const u32 alike = __match_any_sync(~0u, key), lower = (1u << threadIdx.x % 32) - 1;
    u32 slot = 0;
    if (key != NONE && (alike & lower) == 0) slot = atomicAdd(counts + key, u32(__popc(alike)));
    slot = __shfl_sync(~0u, slot, __ffs(alike) - 1) + __popc(alike & lower);
    if (key == NONE) return;
    if (slot < BIN) bins[i64(key) * BIN + slot] = u32(i);
    else if (slot == BIN) {
        const u32 number = atomicAdd(&state->crowded, 1u);
        crowded[number] = key;
        numbers[key] = number;
    }
}

// Writes the places in KEYS bins, in order, bin after bin. Lane k knows how many lie in bin k, at most `most`, and how
// many until its end.
__device__ __forceinline__ void sort_bins(u32* list, const u32* __restrict__ bins, u32 count, u32 most, u32 end) {
    const u32 bin = threadIdx.x % 32 / LANES, lane = threadIdx.x % LANES;
    const u32 held = __shfl_sync(~0u, count, bin), begin = __shfl_sync(~0u, end - count, bin);
    u32 mine[OWN], rank[OWN] = {};
#pragma unroll
    for (int k = 0; k < OWN; ++k) mine[k] = k * LANES + lane < held ? bins[bin * BIN + k * LANES + lane] : NONE;
#pragma unroll
    for (int from = 0; from < OWN; ++from)
#pragma unroll 1
        for (u32 j = 0; j < LANES && from * LANES + j < most; ++j) {
            const u32 other = __shfl_sync(~0u, mine[from], bin * LANES + j);
#pragma unroll
            for (int k = 0; k < OWN; ++k) rank[k] += other < mine[k];
        }
#pragma unroll
    for (int k = 0; k < OWN; ++k)
        if (mine[k] != NONE) list[begin + rank[k]] = mine[k];
    __syncwarp();
}

// Sums of the rows of the keys from key0 on, `here` of them, from this thread's first element on.
__device__ __forceinline__ void add_bins(
    uint4* memory, u32* list, const u32* __restrict__ counts, const u32* __restrict__ bins,
    const T* __restrict__ rows, T* out, i64 key0, u32 here, i64 width, i64 first)
{
    const u32 lane = threadIdx.x % 32, items = lane < here ? counts[key0 + lane] : 0;
    const u32 crowded = __ballot_sync(~0u, items > BIN), count = items > BIN ? 0 : items;
    u32 end = count, most = count;
#pragma unroll
    for (int d = 1; d < KEYS; d *= 2) {
        const u32 earlier = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += earlier;
        most = max(most, __shfl_xor_sync(~0u, most, d));
    }
    most = __shfl_sync(~0u, most, 0);
    sort_bins(list, bins + key0 * BIN, count, most, end);
    const u32 total = __shfl_sync(~0u, end, KEYS - 1);
    const int room = room_of(width, first);
    Sums sum[PACKS] = {};
    u32 row = 0, stop = __shfl_sync(~0u, end, 0), k = 0;
    T* to = out + key0 * width + first;
    const auto finish = [&]() {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (p < room && !(crowded >> row & 1)) store(to + p * 32 * V, sum[p]);
            sum[p] = {};
        }
        to += width;
        ++row;
        stop = __shfl_sync(~0u, end, row);
    };
    add_rows(sum, memory, rows, width, first, [&]() { return k < total ? list[k++] : NONE; },
        [&](u32 t) { while (t == stop) finish(); });
    while (row < here) finish();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) bin_sums(
    const INDEX* __restrict__ index, State* state, const u32* __restrict__ counts, const u32* __restrict__ bins,
    const u32* __restrict__ crowded, const u32* __restrict__ numbers, u32* before, u32* ranks, u32* places, Unit* units,
    u32* done, C* parts, const T* __restrict__ rows, T* out, i64 n, i64 size, i64 width, i64 low, i64 padding,
    u32 pieces, u32 tiles, u32 sorters, u32 helpers, u32 waiters, u32 slots)
{
    extern __shared__ Line lines[];
    uint4* const memory = lines->part;
    __shared__ u32 lists[WARPS][KEYS * BIN];
    static_assert(CHUNK <= THREADS && CHUNK <= WARPS * KEYS * BIN, "a unit's places lie in the lists");
    static_assert(TILE * 4 <= WARPS * DEPTH * SLOT * 16, "a tile lies where rows do");
    const Crowds c = {
        state, counts, crowded, numbers, before, ranks, places, units, done, parts, tiles, sorters, slots};
    const bool helper = blockIdx.x < helpers, waiter = blockIdx.x + waiters >= gridDim.x;
    u32 crowds = 0;
    if (helper || waiter) crowds = __ldcg(&state->crowded);
    if (helper) {
        if (crowds == 0) return;
        if (blockIdx.x < sorters) sort_crowds(c, (u32*)memory, index, n, size, low, padding);
    } else {
        const u32 warp = threadIdx.x / 32, item = (blockIdx.x - helpers) * WARPS + warp, group = item / pieces;
        const i64 key0 = i64(group) * KEYS, first = i64(item - group * pieces) * PIECE + threadIdx.x % 32 * V;
        if (key0 < size)
            add_bins(memory + warp * DEPTH * SLOT, lists[warp], counts, bins, rows, out, key0,
                u32(min(i64(KEYS), size - key0)), width, first);
    }
    if (crowds > 0) add_crowds(c, memory, lists[0], rows, out, width, pieces);
}
