// Running sums (or products) along the middle axis: X[outer, m, inner] -> Y of that shape.
// A piece of the axis, [split * piece, ...), begins with Start[outer, splits, inner], what all pieces before it
// come to. Reads X once and writes Y once; a row in several pieces is read twice.
//   T  type read    U  type written    A  accumulator    KIND, IDENTITY  the operation and its neutral value
//   EXCLUSIVE  leaves the element itself out    REVERSE  runs from the end
// rows:    inner is 1; LANES threads share a row and scan LANES * WIDTH elements at a time; PACKED where rows
//          are whole packs
// columns: a thread takes WIDTH columns of a piece
#define SUM 0
#define PROD 1
#define THREADS 256

__device__ __forceinline__ A combine(A a, A b) {
#if KIND == SUM
    return a + b;
#else
    return a * b;
#endif
}

#ifdef LANES
extern "C" __global__ void __launch_bounds__(THREADS, 3) rows(
    const T* __restrict__ X, U* __restrict__ Y, const A* __restrict__ Start, i64 outer, i64 m, i64 piece, int splits
) {
    constexpr int GROUP = LANES < 32 ? LANES : 32;
    const u32 split = blockIdx.x % splits;
    const i64 row = i64(blockIdx.x / splits) * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const bool inside = row < outer;
    const i64 begin = split * piece, end = min(m, begin + piece);
    const T* x = X + row * m;
    U* y = Y + row * m;
    A carry = splits > 1 && inside ? Start[row * splits + split] : A(IDENTITY);
    for (i64 done = 0; done < end - begin; done += LANES * WIDTH) {
        const i64 at = done + lane * WIDTH;  // of this thread's first element, counted from where the piece starts
        const bool active = inside && at < end - begin;
        A v[WIDTH];
#if PACKED
        if (active) {
            const Pack<T, WIDTH> q = *(const Pack<T, WIDTH>*)(x + (REVERSE ? end - at - WIDTH : begin + at));
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) v[w] = A(up(q.v[REVERSE ? WIDTH - 1 - w : w]));
        } else
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) v[w] = A(IDENTITY);
#else
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            v[w] = active && at + w < end - begin ? A(up(x[REVERSE ? end - 1 - at - w : begin + at + w])) : A(IDENTITY);
#endif
#pragma unroll
        for (int w = 1; w < WIDTH; ++w) v[w] = combine(v[w - 1], v[w]);
        A total = v[WIDTH - 1];
#pragma unroll
        for (int far = 1; far < GROUP; far *= 2) {
            const A before = A(__shfl_up_sync(~0u, total, far, GROUP));
            if (lane % GROUP >= far) total = combine(before, total);
        }
        A before = A(__shfl_up_sync(~0u, total, 1, GROUP));
        if (lane % GROUP == 0) before = A(IDENTITY);
        A all = A(__shfl_sync(~0u, total, GROUP - 1, GROUP));
#if LANES > 32
        __shared__ A warps[LANES / 32];
        if (lane % 32 == 31) warps[lane / 32] = total;
        __syncthreads();
        A ahead = A(IDENTITY);
        all = A(IDENTITY);
#pragma unroll
        for (int w = 0; w < LANES / 32; ++w) {
            if (w == lane / 32) ahead = all;
            all = combine(all, warps[w]);
        }
        __syncthreads();
        before = combine(ahead, before);
#endif
        before = combine(carry, before);
        carry = combine(carry, all);
        if (!active) continue;
#pragma unroll
        for (int w = WIDTH - 1; w >= 0; --w)
            v[w] = EXCLUSIVE ? (w == 0 ? before : combine(before, v[w == 0 ? 0 : w - 1])) : combine(before, v[w]);
#if PACKED
        Pack<U, WIDTH> q;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) q.v[REVERSE ? WIDTH - 1 - w : w] = down<U>(v[w]);
        *(Pack<U, WIDTH>*)(y + (REVERSE ? end - at - WIDTH : begin + at)) = q;
#else
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            if (at + w < end - begin) y[REVERSE ? end - 1 - at - w : begin + at + w] = down<U>(v[w]);
#endif
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 3) columns(
    const T* __restrict__ X, U* __restrict__ Y, const A* __restrict__ Start, i64 outer, i64 m, i64 inner, i64 piece,
    int splits
) {
    const u64 across = inner / WIDTH, at = u64(blockIdx.x) * THREADS + threadIdx.x;
    const u64 o = at / across / splits, split = at / across % splits;
    const i64 column = i64(at % across) * WIDTH;
    if (o >= outer) return;
    const i64 begin = split * piece, length = min(m, begin + piece) - begin;
    const i64 first = (o * m + (REVERSE ? begin + length - 1 : begin)) * inner + column, step = REVERSE ? -inner : inner;
    A carry[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v)
        carry[v] = splits > 1 ? Start[(o * splits + split) * inner + column + v] : A(IDENTITY);
    for (i64 r = 0; r < length; r += UNROLL) {
        Pack<T, WIDTH> q[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (r + u < length) q[u] = *(const Pack<T, WIDTH>*)(X + first + (r + u) * step);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (r + u >= length) break;
            Pack<U, WIDTH> result;
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                const A sum = combine(carry[v], A(up(q[u].v[v])));
                result.v[v] = down<U>(EXCLUSIVE ? carry[v] : sum);
                carry[v] = sum;
            }
            *(Pack<U, WIDTH>*)(Y + first + (r + u) * step) = result;
        }
    }
}
#endif
