// out[o, v, :] = sum of rows[o, i, :] over all i with index[i] == v, in the order of i: the same bits in
// every run. index [n] is sorted stably by value, with its places; then each row of out is a sum over
// a stretch of the sorted places.
//
// radix_count    keys' last 8 bits are counted per block; a key is the index, `size` (dropped) where it is out of
//                range or `padding`
// radix_place    one pass of a least-significant-digit radix sort over 8 bits: every item is put behind those with a
//                smaller digit and those with the same one that came before, and the next digits are counted per
//                block of the new order
// tile_sums      level 1: sums over whole tiles of 64 sorted places that have one key; beside them starts[v] =
//                number of keys below v, by bisection. Level 2: sums over 64 such tiles. So no thread adds more than a
//                few hundred rows before tiles of tiles: an index that fills the whole batch costs no more than others
// row_sums       reads the rows at both ends of a stretch and the sums of the tiles between
//
// Bytes moved: rows once, out once, 1/64 of the rows (in C) at most for tiles; about 40 n for the sort.
// I is u32 or u64 and holds n and size. T is the element, C the type of sums, V elements per access,
// PACKS accesses per thread of one row, LANES threads share a row, J numbers the parts of all rows.

#ifdef SORT
// Sum of the values of all threads before this one, in a block of 256.
__device__ __forceinline__ I sum_before(I value, I* shared) {
    I total = value;
    for (int d = 1; d < 32; d <<= 1) {
        const I other = __shfl_up_sync(~0u, total, d);
        if (threadIdx.x % 32 >= d) total += other;
    }
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = total;
    __syncthreads();
    I before = total - value;
    for (int w = 0; w < threadIdx.x / 32; ++w) before += shared[w];
    __syncthreads();
    return before;
}

#ifdef INDEX
// counts[pass, block, digit]: those of pass 0, and zeros for the others.
extern "C" __global__ void __launch_bounds__(256) radix_count(
    const INDEX* __restrict__ index, I* keys, I* counts, i64 n, i64 size, i64 low, i64 padding, i64 per_block,
    i64 passes, Fault* fault, i64 step)
{
    __shared__ u32 count[256];
    count[threadIdx.x] = 0;
    __syncthreads();
    const i64 first = i64(blockIdx.x) * per_block, end = min(first + per_block, n);
    for (i64 i = first + threadIdx.x; i < end; i += 256) {
        i64 at = i64(index[i]);
        const bool found = at >= low && at < size;
        if (!found) report(fault, step, at, i);
        if (at < 0) at += size;
        const I key = found && at != padding ? I(at) : I(size);
        keys[i] = key;
        atomicAdd(&count[key & 255], 1u);
    }
    __syncthreads();
    I* own = counts + i64(blockIdx.x) * 256 + threadIdx.x;
    *own = count[threadIdx.x];
    for (i64 pass = 1; pass < passes; ++pass) own[pass * gridDim.x * 256] = 0;
}
#else
extern "C" __global__ void __launch_bounds__(256) radix_place(
    const I* __restrict__ keys, const I* __restrict__ places, const I* __restrict__ counts, I* next_counts,
    I* sorted_keys, I* sorted_places, i64 n, i64 per_block, i64 shift, i64 last)
{
    __shared__ I base[8][256];  // per warp and digit: how many it has, then where its first one goes
    __shared__ I shared[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    I total = 0, ahead = 0;  // items with this thread's digit: in all blocks, in earlier ones
#pragma unroll 16
    for (u32 b = 0; b < gridDim.x; ++b) {
        const I count = counts[b * 256 + threadIdx.x];
        total += count;
        if (b < blockIdx.x) ahead += count;
    }
    I next = sum_before(total, shared) + ahead;
    const i64 first = i64(blockIdx.x) * per_block, end = min(first + per_block, n);
    for (i64 round = first; round < end; round += 256) {
        const i64 i = round + threadIdx.x;
        const bool valid = i < end;
        const I key = valid ? keys[i] : 0;
        const u32 digit = valid ? u32(key >> shift) & 255 : 256;
        for (int w = 0; w < 8; ++w) base[w][threadIdx.x] = 0;
        __syncthreads();
        const u32 alike = __match_any_sync(~0u, digit);
        const u32 before = __popc(alike & ((1u << lane) - 1));
        if (valid && before == 0) base[warp][digit] = __popc(alike);
        __syncthreads();
        for (int w = 0; w < 8; ++w) {
            const I count = base[w][threadIdx.x];
            base[w][threadIdx.x] = next;
            next += count;
        }
        __syncthreads();
        if (valid) {
            const I to = base[warp][digit] + before;
            sorted_keys[to] = key;
            sorted_places[to] = shift == 0 ? I(i) : places[i];
            if (!last) atomicAdd(&next_counts[to / I(per_block) * 256 + (key >> (shift + 8) & 255)], I(1));
        }
        __syncthreads();
    }
}
#endif
#endif

#ifdef LANES
constexpr int STRIDE = LANES * V;  // elements from one access of a thread to its next

// sum += the elements of this thread in rows [begin, end) of `width` elements, `width` >= `left`.
template <class S, class Row>
__device__ __forceinline__ void add(C (&sum)[PACKS][V], const S* base, i64 begin, i64 end, i64 width, i64 left, Row row)
{
    constexpr int AHEAD = sizeof(S) * V > 16 ? 1 : 2;  // rows under way; where there are fewer, one is read again: no load hangs on a condition
    i64 offset[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) offset[p] = p * STRIDE < left ? p * STRIDE : 0;
#pragma unroll 1
    for (i64 i = begin; i < end; i += AHEAD) {
        Pack<S, V> pack[AHEAD][PACKS];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const S* from = base + row(min(i + u, end - 1)) * width;
#pragma unroll
            for (int p = 0; p < PACKS; ++p) pack[u][p] = *(const Pack<S, V>*)(from + offset[p]);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
            if (i + u < end)
#pragma unroll
                for (int p = 0; p < PACKS; ++p)
#pragma unroll
                    for (int j = 0; j < V; ++j) sum[p][j] += C(up(pack[u][p].v[j]));
    }
}

struct Same {
    __device__ __forceinline__ i64 operator()(i64 i) const { return i; }
};
struct Placed {
    const I* places;
    __device__ __forceinline__ i64 operator()(i64 i) const { return i64(places[i]); }
};

template <class S>
__device__ __forceinline__ void store(S* to, const C (&sum)[PACKS][V], i64 left)
{
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
        if (p * STRIDE < left) {
            Pack<S, V> pack;
#pragma unroll
            for (int j = 0; j < V; ++j) pack.v[j] = down<S>(sum[p][j]);
            *(Pack<S, V>*)(to + p * STRIDE) = pack;
        }
}

// Which row of [outer, m], and from which element on, this thread works; `left` elements remain there.
#define WORK(m)                                                                             \
    const J item = J(block) * (256 / LANES) + threadIdx.x / LANES;                          \
    const J line = item / J(pieces), matrix = line / J(m);                                  \
    if (matrix >= J(outer)) return;                                                         \
    const i64 row = line, o = matrix, v = line - matrix * J(m);                             \
    const i64 first = i64(item - line * J(pieces)) * (STRIDE * PACKS) + threadIdx.x % LANES * V; \
    const i64 left = width - first;                                                         \
    if (left <= 0) return;                                                                  \
    C sum[PACKS][V] = {};

// Level 1: tiles[o, t] = sum of rows at places 64 t ... 64 t + 63, in blocks after those of `starts`. Level 2: the
// same over tiles of level 1, and no such blocks.
extern "C" __global__ void __launch_bounds__(256, BLOCKS) tile_sums(
    const I* __restrict__ keys, const I* __restrict__ places, const T* __restrict__ rows,
    const C* __restrict__ tiles, C* sums, I* starts, i64 outer, i64 n, i64 size, i64 width, i64 pieces, i64 level)
{
    const u32 others = level == 1 ? u32((size + 256) / 256) : 0, block = blockIdx.x - others;
    if (blockIdx.x < others) {
        const i64 v = i64(blockIdx.x) * 256 + threadIdx.x;
        if (v > size) return;
        i64 low = 0, high = n;
        while (low < high) {
            const i64 middle = (low + high) / 2;
            if (i64(keys[middle]) < v) low = middle + 1;
            else high = middle;
        }
        starts[v] = I(low);
        return;
    }
    const i64 span = level == 1 ? 64 : 64 * 64, m = n / span;
    WORK(m)
    const I key = keys[v * span];
    if (key == I(size) || keys[v * span + span - 1] != key) return;
    if (level == 1) add(sum, rows + o * n * width + first, v * 64, v * 64 + 64, width, left, Placed{places});
    else add(sum, tiles + o * (n / 64) * width + first, v * 64, v * 64 + 64, width, left, Same());
    store(sums + row * width + first, sum, left);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS) row_sums(
    const I* __restrict__ starts, const I* __restrict__ places, const T* __restrict__ rows,
    const C* __restrict__ tiles, const C* __restrict__ tiles2, T* out,
    i64 outer, i64 n, i64 size, i64 width, i64 pieces)
{
    const u32 block = blockIdx.x;
    WORK(size)
    const i64 begin = i64(starts[v]), end = i64(starts[v + 1]);
    const i64 t0 = (begin + 63) / 64, t1 = max(end / 64, t0);           // whole tiles
    const i64 u0 = (t0 + 63) / 64, u1 = max(t1 / 64, u0);               // whole tiles of tiles
    const bool some = t0 * 64 < end && t0 < t1, many = some && u0 < u1;
    const T* row0 = rows + o * n * width + first;
    const C* tile0 = tiles + o * (n / 64) * width + first;
    add(sum, row0, begin, some ? t0 * 64 : end, width, left, Placed{places});
    if (some) {
        add(sum, tile0, t0, many ? u0 * 64 : t1, width, left, Same());
        if (many) {
            add(sum, tiles2 + o * (n / 4096) * width + first, u0, u1, width, left, Same());
            add(sum, tile0, u1 * 64, t1, width, left, Same());
        }
        add(sum, row0, t1 * 64, end, width, left, Placed{places});
    }
    store(out + row * width + first, sum, left);
}
#endif
