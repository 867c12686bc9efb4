// Blocks of matrices on the tensor cores of sm_80 and later (mma.sync), for all types by the same names.
//
//   Left   16 rows x 16 of an operand; Right: 16 x 32 of the other; Sums: 16 x 32 results
//   16-bit floats   one m16n8k16 for each 8 columns
//   float           m16n8k8 of TF32 numbers. TERMS 3: x = big + small, both TF32; big big + big small + small big
//                   is the product to float's own precision. TERMS 1: big big.
//
// Lane l is (g, t) = (l / 4, l % 4). It holds of results rows g and g + 8 (element e: row g + 8 (e / 2)) and
// columns 8 i + 2 t + e % 2 of the 8-column tiles i: scores. What is summed over is summed in any order, and
// columns of results that go to memory may stand in any order, so float tiles are read 16 bytes at a time:
// column 8 t + 4 (e % 2) + i of 32.
//
// A tile in shared memory is rows of WIDTH elements, WIDTH a multiple of 32, whose pieces of 16 bytes stand in
// an order that depends on the row, so that no reading meets two rows in one bank.
// T type in memory, PTX_T its name in PTX, THREADS of a block, ALIGNED: rows in memory are pieces of 16 bytes.

constexpr int PIECE = 16 / sizeof(T);
constexpr bool SINGLE = sizeof(T) == 4, WIDE = HEAD + HEAD_V > 128;
// Pieces of 16 whose products tensor cores add up before float does. Forward and backward have the same number: what is
// subtracted must be cut off as what it is subtracted from.
constexpr int AT_ONCE = SINGLE && HEAD + HEAD_V > 64 ? 1 : 2;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
typedef unsigned char Byte;

#ifdef __CUDACC__  // tests without a GPU bring their own
__device__ __forceinline__ void mma_k16(float (&c)[4], const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX_T "." PTX_T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 pack_pair(float low, float high) {
    u32 y;
    asm("cvt.rn." PTX_T "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
// Loads below this stay below it: where heads are wide, hoisted ones would need more registers than there are.
__device__ __forceinline__ void no_load_moves() {
    if (WIDE) __syncwarp();
}
// Four 8 x 8 matrices of 16-bit elements: lanes 8 i to 8 i + 7 tell where the rows of matrix i lie, lane (g, t) gets
// row g, columns 2 t and 2 t + 1; transposed, rows 2 t and 2 t + 1 of column g.
__device__ __forceinline__ void load_matrices(u32* x, const Byte* tile, int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_place(tile) + row) : "memory");
}
__device__ __forceinline__ void load_transposed(u32* x, const Byte* tile, int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_place(tile) + row) : "memory");
}
// Likewise what is known of a query.
__device__ __forceinline__ void copy_or_clear(Byte* tile, int place, const Numbers* from, bool copied) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
                 ::"r"(shared_place(tile) + place), "l"(from), "r"(copied ? int(sizeof(Numbers)) : 0),
                 "n"(sizeof(Numbers)) : "memory");
}
#endif

// Where a piece of 16 bytes of a row begins. `piece` is what the lane knows of it, and what is added to it, `more`,
// shares no bit with it; so is `row` what the lane knows, and the rest a multiple of 8.
template <int WIDTH> __device__ __forceinline__ int piece_at(int row, int piece, int more = 0, int more_rows = 0) {
    constexpr int PITCH = WIDTH * sizeof(T), PERIOD = PITCH % 128 == 0 ? 8 : 4;  // pieces among which the order changes
    int moved;
    if (SINGLE) moved = ((row ^ row >> 1) & 1) << 2 | (row >> 2 & 1) << 1;
    else moved = PERIOD == 8 ? row & 7 : row >> 1 & 3;
    const int place = row * PITCH + (piece ^ moved) * 16;
    return (place ^ more % PERIOD * 16) + more / PERIOD * PERIOD * 16 + more_rows * PITCH;
}

// ROWS rows of `from` into a tile; zeros where a row is not in [0, valid), and beyond `width` columns. Threads stand so
// that what differs from one of their pieces to the next is known when this is compiled.
template <int ROWS, int WIDTH>
__device__ __forceinline__ void load_tile(Byte* tile, const T* from, int step, int valid, int width) {
    constexpr int ACROSS = WIDTH / PIECE, SPAN = ACROSS % 8 ? 4 : 8, DOWN = THREADS / SPAN;
    const int row = threadIdx.x / SPAN, piece = threadIdx.x % SPAN;
    const int to = piece_at<WIDTH>(row, piece);
    from += row * step + piece * PIECE;
#pragma unroll
    for (int i = 0; i < (ROWS + DOWN - 1) / DOWN; ++i) {
        if (ROWS % DOWN != 0 && row >= ROWS - i * DOWN) break;
#pragma unroll
        for (int j = 0; j < ACROSS; j += SPAN) {
            const bool inside = row < valid - i * DOWN && piece * PIECE < width - j * PIECE;
            const int place = to + i * DOWN * WIDTH * int(sizeof(T)) + j * 16;
#if ALIGNED
            copy_or_clear(tile, place, inside ? from + j * PIECE : from, inside);
#else
            for (int x = 0; x < PIECE; ++x)
                ((T*)(tile + place))[x] = inside && (piece + j) * PIECE + x < width ? from[j * PIECE + x] : T();
#endif
        }
        from += DOWN * step;
    }
}

#if TERMS
// The nearest TF32 number. NaN may become 0 here; it is what is left of itself then.
__device__ __forceinline__ u32 round_to_tf32(float x) { return (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }
#endif

// 16 x 32 results.
struct Sums {
    float v[4][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) v[i][e] = 0;
    }
    // To go on from x, from factor[row] * x where it is `scaled`; a float x waits for end(), since tensor cores cut off
    // what they add.
    __device__ __forceinline__ void begin(const float* x, const float (&factor)[2], bool scaled) {
        clear();
        if (SINGLE) return;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) v[i][e] = scaled ? x[4 * i + e] * factor[e / 2] : x[4 * i + e];
    }
    __device__ __forceinline__ void end(float* x, const float (&factor)[2], bool scaled) const {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& y = x[4 * i + e];
                y = !SINGLE ? v[i][e] : scaled ? fmaf(y, factor[e / 2], v[i][e]) : y + v[i][e];
            }
    }
};

#if TERMS  // float
struct Left {
    u32 big[8], small[8];
    __device__ __forceinline__ void set(int i, float x) {
        big[i] = round_to_tf32(x);
        small[i] = __float_as_uint(x - __uint_as_float(big[i]));
    }
    // Rows row to row + 15, columns 16 k to 16 k + 15 of a tile.
    template <int WIDTH> __device__ __forceinline__ void load(const Byte* tile, int row, int k) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int place = piece_at<WIDTH>(lane / 4, lane % 4, 4 * k, row + 8 * half);
            const Pack<float, 4> x = *(const Pack<float, 4>*)(tile + place);
#pragma unroll
            for (int i = 0; i < 4; ++i) set(2 * i + half, x.v[i]);
        }
    }
    // Results of 16 columns.
    __device__ __forceinline__ void take(const float (&x)[4], const float (&y)[4]) {
        const int order[4] = {0, 2, 1, 3};
#pragma unroll
        for (int i = 0; i < 4; ++i) set(i, x[order[i]]), set(4 + i, y[order[i]]);
    }
};
struct Right {
    float v[2][4][2];
    // Transposed: rows row to row + 31 are the columns; columns 16 k to 16 k + 15 of the tile are summed over.
    template <int WIDTH> __device__ __forceinline__ void load_rows(const Byte* tile, int row, int k) {
        const int lane = threadIdx.x % 32;
        no_load_moves();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Pack<float, 4> x =
                *(const Pack<float, 4>*)(tile + piece_at<WIDTH>(lane / 4, lane % 4, 4 * k, row + 8 * i));
            v[0][i][0] = x.v[0], v[0][i][1] = x.v[1], v[1][i][0] = x.v[2], v[1][i][1] = x.v[3];
        }
    }
    // Rows 16 k to 16 k + 15 are summed over; columns 32 c to 32 c + 31.
    template <int WIDTH> __device__ __forceinline__ void load_columns(const Byte* tile, int k, int c) {
        const int lane = threadIdx.x % 32;
        no_load_moves();
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = 2 * (lane % 4) + half;
                const Pack<float, 4> x =
                    *(const Pack<float, 4>*)(tile + piece_at<WIDTH>(row, lane / 4, 8 * c, 16 * k + 8 * s));
#pragma unroll
                for (int i = 0; i < 4; ++i) v[s][i][half] = x.v[i];
            }
    }
};
// The products of small numbers with big ones, those of big ones, or both.
template <bool SMALL, bool BIG, int N>
__device__ __forceinline__ void multiply(Sums (&to)[N], const Left (&a)[N], const Right& b) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = b.v[s][i][0], y = b.v[s][i][1];
            const u32 big_x = round_to_tf32(x), big_y = round_to_tf32(y);
            const u32 small_x = __float_as_uint(x - __uint_as_float(big_x));
            const u32 small_y = __float_as_uint(y - __uint_as_float(big_y));
#pragma unroll
            for (int m = 0; m < N; ++m) {
                if (SMALL) {
                    mma_k8(to[m].v[i], a[m].big + 4 * s, small_x, small_y);
                    mma_k8(to[m].v[i], a[m].small + 4 * s, big_x, big_y);
                }
                if (BIG) mma_k8(to[m].v[i], a[m].big + 4 * s, big_x, big_y);
            }
        }
}
#else  // 16-bit floats
struct Left {
    u32 v[4];
    template <int WIDTH> __device__ __forceinline__ void load(const Byte* tile, int row, int k) {
        const int lane = threadIdx.x % 32;
        no_load_moves();
        load_matrices(v, tile, piece_at<WIDTH>(lane % 16, lane / 16, 2 * k, row));
    }
    __device__ __forceinline__ void take(const float (&x)[4], const float (&y)[4]) {
        v[0] = pack_pair(x[0], x[1]), v[1] = pack_pair(x[2], x[3]);
        v[2] = pack_pair(y[0], y[1]), v[3] = pack_pair(y[2], y[3]);
    }
};
struct Right {
    u32 v[2][4];
    template <int WIDTH> __device__ __forceinline__ void load_rows(const Byte* tile, int row, int k) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            load_matrices(v[i], tile, piece_at<WIDTH>(lane / 16 * 8 + lane % 8, lane / 8 % 2, 2 * k, row + 16 * i));
    }
    template <int WIDTH> __device__ __forceinline__ void load_columns(const Byte* tile, int k, int c) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            load_transposed(v[i], tile, piece_at<WIDTH>(lane % 16, lane / 16, 4 * c + 2 * i, 16 * k));
    }
};
template <bool, bool, int N>
__device__ __forceinline__ void multiply(Sums (&to)[N], const Left (&a)[N], const Right& b) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int m = 0; m < N; ++m) mma_k16(to[m].v[i], a[m].v, b.v[i / 2][i % 2 * 2], b.v[i / 2][i % 2 * 2 + 1]);
}
#endif
// Products over `pieces` of 16, at most AT_ONCE; load(k, left, right) brings each. Those of small numbers come first: what
// tensor cores cut off of a sum is as small as the sum. In single pieces they come first in each half of 8.
template <int N, class Load>
__device__ __forceinline__ void multiply(Sums (&to)[N], int pieces, const Load& load) {
    if (TERMS == 3 && AT_ONCE == 2 && pieces == 2) {
        Left a[2][N];
        Right b[2];
        load(0, a[0], b[0]);
        load(1, a[1], b[1]);
        multiply<true, false>(to, a[0], b[0]);
        multiply<true, false>(to, a[1], b[1]);
        multiply<false, true>(to, a[0], b[0]);
        multiply<false, true>(to, a[1], b[1]);
        return;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
        if (k == pieces) break;
        Left a[N];
        Right b;
        load(k, a, b);
        multiply<TERMS == 3, true>(to, a, b);
    }
}

// Results of 32 columns, those of one row [tile i][e % 2], to `width` columns of a row in memory that begins at `to`.
template <class U> __device__ __forceinline__ void store_results(U* to, const float (&x)[4][2], int width) {
    const int t = threadIdx.x % 4;
    if (SINGLE) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = 8 * t + 4 * half;
#if ALIGNED
            const Pack<U, 4> y = {{down<U>(x[0][half]), down<U>(x[1][half]), down<U>(x[2][half]), down<U>(x[3][half])}};
            if (column < width) *(Pack<U, 4>*)(to + column) = y;
#else
            for (int i = 0; i < 4; ++i)
                if (column + i < width) to[column + i] = down<U>(x[i][half]);
#endif
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = 8 * i + 2 * t;
#if ALIGNED
            const Pack<U, 2> y = {{down<U>(x[i][0]), down<U>(x[i][1])}};
            if (column < width) *(Pack<U, 2>*)(to + column) = y;
#else
            if (column < width) to[column] = down<U>(x[i][0]);
            if (column + 1 < width) to[column + 1] = down<U>(x[i][1]);
#endif
        }
    }
}
