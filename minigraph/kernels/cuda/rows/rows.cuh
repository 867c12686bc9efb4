// Operators on rows: a statistic of all n elements of a row, then each element from it. The operator's own file,
// which stands before this one, defines (A and B are its one or two inputs, of type T and shape [rows, n])
//   State, empty(), merge(s, t), from_lane(s, lanes)      the statistic; merge is symmetric to the last bit
//   absorb<N>(s, a, b)                                    N more elements; may prepare a for `value`
//   Row, open_row(...), close_row(row, total, ...)        what else belongs to a row; close_row runs once per row
//   distance(row, i)                                      how far behind i the element of the row's own class stands
//   Finish, prepare(total, s), value(f, row, a, b, own)   the result; s is the state that has absorbed a and b
//   FILL_A, FILL_B                                        elements that change no state
//   INPUTS (1 or 2), REDUCES, WRITES, ROW_PARAMETERS, ROW_ARGUMENTS
// held:     LANES threads have PACKS packs each: HELD in registers, the others in shared memory. Reads and writes once
// streamed: a block goes over a row twice and keeps its first `kept` packs in shared memory
// statistics, apply: few long rows, cut into pieces of `piece` packs for several blocks; reads twice
// columns:  elements of a row are `inner` apart; TX * TY threads take TX * WIDTH rows; reads twice
// A row is seen as packs of 16 bytes from the boundary before its first element: `shift` elements of its first pack
// and some of its last one lie outside, and those packs move element by element.
struct Packs {
    i64 n;
    int shift;
    __device__ __forceinline__ Packs(const T* x, i64 size)
        : n(size), shift(ALIGNED ? 0 : int(u64(x) / sizeof(T) % WIDTH)) {}
    __device__ __forceinline__ i64 count() const { return (n + shift + WIDTH - 1) / WIDTH; }
    __device__ __forceinline__ i64 first(i64 k) const { return k * WIDTH - shift; }
    __device__ __forceinline__ bool whole(const T* x, i64 i) const {
        return ALIGNED || (i >= 0 && i + WIDTH <= n && u64(x + i) % (WIDTH * sizeof(T)) == 0);
    }
    __device__ __forceinline__ Pack<T, WIDTH> load(const T* x, i64 k, C fill) const {
        const i64 i = first(k);
        Pack<T, WIDTH> q;
        if (whole(x, i)) return *(const Pack<T, WIDTH>*)(x + i);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) q.v[v] = i + v >= 0 && i + v < n ? x[i + v] : down<T>(fill);
        return q;
    }
    __device__ __forceinline__ void store(T* y, i64 k, Pack<T, WIDTH> q) const {
        const i64 i = first(k);
        if (whole(y, i)) {
            *(Pack<T, WIDTH>*)(y + i) = q;
            return;
        }
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            if (i + v >= 0 && i + v < n) y[i + v] = q.v[v];
    }
};

template <int GROUP> __device__ __forceinline__ State over_lanes(State s) {
#pragma unroll
    for (int lanes = GROUP / 2; lanes > 0; lanes /= 2) s = merge(s, from_lane(s, lanes));
    return s;
}

// The state of all LANES threads that share a row, in each of them.
template <int SHARERS> __device__ __forceinline__ State gather(State s) {
    s = over_lanes<(SHARERS < 32 ? SHARERS : 32)>(s);
    if (SHARERS > 32) {
        __shared__ State warps[SHARERS < 32 ? 1 : SHARERS / 32];
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
        __syncthreads();
        s = over_lanes<(SHARERS < 32 ? 1 : SHARERS / 32)>(warps[threadIdx.x % (SHARERS < 32 ? 1 : SHARERS / 32)]);
    } else
        __syncwarp();  // orders reads in open_row before writes of other lanes
    return s;
}

#ifdef PACKS
constexpr int SHELVED = PACKS - HELD;

// Pack k of a row on its way to `to` in shared memory.
__device__ __forceinline__ void shelve(Pack<T, WIDTH>* to, const T* x, Packs packs, int k, C fill) {
    if (packs.whole(x, packs.first(k)))
        copy_ahead(to, x + packs.first(k));
    else
        *to = packs.load(x, k, fill);
}

template <int N>
__device__ __forceinline__ void widen(C* a, C* b, const Pack<T, WIDTH>* p, const Pack<T, WIDTH>* q, int left) {
#pragma unroll
    for (int k = 0; k < N; ++k)
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            a[k * WIDTH + v] = k * LANES < left ? C(up(p[k].v[v])) : FILL_A;
            b[k * WIDTH + v] = k * LANES < left && INPUTS == 2 ? C(up(q[k].v[v])) : FILL_B;
        }
}

// The results of pack `at` of a row, from its elements as they were.
__device__ __forceinline__ void finish(
    Packs packs, T* y, int at, const Pack<T, WIDTH>* p, const Pack<T, WIDTH>* q, State total, Finish f, Row r
) {
    C a[WIDTH], b[WIDTH];
    widen<1>(a, b, p, q, 1);
    absorb(total, a, b);
    const int near = distance(r, packs.first(at));
    Pack<T, WIDTH> out;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) out.v[v] = down<T>(value(f, r, a[v], b[v], near == v));
    packs.store(y, at, out);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    held(const T* A, const T* B, T* Y, i64 rows, i64 n ROW_PARAMETERS) {
    extern __shared__ uint4 memory[];
    Pack<T, WIDTH>* shelf = (Pack<T, WIDTH>*)memory + threadIdx.x;
    const i64 row = i64(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const bool inside = row < rows;
    const i64 from = min(row, rows - 1) * n;
    const T *x = A + from, *z = INPUTS == 2 ? B + from : B;
    const Packs packs(x, n);
    const int count = int(packs.count());
    const int left = inside ? count - lane : 0;  // pack k of this thread exists where k * LANES < left
#pragma unroll
    for (int k = 0; k < SHELVED; ++k)
        if ((HELD + k) * LANES < left) {
            shelve(shelf + k * INPUTS * THREADS, x, packs, lane + (HELD + k) * LANES, FILL_A);
            if (INPUTS == 2) shelve(shelf + (k * 2 + 1) * THREADS, z, packs, lane + (HELD + k) * LANES, FILL_B);
        }
    Pack<T, WIDTH> p[HELD], q[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {  // no load hangs on a condition: that would take packs apart
        p[k] = packs.load(x, min(lane + k * LANES, count - 1), FILL_A);
        if (INPUTS == 2) q[k] = packs.load(z, min(lane + k * LANES, count - 1), FILL_B);
    }
    Row r;
    if (inside) r = open_row(x, row, n, 1 ROW_ARGUMENTS);
    State s = empty(), total = empty();
#if RAW
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        C a[WIDTH], b[WIDTH];
        widen<1>(a, b, p + k, q + k, left - k * LANES);
        absorb(s, a, b);
    }
#else
    C a[HELD * WIDTH], b[HELD * WIDTH];
    widen<HELD>(a, b, p, q, left);
    absorb(s, a, b);
#endif
    const State own = s;
    if (SHELVED > 0) wait_for_copies();
#pragma unroll 2
    for (int k = 0; k < SHELVED; ++k)
        if ((HELD + k) * LANES < left) {
            C c[WIDTH], d[WIDTH];
            widen<1>(c, d, shelf + k * INPUTS * THREADS, shelf + (k * 2 + 1) * THREADS, 1);
            absorb(s, c, d);
        }
    if (REDUCES) total = gather<LANES>(s);
    if (!inside) return;
#if WRITES
    const Finish again = prepare(total, total);
    T* y = Y + row * n;
#if RAW
#pragma unroll
    for (int k = 0; k < HELD; ++k)
        if (k * LANES < left) finish(packs, y, lane + k * LANES, p + k, q + k, total, again, r);
#else
    const Finish f = prepare(total, own);
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        if (k * LANES >= left) break;
        const int near = distance(r, packs.first(lane + k * LANES));
        Pack<T, WIDTH> out;
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            out.v[v] = down<T>(value(f, r, a[k * WIDTH + v], b[k * WIDTH + v], near == v));
        packs.store(y, lane + k * LANES, out);
    }
#endif
#pragma unroll 2
    for (int k = 0; k < SHELVED; ++k)
        if ((HELD + k) * LANES < left)
            finish(packs, y, lane + (HELD + k) * LANES, shelf + k * INPUTS * THREADS, shelf + (k * 2 + 1) * THREADS,
                total, again, r);
#endif
    if (lane == 0) close_row(r, total, row ROW_ARGUMENTS);
}
#endif

#if defined(STREAM) || defined(CUT)
// The state of packs [begin, end) of a row; the first `kept` ones stay in `shelf`.
__device__ __forceinline__ State sweep(
    const T* A, const T* B, Packs packs, i64 begin, i64 end, Pack<T, WIDTH>* shelf, i64 kept
) {
    State s = empty();
    for (i64 k = begin + threadIdx.x; k < end; k += UNROLL * THREADS) {
        Pack<T, WIDTH> p[UNROLL], q[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k + u * THREADS;
            if (at < end) p[u] = packs.load(A, at, FILL_A);
            if (at < end && INPUTS == 2) q[u] = packs.load(B, at, FILL_B);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k + u * THREADS;
            if (at >= end) break;
            if (at < kept) shelf[at] = p[u];
            if (at < kept && INPUTS == 2) shelf[kept + at] = q[u];
            C a[WIDTH], b[WIDTH];
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                a[v] = up(p[u].v[v]);
                b[v] = INPUTS == 2 ? C(up(q[u].v[v])) : FILL_B;
            }
            absorb(s, a, b);
        }
    }
    return s;
}

// The results of packs [begin, end), last ones first: they are the likelier ones to be in a cache.
__device__ __forceinline__ void spread(
    const T* A, const T* B, T* Y, Packs packs, i64 begin, i64 end, const Pack<T, WIDTH>* shelf, i64 kept, State total,
    Row r
) {
    constexpr int AHEAD = REDUCES && UNROLL > 1 ? UNROLL / 2 : UNROLL;  // registers are scarce beside a state
    const Finish f = prepare(total, total);
    for (i64 k = end - 1 - threadIdx.x; k >= begin; k -= AHEAD * THREADS) {
        Pack<T, WIDTH> p[AHEAD], q[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const i64 at = k - u * THREADS;
            if (at < begin) break;
            p[u] = at < kept ? shelf[at] : packs.load(A, at, FILL_A);
            if (INPUTS == 2) q[u] = at < kept ? shelf[kept + at] : packs.load(B, at, FILL_B);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const i64 at = k - u * THREADS;
            if (at < begin) break;
            C a[WIDTH], b[WIDTH];
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                a[v] = up(p[u].v[v]);
                b[v] = INPUTS == 2 ? C(up(q[u].v[v])) : FILL_B;
            }
            State s = total;
            absorb(s, a, b);
            const int near = distance(r, packs.first(at));
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) p[u].v[v] = down<T>(value(f, r, a[v], b[v], near == v));
            packs.store(Y, at, p[u]);
        }
    }
}

#ifdef STREAM
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    streamed(const T* A, const T* B, T* Y, i64 n, i64 kept ROW_PARAMETERS) {
    extern __shared__ uint4 memory[];
    Pack<T, WIDTH>* shelf = (Pack<T, WIDTH>*)memory;
    const i64 row = blockIdx.x;
    const T *x = A + row * n, *z = INPUTS == 2 ? B + row * n : B;
    const Packs packs(x, n);
    const Row r = open_row(x, row, n, 1 ROW_ARGUMENTS);
    const State total = gather<THREADS>(sweep(x, z, packs, 0, packs.count(), shelf, kept));
#if WRITES
    spread(x, z, Y + row * n, packs, 0, packs.count(), shelf, kept, total, r);
#endif
    if (threadIdx.x == 0) close_row(r, total, row ROW_ARGUMENTS);
}

#else
struct Piece {
    State state;
    Row row;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) statistics(
    const T* A, const T* B, Piece* pieces, i64 n, i64 piece, int splits ROW_PARAMETERS
) {
    const i64 row = blockIdx.x / splits, begin = blockIdx.x % splits * piece;
    const T *x = A + row * n, *z = INPUTS == 2 ? B + row * n : B;
    const Packs packs(x, n);
    const State s = gather<THREADS>(sweep(x, z, packs, begin, min(packs.count(), begin + piece), nullptr, 0));
    if (threadIdx.x == 0) pieces[blockIdx.x] = {s, open_row(x, row, n, 1 ROW_ARGUMENTS)};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) apply(
    const T* A, const T* B, T* Y, const Piece* pieces, i64 n, i64 piece, int splits ROW_PARAMETERS
) {
    const i64 row = blockIdx.x / splits, begin = blockIdx.x % splits * piece;
    const T *x = A + row * n, *z = INPUTS == 2 ? B + row * n : B;
    const Packs packs(x, n);
#if REDUCES
    State s = empty();
    for (int k = threadIdx.x; k < splits; k += THREADS) s = merge(s, pieces[row * splits + k].state);
    const State total = gather<THREADS>(s);
    const Row r = pieces[row * splits].row;
#else
    const State total = empty();
    const Row r = open_row(x, row, n, 1 ROW_ARGUMENTS);
#endif
#if WRITES
    spread(x, z, Y + row * n, packs, begin, min(packs.count(), begin + piece), nullptr, 0, total, r);
#endif
    if (begin == 0 && threadIdx.x == 0) close_row(r, total, row ROW_ARGUMENTS);
}
#endif
#endif

#ifdef TX
extern "C" __global__ void __launch_bounds__(THREADS, 2) columns(
    const T* A, const T* B, T* Y, i64 outer, i64 n, i64 inner, int tiles ROW_PARAMETERS
) {
    const int y = threadIdx.x / TX % TY;
    const i64 o = i64(blockIdx.x / tiles) * (THREADS / (TX * TY)) + threadIdx.x / (TX * TY);
    const i64 column = (i64(blockIdx.x % tiles) * TX + threadIdx.x % TX) * WIDTH, start = o * n * inner + column;
    const bool inside = o < outer && column < inner;
    const i64 size = inside ? n : 0;
    Row r[WIDTH];
    State s[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
        s[v] = empty();
        if (inside) r[v] = open_row(A + start + v, o * inner + column + v, n, inner ROW_ARGUMENTS);
    }
#if REDUCES
    for (i64 i = y; i < size; i += UNROLL * TY) {
        Pack<T, WIDTH> p[UNROLL], q[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (i + u * TY >= size) break;
            p[u] = *(const Pack<T, WIDTH>*)(A + start + (i + u * TY) * inner);
            if (INPUTS == 2) q[u] = *(const Pack<T, WIDTH>*)(B + start + (i + u * TY) * inner);
        }
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            C a[UNROLL], b[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const bool there = i + u * TY < size;
                a[u] = there ? C(up(p[u].v[v])) : FILL_A;
                b[u] = there && INPUTS == 2 ? C(up(q[u].v[v])) : FILL_B;
            }
            absorb(s[v], a, b);
        }
    }
    __shared__ State others[THREADS];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
#pragma unroll
        for (int far = TY / 2; far > 0; far /= 2) {
            others[threadIdx.x] = s[v];
            __syncthreads();
            s[v] = merge(s[v], others[threadIdx.x ^ (far * TX)]);
            __syncthreads();
        }
    }
#endif
    if (!inside) return;
#if WRITES
    Finish f[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) f[v] = prepare(s[v], s[v]);
    for (i64 i = y; i < n; i += TY) {
        const i64 at = start + i * inner;
        Pack<T, WIDTH> p = *(const Pack<T, WIDTH>*)(A + at), q = p;
        if (INPUTS == 2) q = *(const Pack<T, WIDTH>*)(B + at);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            C a[1] = {C(up(p.v[v]))}, b[1] = {INPUTS == 2 ? C(up(q.v[v])) : FILL_B};
            State t = s[v];
            absorb(t, a, b);
            p.v[v] = down<T>(value(f[v], r[v], a[0], b[0], distance(r[v], i) == 0));
        }
        *(Pack<T, WIDTH>*)(Y + at) = p;
    }
#endif
    if (y == 0)
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) close_row(r[v], s[v], o * inner + column + v ROW_ARGUMENTS);
}
#endif
