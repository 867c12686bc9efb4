// out[o, v, :] = sum of rows[o, i, :] over all i with index[i] == v, in the order of i: the same bits in
// every run. index [n] is sorted stably by value, with its places; then each row of out is a sum over
// a stretch of the sorted items.
//
// radix_count    keys' last 8 bits are counted per block; a key is the index, `size` (dropped) where it is out of
//                range or `padding`
// radix_place    one pass of a least-significant-digit radix sort over 8 bits: every item is put behind those with a
//                smaller digit and those with the same one that came before, and the next digits are counted per
//                block of the new order. The first pass marks the rows that get something; beside the last one, more
//                blocks write zeros into all others
// row_sums       a block has a tile, SPAN sorted items. Each group of its threads adds up the stretches that begin
//                among RUN of them. Of a tile with one key the block keeps the sum instead
// long_sums      stretches with a tile in them: what lies before it, the sums of tiles, what comes after
//
// Bytes moved: rows once, out once, 1/64 of the rows (in C) at most for tiles; about 60 n for the sort.
// I is u32 or u64 and holds n and size. T is the element, C the type of sums, V elements per access,
// LANES threads share a part of a row, one access each.

typedef Pack<I, 2> Item;  // a key and its place

#ifdef SORT
constexpr int PARTS = SORTERS / 256, WARPS = SORTERS / 32;  // threads that share a digit

#ifdef INDEX
// counts[pass, block, digit]: those of pass 0, and zeros for the others.
extern "C" __global__ void __launch_bounds__(SORTERS) radix_count(
    const INDEX* __restrict__ index, I* keys, I* counts, u8* used, i64 n, i64 size, i64 low, i64 padding,
    i64 block_shift, i64 passes, Fault* fault, i64 step)
{
    __shared__ u32 count[256];
    look(fault);
    if (threadIdx.x < 256) count[threadIdx.x] = 0;
    __syncthreads();
    const i64 first = i64(blockIdx.x) << block_shift, end = min(i64(blockIdx.x + 1) << block_shift, n);
    i64 wrong = -1;  // reported behind the loop, whose registers are few
    for (i64 i = first + threadIdx.x; i < end; i += SORTERS) {
        i64 at = i64(index[i]);
        const bool found = at >= low && at < size;
        if (!found) wrong = i;
        if (at < 0) at += size;
        const I key = found && at != padding ? I(at) : I(size);
        keys[i] = key;
        atomicAdd(&count[key & 255], 1u);
    }
    if (wrong >= 0) report(fault, step, i64(index[wrong]), wrong);
    for (i64 v = i64(blockIdx.x) * SORTERS + threadIdx.x; v < size; v += i64(gridDim.x) * SORTERS) used[v] = 0;
    __syncthreads();
    if (threadIdx.x >= 256) return;
    I* own = counts + i64(blockIdx.x) * 256 + threadIdx.x;
    *own = count[threadIdx.x];
    for (i64 pass = 1; pass < passes; ++pass) own[pass * gridDim.x * 256] = 0;
}
#else
// Sum of the values of threads before this one, among the first 256.
__device__ __forceinline__ I sum_before(I value, I* shared) {
    I total = value;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const I other = __shfl_up_sync(~0u, total, d);
        if (threadIdx.x % 32 >= d) total += other;
    }
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = total;
    __syncthreads();
    I before = total - value;
#pragma unroll
    for (int w = 0; w < 8; ++w)
        if (w < threadIdx.x / 32) before += shared[w];
    return before;
}

// Blocks from `sorters` on write zeros into rows of out, `row_words` each, that are not marked.
extern "C" __global__ void __launch_bounds__(SORTERS) radix_place(
    const I* __restrict__ keys, const Item* __restrict__ items, const I* __restrict__ counts, I* next_counts,
    Item* sorted, u8* used, W* out, i64 outer, i64 size, i64 row_words, i64 n, i64 block_shift, i64 shift, i64 last,
    u32 sorters)
{
    if (blockIdx.x >= sorters) {
        constexpr int GROUPS = SORTERS / SHARERS;
        const W zero = {};
        const i64 step = i64(gridDim.x - sorters) * GROUPS;
        i64 line = i64(blockIdx.x - sorters) * GROUPS + threadIdx.x / SHARERS;
        for (; line < outer * size; line += step)
            if (!used[line % size])
                for (i64 k = threadIdx.x % SHARERS; k < row_words; k += SHARERS) out[line * row_words + k] = zero;
        return;
    }
    __shared__ uint4 memory[SORTERS];
    unsigned short(*before)[256] = (unsigned short(*)[256])memory;  // of a digit, in each warp, then in earlier ones
    __shared__ I parts[PARTS][2][256], start[256], shared[WARPS];   // start: where the next item of a digit goes
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, digit = threadIdx.x % 256, part = threadIdx.x / 256;
    const i64 first = i64(blockIdx.x) << block_shift, end = min(i64(blockIdx.x + 1) << block_shift, n);
    i64 i = first + threadIdx.x;
    Item item = {};
    if (i < end) item = shift ? items[i] : Item{keys[i], I(i)};
    I total = 0, ahead = 0;  // items with this thread's digit: in all blocks, in earlier ones
#pragma unroll 16
    for (u32 k = part; k < sorters; k += PARTS) {  // each block begins elsewhere: together they would wait for one row
        const u32 b = blockIdx.x + k < sorters ? blockIdx.x + k : blockIdx.x + k - sorters;
        const I count = counts[b * 256 + digit];
        total += count;
        if (b < blockIdx.x) ahead += count;
    }
    parts[part][0][digit] = total, parts[part][1][digit] = ahead;
    __syncthreads();
    total = ahead = 0;
    if (part == 0)
#pragma unroll
        for (int p = 0; p < PARTS; ++p) total += parts[p][0][digit], ahead += parts[p][1][digit];
    const I smaller = sum_before(total, shared);
    if (part == 0) start[digit] = smaller + ahead;
    for (i64 round = first; round < end; round += SORTERS) {
        const bool valid = i < end;
        const u32 own = valid ? u32(item.v[0] >> shift) & 255 : 256;
        memory[threadIdx.x] = uint4();  // the warp's own counts
        __syncwarp();
        const u32 alike = __match_any_sync(~0u, own);
        const u32 rank = __popc(alike & ((1u << lane) - 1));
        if (valid && rank == 0) before[warp][own] = __popc(alike);
        __syncthreads();
        u32 held[8], sum = 0;
#pragma unroll
        for (int w = 0; w < 8; ++w) held[w] = before[part * 8 + w][digit];
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            before[part * 8 + w][digit] = sum;
            sum += held[w];
        }
        parts[part][0][digit] = sum;
        __syncthreads();
        if (valid) {
            I to = start[own] + before[warp][own] + rank;
            for (int p = 0; p < warp / 8; ++p) to += parts[p][0][own];
            sorted[to] = item;
            if (!last) atomicAdd(&next_counts[(to >> block_shift) * 256 + (item.v[0] >> (shift + 8) & 255)], I(1));
            if (shift == 0 && item.v[0] < I(size)) used[item.v[0]] = 1;
        }
        if (round + SORTERS >= end) return;
        i += SORTERS;
        if (i < end) item = shift ? items[i] : Item{keys[i], I(i)};
        __syncthreads();
        if (part == 0)
#pragma unroll
            for (int p = 0; p < PARTS; ++p) start[digit] += parts[p][0][digit];
    }
}
#endif
#endif

#ifdef LANES
constexpr int PART = LANES * V, SPAN = 64, RUNS = SPAN / RUN;  // elements of a part of a row; items of a tile; its runs
constexpr int GROUPS = 256 / LANES, SIDES = GROUPS / RUNS;     // parts of rows that a block works on at once
typedef Pack<C, V> Sums;

template <class S> __device__ __forceinline__ void add(Sums& sum, const Pack<S, V>& pack) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum.v[j] += C(up(pack.v[j]));
}
template <class S> __device__ __forceinline__ void store(S* to, const Sums& sum) {
    Pack<S, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) pack.v[j] = down<S>(sum.v[j]);
    *(Pack<S, V>*)to = pack;
}

// sum += rows of items[begin ... end); `finished(key)` is told where a stretch ends.
template <class F> __device__ __forceinline__ void add_stretches(
    Sums& sum, const Item* items, const T* rows, i64 width, int begin, int end, F finished
) {
    if (begin >= end) return;
    I key = items[begin].v[0];
#pragma unroll 1
    for (int i = begin; i < end; i += AHEAD) {
        Pack<T, V> pack[AHEAD];  // where there are fewer, one is read again: no load hangs on a condition
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
            pack[u] = *(const Pack<T, V>*)(rows + i64(items[min(i + u, end - 1)].v[1]) * width);
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
            if (i + u < end) {
                const I next = items[i + u].v[0];
                if (next != key) {
                    finished(key);
                    sum = {};
                    key = next;
                }
                add(sum, pack[u]);
            }
    }
    finished(key);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS) row_sums(
    const Item* __restrict__ sorted, const T* __restrict__ rows, C* tiles, T* out,
    i64 outer, i64 n, i64 size, i64 width, i64 pieces, u32 parts)
{
    __shared__ Item own[2 * SPAN + 1];  // the item before, the tile, the one after
    __shared__ Sums others[256];
    const i64 tile = blockIdx.x / parts, origin = tile * SPAN - 1;
    for (int k = threadIdx.x; k < 2 * SPAN + 1; k += 256) {
        const i64 i = origin + k;
        own[k] = i >= 0 && i < n ? sorted[i] : Item{I(size), 0};
    }
    __syncthreads();
    const i64 part = i64(blockIdx.x % parts) * SIDES + threadIdx.x / (LANES * RUNS), o = part / pieces;
    const i64 first = part % pieces * PART + threadIdx.x % LANES * V;
    const bool inside = o < outer && first < width;
    const int run = threadIdx.x / LANES % RUNS, begin = 1 + run * RUN;
    int i = begin, end = begin + RUN;
    const T* from = rows + o * n * width + first;
    Sums sum = {};
    if (own[1].v[0] == own[SPAN].v[0] && origin + SPAN < n) {  // one key
        if (own[1].v[0] == I(size)) return;
        if (inside) add_stretches(sum, own, from, width, i, end, [](I) {});
        others[threadIdx.x] = sum;
        __syncthreads();
        if (run > 0 || !inside) return;
#pragma unroll 1
        for (int r = 1; r < RUNS; ++r) add(sum, others[threadIdx.x + r * LANES]);
        store(tiles + (o * (n / SPAN) + tile) * width + first, sum);
        return;
    }
    if (!inside) return;
    const I before = own[begin - 1].v[0], last = own[end - 1].v[0];
    if (begin > 1 || tile > 0)
        while (i < end && own[i].v[0] == before) ++i;  // of a stretch that began before
    if (i == end) return;
    if (last == I(size))
        while (end > i && own[end - 1].v[0] == last) --end;
    else {
        while (end <= SPAN && own[end].v[0] == last) ++end;
        if (end == SPAN + 1 && own[end].v[0] == last) {
            if (own[2 * SPAN].v[0] == last)  // a tile comes with one key: too long for one group
                while (end > i && own[end - 1].v[0] == last) --end;
            else
                while (own[end].v[0] == last) ++end;
        }
    }
    const auto keep = [&](I key) { store(out + (o * size + i64(key)) * width + first, sum); };
    add_stretches(sum, own, from, width, i, end, keep);
}

// A block looks for tiles with which stretches begin, far from one another: neighbours are work for others.
extern "C" __global__ void __launch_bounds__(256, 3) long_sums(
    const Item* __restrict__ sorted, const T* __restrict__ rows, const C* __restrict__ tiles, T* out,
    i64 outer, i64 n, i64 size, i64 width, i64 pieces)
{
    __shared__ Sums others[256];
    __shared__ u32 found;
    const auto key_at = [&](i64 place) { return sorted[place].v[0]; };
    const int group = threadIdx.x / LANES, lane = threadIdx.x % 32;
    for (i64 round = blockIdx.x; round < n / SPAN; round += i64(gridDim.x) * 32) {
        if (threadIdx.x < 32) {
            const i64 t = round + i64(threadIdx.x) * gridDim.x;
            bool begins = false;
            if (t < n / SPAN) {
                const I key = key_at(t * SPAN), last = key_at(t * SPAN + SPAN - 1);
                const I before = t > 0 ? key_at(t * SPAN - SPAN) : I(size);
                begins = key != I(size) && last == key && before != key;
            }
            const u32 all = __ballot_sync(~0u, begins);
            if (threadIdx.x == 0) found = all;
        }
        __syncthreads();
        for (u32 rest = found; rest; rest &= rest - 1) {
            const i64 t = round + i64(__ffs(rest) - 1) * gridDim.x;
            const I key = key_at(t * SPAN);
            i64 low = t + 1, high = n / SPAN;  // the first tile behind that has another key
            while (low < high) {
                const i64 step = (high - low + 31) / 32, u = low + lane * step;
                const int same = __popc(__ballot_sync(~0u, u < high && key_at(u * SPAN + SPAN - 1) == key));
                high = min(high, low + same * step);
                if (same > 0) low += (same - 1) * step + 1;
            }
            const auto alike = [&](i64 from) {  // items with this key among SPAN
                int count = 0;
                for (i64 i = from + lane; i < from + SPAN; i += 32)
                    count += __popc(__ballot_sync(~0u, i >= 0 && i < n && key_at(i) == key));
                return count;
            };
            const int head = alike(t * SPAN - SPAN), beside = head + alike(low * SPAN);  // items beside the tiles
            const i64 begin = t * SPAN - head;
            for (i64 part = blockIdx.y; part < outer * pieces; part += gridDim.y) {
                const i64 o = part / pieces, first = part % pieces * PART + threadIdx.x % LANES * V;
                Sums sum = {};
                if (first < width) {
#pragma unroll 4
                    for (i64 u = t + group; u < low; u += GROUPS)
                        add(sum, *(const Sums*)(tiles + (o * (n / SPAN) + u) * width + first));
#pragma unroll 4
                    for (int r = group; r < beside; r += GROUPS) {
                        const i64 place = sorted[r < head ? begin + r : low * SPAN + r - head].v[1];
                        add(sum, *(const Pack<T, V>*)(rows + (o * n + place) * width + first));
                    }
                }
#pragma unroll 1
                for (int far = GROUPS / 2; far > 0; far /= 2) {
                    others[threadIdx.x] = sum;
                    __syncthreads();
                    if (group < far) add(sum, others[threadIdx.x + far * LANES]);
                    __syncthreads();
                }
                if (group == 0 && first < width) store(out + (o * size + i64(key)) * width + first, sum);
            }
        }
        __syncthreads();
    }
}
#endif
