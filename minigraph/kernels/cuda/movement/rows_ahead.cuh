// Rows that a warp adds up come through shared memory, DEPTH of them under way. T is the element, C the type of sums,
// V elements per access of 16 bytes, PACKS accesses of a thread per row, WARPS of a block.

constexpr int THREADS = 32 * WARPS, PIECE = 32 * PACKS * V, SLOT = 32 * PACKS;  // elements, accesses of a row's piece
constexpr u32 NONE = ~0u;
typedef Pack<C, V> Sums;

struct alignas(128) Line {  // 5 % slower where copies of rows are not aligned so in shared memory
    uint4 part[8];
};

template <class S> __device__ __forceinline__ void add(Sums& sum, const Pack<S, V>& pack) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum.v[j] += C(up(pack.v[j]));
}
__device__ __forceinline__ void store(T* to, const Sums& sum) {
    Pack<T, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) pack.v[j] = down<T>(sum.v[j]);
    *(Pack<T, V>*)to = pack;
}

// How many accesses of a row are this thread's, from element `first` on.
__device__ __forceinline__ int room_of(i64 width, i64 first) {
    return int(min(max((width - first + 32 * V - 1) / (32 * V), i64(0)), i64(PACKS)));
}

// sum += the rows that next() names until it says NONE; before(t) is told that row t follows. The warp's `memory` has
// DEPTH slots; `first` is this thread's first element of a row.
template <class Next, class Before> __device__ __forceinline__ void add_rows(
    Sums (&sum)[PACKS], uint4* memory, const T* rows, i64 width, i64 first, Next next, Before before
) {
    const int room = room_of(width, first);
    uint4* const ring = memory + threadIdx.x % 32;
    const T* const from = rows + first;
    u32 issued = 0;
    int goal = 0, own = 0;
    const auto issue = [&]() {
        const u32 place = next();
        if (place != NONE) {
            const T* row = from + i64(place) * width;
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
                if (p < room) copy_ahead<true>(ring + goal + p * 32, row + p * 32 * V);
            ++issued;
            goal = goal == (DEPTH - 1) * SLOT ? 0 : goal + SLOT;
        }
        end_of_copies();
    };
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) issue();
#pragma unroll 1
    for (u32 t = 0; t < issued; ++t) {
        before(t);
        wait_for_groups<DEPTH - 1>();
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (p < room) add(sum[p], *(const Pack<T, V>*)(ring + own + p * 32));
        own = own == (DEPTH - 1) * SLOT ? 0 : own + SLOT;
        issue();
    }
}
