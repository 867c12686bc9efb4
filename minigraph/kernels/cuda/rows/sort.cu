// Sorting by merging, stable, and searching in sorted rows. NaN is the largest number.
// Only places move: `order` [rows, m] holds, row by row, which element comes where; X stays. Two sorted runs are merged
// by every element for itself: its place is its own number in its run and, by binary search, how many of the other run
// come before it.
//   sort_tiles  sorts TILE places of a row in shared memory
//   merge       makes runs of 2 * width from runs of `width`; reads `order`, writes `next`
//   bring       writes the sorted elements and the places they had
//   search      how many elements of a sorted row come before each x

__device__ __forceinline__ bool ahead(C a, C b) {
    return DESCENDING ? a > b || (a != a && b == b) : a < b || (b != b && a == a);
}

#ifdef SORT
// Where element i of two runs, [start, start + width) and what follows up to m, goes; value(j) is that of element j.
template <class Value> __device__ __forceinline__ i64 place(i64 i, i64 width, i64 m, const Value& value) {
    const i64 start = i / (2 * width) * (2 * width), middle = min(start + width, m), end = min(middle + width, m);
    const bool left = i < middle;
    const C own = value(i);
    i64 low = left ? middle : start, high = left ? end : middle;
    while (low < high) {
        const i64 half = (low + high) / 2;
        if (left ? ahead(value(half), own) : !ahead(own, value(half))) low = half + 1;
        else high = half;
    }
    return i + low - middle;  // of the left run: i + (low - middle); of the right one: low + (i - middle)
}

struct Shared {
    const C* values;
    const I* order;
    __device__ __forceinline__ C operator()(i64 j) const { return values[order[j]]; }
};

struct Row {
    const T* x;
    const I* order;
    i64 inner;
    __device__ __forceinline__ C operator()(i64 j) const { return C(up(x[i64(order[j]) * inner])); }
};

__device__ __forceinline__ i64 begin_of(i64 row, i64 m, i64 inner) { return row / inner * (m * inner) + row % inner; }

extern "C" __global__ void __launch_bounds__(256) sort_tiles(
    const T* __restrict__ X, I* order, i64 m, i64 inner, i64 tiles)
{
    __shared__ C values[TILE];
    __shared__ I orders[2][TILE];
    const i64 row = blockIdx.x / tiles, first = (blockIdx.x - row * tiles) * TILE;
    const int count = int(min(m - first, i64(TILE)));
    const T* x = X + begin_of(row, m, inner) + first * inner;
    for (int i = threadIdx.x; i < count; i += 256) {
        values[i] = C(up(x[i * inner]));
        orders[0][i] = I(i);
    }
    __syncthreads();
    int now = 0;
    for (int width = 1; width < count; width *= 2, now ^= 1) {
        const Shared value = {values, orders[now]};
        for (int i = threadIdx.x; i < count; i += 256) orders[now ^ 1][place(i, width, count, value)] = orders[now][i];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count; i += 256) order[row * m + first + i] = I(first) + orders[now][i];
}

extern "C" __global__ void __launch_bounds__(256) merge(
    const T* __restrict__ X, const I* __restrict__ order, I* next, i64 items, i64 m, i64 inner, i64 width)
{
    const i64 item = i64(blockIdx.x) * 256 + threadIdx.x;
    if (item >= items) return;
    const i64 row = item / m, i = item - row * m;
    const Row value = {X + begin_of(row, m, inner), order + row * m, inner};
    next[row * m + place(i, width, m, value)] = order[item];
}

extern "C" __global__ void __launch_bounds__(256) bring(
    const T* __restrict__ X, const I* __restrict__ order, T* out, i64* indices, i64 items, i64 m, i64 inner)
{
    const i64 item = i64(blockIdx.x) * 256 + threadIdx.x;
    if (item >= items) return;
    const i64 row = item / m, i = item - row * m, begin = begin_of(row, m, inner), from = i64(order[item]);
    if (HAS_OUT) out[begin + i * inner] = X[begin + from * inner];
    if (HAS_INDICES) indices[begin + i * inner] = from;
}
#endif

#ifdef SEARCH
extern "C" __global__ void __launch_bounds__(256) search(
    const T* __restrict__ rows, const T* __restrict__ x, i64* out, i64 items, i64 m, i64 each)
{
    const i64 item = i64(blockIdx.x) * 256 + threadIdx.x;
    if (item >= items) return;
    const T* row = rows + item / each * m;
    const C own = C(up(x[item]));
    i64 low = 0, high = m;
    while (low < high) {
        const i64 half = (low + high) / 2;
        const C other = C(up(row[half]));
        if (RIGHT ? !ahead(own, other) : ahead(other, own)) low = half + 1;
        else high = half;
    }
    out[item] = low;
}
#endif
