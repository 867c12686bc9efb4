// What generated kernels of fused bodies share. Values are arrays of N elements in the registers of a thread: PACKS packs
// of WIDTH elements that lie side by side. The kernel says where pack k begins: `element(k)`, counted in row-major order.
#ifdef TOTALS
// b[n] = the sum of the rows of a[parts, n]: a block of 1024 threads takes 32 columns.
template <class A, class T>
__device__ __forceinline__ void add_rows(const A* __restrict__ a, T* b, i64 parts, i64 n) {
    __shared__ A others[32][33];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    const i64 column = i64(blockIdx.x) * 32 + x, goal = i64(blockIdx.x) * 32 + y;
    A sum = A(0);
    if (column < n)
#pragma unroll 8
        for (i64 p = y; p < parts; p += 32) sum += a[p * n + column];
    others[y][x] = sum;
    __syncthreads();
    sum = warp_sum(others[x][y]);
    if (x == 0 && goal < n) b[goal] = down<T>(sum);
}
#else
#define N (PACKS * WIDTH)
#define ALL _Pragma("unroll") for (int i = 0; i < N; ++i)
#define ALL_PACKS _Pragma("unroll") for (int k = 0; k < PACKS; ++k)

// The elements of packs as they are computed with. Those of bfloat16 two by two: else each is taken out of its word first.
template <class C, class T, int W, int COUNT>
__device__ __forceinline__ void unpack(C (&to)[COUNT * W], const Pack<T, W> (&from)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT * W; ++i) to[i] = up(from[i / W].v[i % W]);
}
template <int W, int COUNT>
__device__ __forceinline__ void unpack(float (&to)[COUNT * W], const Pack<bf16, W> (&from)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT * W; ++i) {
        if (W % 2) to[i] = up(from[i / W].v[i % W]);
        else {
            const u32 word = ((const u32*)&from[i / W])[i % W / 2];
            to[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        }
    }
}

// Where a random member keeps an element: its word is at least `threshold`.
template <class ELEMENT>
__device__ __forceinline__ void keep(
    bool (&kept)[N], ELEMENT element, u64 seed, i64 number, i64 step, u64 threshold
) {
    ALL_PACKS {
        const u64 first = element(k);
#pragma unroll
        for (int q = 0; q < WIDTH; q += 4) {
            const Words w = philox4x32(first / 4 + q / 4, seed, number, step);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (WIDTH >= 4)
                    kept[k * WIDTH + (q + j) % WIDTH] = w.v[j] >= threshold;
                else if (int(first % 4) <= j && j < int(first % 4) + WIDTH) {
#pragma unroll
                    for (int v = 0; v < WIDTH; ++v)
                        if (int(first % 4) + v == j) kept[k * WIDTH + v] = w.v[j] >= threshold;
                }
        }
    }
}

#ifdef LANES
// Whether pack k or element i of this thread exists; where to load pack k from, counted from the row's first one: another
// pack if it does not exist, since loads that hang on a condition take packs apart.
#define HAS(k) (FULL ? inside : (k) * LANES < mine)
#define VALID(i) HAS((i) / WIDTH)
#define PLACE(k) (FULL ? lane + (k) * LANES : min(lane + (k) * LANES, int(packs) - 1))

// A pack of the thread's next row on its way to `to` in shared memory; there after wait_for_copies().
template <class PACK> __device__ __forceinline__ void fetch_pack(PACK* to, const PACK* from) {
#ifdef __CUDACC__
    if (sizeof(PACK) < 16) {
        const u32 place = u32(__cvta_generic_to_shared(to));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
            ::"r"(place), "l"(from), "n"(int(sizeof(PACK) < 16 ? sizeof(PACK) : 8)) : "memory");
        return;
    }
    copy_ahead(to, from);
#else
    *to = *from;
#endif
}

// Over the LANES threads that share a row, in each of them; `shared` holds one value for each warp.
template <class C, class MERGE> __device__ __forceinline__ C over_lanes(C x, C* shared, MERGE merge) {
#pragma unroll
    for (int lanes = (LANES < 32 ? LANES : 32) / 2; lanes > 0; lanes /= 2)
        x = merge(x, C(__shfl_xor_sync(~0u, x, lanes)));
#if LANES > 32
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[threadIdx.x / LANES * (LANES / 32) + threadIdx.x % (LANES / 32)];
#pragma unroll
    for (int lanes = LANES / 64; lanes > 0; lanes /= 2) x = merge(x, C(__shfl_xor_sync(~0u, x, lanes)));
#endif
    return x;
}
template <class C> __device__ __forceinline__ C row_sum(C x, void* shared) {
    return over_lanes(x, (C*)shared, [](C a, C b) { return a + b; });
}
// Two sums at once, with one barrier.
template <class C> __device__ __forceinline__ void row_sums(C& a, C& b, void* first, void* second) {
#pragma unroll
    for (int lanes = (LANES < 32 ? LANES : 32) / 2; lanes > 0; lanes /= 2) {
        a += __shfl_xor_sync(~0u, a, lanes);
        b += __shfl_xor_sync(~0u, b, lanes);
    }
#if LANES > 32
    if (threadIdx.x % 32 == 0) {
        ((C*)first)[threadIdx.x / 32] = a;
        ((C*)second)[threadIdx.x / 32] = b;
    }
    __syncthreads();
    a = ((C*)first)[threadIdx.x / LANES * (LANES / 32) + threadIdx.x % (LANES / 32)];
    b = ((C*)second)[threadIdx.x / LANES * (LANES / 32) + threadIdx.x % (LANES / 32)];
#pragma unroll
    for (int lanes = LANES / 64; lanes > 0; lanes /= 2) {
        a += __shfl_xor_sync(~0u, a, lanes);
        b += __shfl_xor_sync(~0u, b, lanes);
    }
#endif
}
template <class C> __device__ __forceinline__ C row_max(C x, void* shared) {
    return over_lanes(x, (C*)shared, [](C a, C b) { return max_nan(a, b); });
}
template <class C> __device__ __forceinline__ C row_min(C x, void* shared) {
    return over_lanes(x, (C*)shared, [](C a, C b) { return min_nan(a, b); });
}
#endif
#endif
