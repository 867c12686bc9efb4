// Sums of the rows of crowded keys, those with more items than a bin holds; bin_rows.cu says whose work that is.
//
// sort_crowds  the first `sorters` blocks sort all places of crowded keys, by counting: each has tiles of TILE items
// add_crowds   what is sorted makes units of at most CHUNK places of one key. Blocks take unit after unit; the one that
//              is last to finish GROUP units of a key adds up these, and the last one of all the groups
//
// Only the sorters wait for each other, so they must fit on the device together. Others wait for them once all of them
// have begun: nobody waits for a block that does not run, whatever the order in which blocks begin.

// Zeros at first.
struct State {
    u32 crowded, units, places, parts;        // keys; what was given to them
    u32 begun, arrived[2], sorted, taken;     // sorters that began, came to a barrier, are at an end; pieces of units
};
struct alignas(16) Unit {
    u32 key, begin, length, part, own, all, unused[2];  // places; number among those of the key, which have parts
};

struct Crowds {
    State* state;
    const u32 *counts, *keys, *numbers;  // items of a key; crowded keys; a crowded key's number among these
    u32 *before, *ranks, *places;  // [number, tile]: items there, then where those go; [n]: number, rank in its tile
    Unit* units;
    u32* done;  // units of a group, for each piece of a row, then groups of a key
    C* parts;   // sums of units
    u32 tiles, sorters, slots;
};

__device__ __forceinline__ u32 key_of(i64 at, i64 size, i64 padding) {
    if (at < 0) at += size;
    return at == padding ? NONE : u32(at);
}
template <class P> __device__ __forceinline__ P from_l2(const P* from) {
    P found;
#pragma unroll
    for (int k = 0; k < int(sizeof(P) / 16); ++k) ((uint4*)&found)[k] = __ldcg((const uint4*)from + k);
    return found;
}

// What all threads of the block wrote is there for whoever sees it counted.
__device__ __forceinline__ u32 count_block(u32* counter) {
    __syncthreads();
    if (threadIdx.x > 0) return 0;
    __threadfence();
    return atomicAdd(counter, 1u);
}
__device__ __forceinline__ void wait_for_blocks(u32* counter, u32 all) {
    if (threadIdx.x == 0) {
        while (*(volatile u32*)counter < all) {}
        __threadfence();
    }
    __syncthreads();
}

// Ranks of the crowded items of a tile among those with the same key.
__device__ __forceinline__ void rank_tile(
    const Crowds& c, u32* tile, const INDEX* __restrict__ index, u32 t, i64 n, i64 size, i64 low, i64 padding)
{
    constexpr int HELD = TILE / THREADS;  // items of a thread
    const i64 first = i64(t) * TILE + threadIdx.x;
    u32 mine[HELD], rank[HELD] = {};
    bool last[HELD];
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
        const i64 at = first + h * THREADS < n ? i64(index[first + h * THREADS]) : size;
        mine[h] = at >= low && at < size ? key_of(at, size, padding) : NONE;
    }
#pragma unroll
    for (int h = 0; h < HELD; ++h)
        if (mine[h] != NONE && c.counts[mine[h]] <= BIN) mine[h] = NONE;
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
        if (mine[h] != NONE) mine[h] = c.numbers[mine[h]];
        tile[threadIdx.x + h * THREADS] = mine[h];
        last[h] = mine[h] != NONE;
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < HELD; ++part)
#pragma unroll 1
        for (u32 k = 0; k < THREADS; k += 4) {
            const uint4 four = *(const uint4*)(tile + part * THREADS + k);
            const u32 other[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int h = 0; h < HELD; ++h)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const bool alike = other[e] == mine[h];
                    if (part < h || (part == h && k + e < threadIdx.x)) rank[h] += alike;
                    if ((part > h || (part == h && k + e > threadIdx.x)) && alike) last[h] = false;
                }
        }
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
        if (last[h]) c.before[mine[h] * c.tiles + t] = rank[h] + 1;
        if (first + h * THREADS < n) c.ranks[first + h * THREADS] = mine[h] == NONE ? NONE : mine[h] * TILE + rank[h];
    }
    __syncthreads();
}

// A warp gives a crowded key its places and units, and each tile the first of its places.
__device__ __forceinline__ void place_crowd(const Crowds& c, u32 number) {
    const u32 lane = threadIdx.x % 32, key = c.keys[number], count = c.counts[key], all = (count + CHUNK - 1) / CHUNK;
    u32 mine = 0;
    if (lane == 0) mine = atomicAdd(&c.state->places, count);
    if (lane == 1) mine = atomicAdd(&c.state->units, all);
    if (lane == 2 && all > 1) mine = atomicAdd(&c.state->parts, all);
    const u32 begin = __shfl_sync(~0u, mine, 0), unit = __shfl_sync(~0u, mine, 1), part = __shfl_sync(~0u, mine, 2);
    for (u32 u = lane; u < all; u += 32)
        c.units[unit + u] = {key, begin + u * CHUNK, min(u32(CHUNK), count - u * CHUNK), part, u, all};
    u32 sum = begin;
    for (u32 first = 0; first < c.tiles; first += 32) {
        u32* own = c.before + number * c.tiles + first + lane;
        const u32 items = first + lane < c.tiles ? __ldcg(own) : 0;
        u32 until = items;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const u32 other = __shfl_up_sync(~0u, until, d);
            if (lane >= d) until += other;
        }
        if (first + lane < c.tiles) *own = sum + until - items;
        sum += __shfl_sync(~0u, until, 31);
    }
}

__device__ __forceinline__ void sort_crowds(
    const Crowds& c, u32* tile, const INDEX* __restrict__ index, i64 n, i64 size, i64 low, i64 padding)
{
    const u32 keys = c.state->crowded;
    if (threadIdx.x == 0) atomicAdd(&c.state->begun, 1u);
    for (u32 t = blockIdx.x; t < c.tiles; t += c.sorters) {
        for (u32 k = threadIdx.x; k < keys; k += THREADS) c.before[k * c.tiles + t] = 0;
        rank_tile(c, tile, index, t, n, size, low, padding);
    }
    count_block(c.state->arrived);
    wait_for_blocks(c.state->arrived, c.sorters);
    for (u32 k = blockIdx.x * WARPS + threadIdx.x / 32; k < keys; k += c.sorters * WARPS) place_crowd(c, k);
    count_block(c.state->arrived + 1);
    wait_for_blocks(c.state->arrived + 1, c.sorters);
    for (u32 t = blockIdx.x; t < c.tiles; t += c.sorters)
        for (i64 i = i64(t) * TILE + threadIdx.x; i < min(n, i64(t + 1) * TILE); i += THREADS)
            if (const u32 rank = c.ranks[i]; rank != NONE)
                c.places[__ldcg(c.before + rank / TILE * c.tiles + t) + rank % TILE] = u32(i);
    count_block(&c.state->sorted);
}

// Whether this block is the last one of `all` to come here.
__device__ __forceinline__ bool is_last(u32* counter, u32 all) {
    __shared__ bool last;
    const u32 earlier = count_block(counter);
    if (threadIdx.x == 0) {
        last = earlier == all - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// Sums of `count` rows that lie `step` rows of `width` apart, in their order.
__device__ __forceinline__ Sums sum_of_parts(const C* first, u32 count, u32 step, i64 width) {
    Sums sum = {};
#pragma unroll 8
    for (u32 k = 0; k < count; ++k) add(sum, from_l2((const Sums*)(first + i64(k) * step * width)));
    return sum;
}

// A piece of the sum of a unit's rows, and what only the last block can add up. `list` has CHUNK places.
__device__ __forceinline__ void add_unit(
    const Crowds& c, uint4* memory, u32* list, const Unit* at, u32 piece, const T* rows, T* out, i64 width, u32 pieces)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Unit unit = from_l2(at);
    if (threadIdx.x < CHUNK)
        list[threadIdx.x] = threadIdx.x < unit.length ? __ldcg(c.places + unit.begin + threadIdx.x) : NONE;
    __syncthreads();
    Sums sum[PACKS] = {};
    u32 k = warp;
    const auto next = [&]() {
        const u32 place = k < CHUNK ? list[k] : NONE;
        k += WARPS;
        return place;
    };
    add_rows(sum, memory + warp * DEPTH * SLOT, rows, width, i64(piece) * PIECE + lane * V, next, [](u32) {});
    __syncthreads();
    Sums* others = (Sums*)memory;  // all rows have come
#pragma unroll
    for (int p = 0; p < PACKS; ++p) others[(warp * PACKS + p) * 32 + lane] = sum[p];
    __syncthreads();
    const i64 column = i64(piece) * PIECE + threadIdx.x * V;
    const bool mine = threadIdx.x < SLOT && column < width;
    Sums total = {};
    if (mine)
#pragma unroll
        for (int w = 0; w < WARPS; ++w) add(total, others[w * SLOT + threadIdx.x]);
    if (unit.all > 1) {
        const u32 begin = unit.own / GROUP * GROUP, size = min(u32(GROUP), unit.all - begin);
        const u32 groups = (unit.all + GROUP - 1) / GROUP;
        C* part = c.parts + i64(unit.part) * width + column;
        if (mine) *(Sums*)(part + i64(unit.own) * width) = total;
        if (!is_last(c.done + (unit.part + begin) * pieces + piece, size)) return;
        if (mine) total = sum_of_parts(part + i64(begin) * width, size, 1, width);
        if (groups > 1) {
            if (mine) *(Sums*)(part + i64(begin) * width) = total;
            if (!is_last(c.done + (c.slots + unit.part) * pieces + piece, groups)) return;
            if (mine) total = sum_of_parts(part, groups, GROUP, width);
        }
    }
    if (mine) store(out + i64(unit.key) * width + column, total);
}

// Takes units as long as there are some, if all sorters have begun.
__device__ __forceinline__ void add_crowds(
    const Crowds& c, uint4* memory, u32* list, const T* rows, T* out, i64 width, u32 pieces)
{
    __shared__ u32 work[2];
    if (threadIdx.x == 0) {
        work[0] = NONE;
        if (*(volatile u32*)&c.state->begun == c.sorters) {
            while (*(volatile u32*)&c.state->sorted < c.sorters) {}
            work[0] = atomicAdd(&c.state->taken, 1u);
            __threadfence();
        }
    }
    __syncthreads();
    if (work[0] == NONE) return;
    const u32 all = __ldcg(&c.state->units);
    for (u32 turn = 0; work[turn] / pieces < all; turn ^= 1) {
        u32 next = 0;
        if (threadIdx.x == 0) next = atomicAdd(&c.state->taken, 1u);  // on its way while this one is added up
        add_unit(c, memory, list, c.units + work[turn] / pieces, work[turn] % pieces, rows, out, width, pieces);
        if (threadIdx.x == 0) work[turn ^ 1] = next;
        __syncthreads();
    }
}
