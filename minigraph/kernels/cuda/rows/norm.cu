// Layer normalisation of rows X[rows, n]: m and v are a row's mean and variance, r = 1 / sqrt(v + epsilon).
//   forward   Y = (X - m) * r * Scale + Bias
//   backward  with h = (X - m) * r and d = dY * Scale: dX = (d - mean(d) - h * mean(d * h)) * r,
//             dScale = sum of dY * h over rows, dBias = sum of dY over rows
// M is the type of Mean, Variance and their gradients. Packs of WIDTH elements divide a row.
// held kernels:     LANES threads keep a row in registers, PACKS packs each; X and dY are read once. A block of
//                   `backward` takes every gridDim-th row and keeps its share of the column sums in registers, which
//                   `total` adds up. AHEAD: the next row comes into shared memory meanwhile, each thread's own packs
// streamed kernels: a block goes over a long row again for each statistic; column sums are a kernel of their own
#ifdef T
#ifdef PACKS
#define GROUP LANES
#else
#define GROUP THREADS
#endif

typedef Pack<T, WIDTH> Elements;

// Sums over the threads that share a row; `shared` holds a C per warp.
__device__ __forceinline__ C row_sum(C x, C* shared) {
#pragma unroll
    for (int lanes = (GROUP < 32 ? GROUP : 32) / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
#if GROUP > 32
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[threadIdx.x / GROUP * (GROUP / 32) + threadIdx.x % (GROUP / 32)];
#pragma unroll
    for (int lanes = GROUP / 64; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
#endif
    return x;
}

template <class V> __device__ __forceinline__ Pack<C, WIDTH> loaded(const V* x, i64 pack) {
    const Pack<V, WIDTH> q = ((const Pack<V, WIDTH>*)x)[pack];
    Pack<C, WIDTH> result;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) result.v[v] = C(up(q.v[v]));
    return result;
}

__device__ __forceinline__ Elements normalised(
    Pack<C, WIDTH> x, C mean, C inverse, const SCALE_TYPE* Scale, const BIAS_TYPE* Bias, i64 pack
) {
    Pack<C, WIDTH> scale, bias;
    if (HAS_SCALE) scale = loaded(Scale, pack);
    if (HAS_BIAS) bias = loaded(Bias, pack);
    Elements y;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
        C h = (x.v[v] - mean) * inverse;
        if (HAS_SCALE) h *= scale.v[v];
        if (HAS_BIAS) h += bias.v[v];
        y.v[v] = down<T>(h);
    }
    return y;
}

#ifdef FORWARD
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward(
    const T* __restrict__ X, const SCALE_TYPE* __restrict__ Scale, const BIAS_TYPE* __restrict__ Bias, T* Y, M* Mean, M* Variance,
    i64 rows, i64 n, double epsilon
) {
    __shared__ C sums[2][32];
    const i64 packs = n / WIDTH;
#ifdef PACKS
    const i64 row = i64(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const i64 mine = row < rows ? packs - lane : 0;  // pack k of this thread exists where k * LANES < mine
    Pack<C, WIDTH> x[PACKS];
    C sum = C(0), squares = C(0);
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
        if (k * LANES < mine) x[k] = loaded(X + row * n, lane + k * LANES);
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            if (k * LANES < mine) sum += x[k].v[v];
    const C mean = row_sum(sum, sums[0]) / C(n);
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            if (k * LANES < mine) squares += (x[k].v[v] - mean) * (x[k].v[v] - mean);
    const C variance = row_sum(squares, sums[1]) / C(n), inverse = C(1) / sqrt(variance + C(epsilon));
    if (row >= rows) return;
    if (WRITES)
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const i64 pack = lane + k * LANES;
            if (k * LANES < mine)
                ((Elements*)(Y + row * n))[pack] = normalised(x[k], mean, inverse, Scale, Bias, pack);
        }
#else
    extern __shared__ uint4 memory[];  // the row, as far as it fits
    Elements* shelf = (Elements*)memory;
    const i64 row = blockIdx.x, kept = min(packs, i64(SHELF));
    const int lane = threadIdx.x;
    const Elements* x = (const Elements*)(X + row * n);
    C sum = C(0), squares = C(0);
    for (i64 k = lane; k < packs; k += UNROLL * THREADS) {
        Elements q[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * THREADS < packs) q[u] = x[k + u * THREADS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (k + u * THREADS >= packs) break;
            if (k + u * THREADS < kept) shelf[k + u * THREADS] = q[u];
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) sum += C(up(q[u].v[v]));
        }
    }
    const C mean = row_sum(sum, sums[0]) / C(n);
    for (i64 k = lane; k < packs; k += THREADS) {
        const Elements q = k < kept ? shelf[k] : x[k];
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) squares += (C(up(q.v[v])) - mean) * (C(up(q.v[v])) - mean);
    }
    const C variance = row_sum(squares, sums[1]) / C(n), inverse = C(1) / sqrt(variance + C(epsilon));
    if (WRITES)
        for (i64 k = lane; k < packs; k += THREADS) {
            const Pack<C, WIDTH> q = k < kept ? loaded((const T*)shelf, k) : loaded(X + row * n, k);
            ((Elements*)(Y + row * n))[k] = normalised(q, mean, inverse, Scale, Bias, k);
        }
#endif
    if (lane == 0) {
        if (HAS_MEAN) Mean[row] = down<M>(mean);
        if (HAS_VARIANCE) Variance[row] = down<M>(variance);
    }
}
#endif

#ifdef BACKWARD
// What a row's statistics add to dX: constant + slope * (x - mean), from the gradients of Mean and Variance.
struct Extra {
    C constant, slope;
};
__device__ __forceinline__ Extra extra_of(const M* Mean_grad, const M* Variance_grad, i64 row, i64 n) {
    return {
        HAS_MEAN ? C(up(Mean_grad[row])) / C(n) : C(0), HAS_VARIANCE ? C(2) * C(up(Variance_grad[row])) / C(n) : C(0)
    };
}

#define PARAMETERS                                                                                                 \
    const T *__restrict__ X, const T *__restrict__ dY, const M *__restrict__ Mean, const M *__restrict__ Variance, \
        const SCALE_TYPE *__restrict__ Scale, const M *__restrict__ Mean_grad, const M *__restrict__ Variance_grad

#ifdef PACKS
// Both sums over the threads that share a row; `shared` holds two C per warp.
__device__ __forceinline__ void row_sums(C& x, C& y, C (*shared)[2]) {
#pragma unroll
    for (int lanes = (GROUP < 32 ? GROUP : 32) / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(~0u, x, lanes);
        y += __shfl_xor_sync(~0u, y, lanes);
    }
#if GROUP > 32
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][0] = x, shared[threadIdx.x / 32][1] = y;
    __syncthreads();
    const C* of_warp = shared[threadIdx.x / GROUP * (GROUP / 32) + threadIdx.x % (GROUP / 32)];
    x = of_warp[0], y = of_warp[1];
#pragma unroll
    for (int lanes = GROUP / 64; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(~0u, x, lanes);
        y += __shfl_xor_sync(~0u, y, lanes);
    }
#endif
}

struct Taken {  // a thread's share of a row; packs and rows that do not exist are others read again
    C mean, variance;
    Elements x[PACKS], d[PACKS];
    __device__ __forceinline__ void load(
        const T* X, const T* dY, const M* Mean, const M* Variance, i64 row, i64 rows, i64 n, int lane, int packs
    ) {
        row = min(row, rows - 1);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            x[k] = ((const Elements*)(X + row * n))[min(lane + k * LANES, packs - 1)];
            d[k] = ((const Elements*)(dY + row * n))[min(lane + k * LANES, packs - 1)];
        }
        mean = C(up(Mean[row]));
        variance = C(up(Variance[row]));
    }
};

// Likewise on its way into shared memory, as a group.
__device__ __forceinline__ void fetch(
    Elements* to, const T* X, const T* dY, i64 row, i64 n, int lane, int packs
) {
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int at = min(lane + k * LANES, packs - 1);
        copy_ahead(to + 2 * k * THREADS, (const Elements*)(X + row * n) + at);
        copy_ahead(to + (2 * k + 1) * THREADS, (const Elements*)(dY + row * n) + at);
    }
    close_group();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    backward(PARAMETERS, T* dX, C* dScale, C* dBias, i64 rows, i64 n, double epsilon) {
    __shared__ C sums[2][32][2];
    const i64 step = i64(gridDim.x) * (THREADS / LANES);
    const int packs = int(n / WIDTH), lane = threadIdx.x % LANES;
    const C least = C(epsilon), per = C(1) / C(n);
    Pack<C, WIDTH> scale_sum[PACKS], bias_sum[PACKS];
    Pack<SCALE_TYPE, WIDTH> scale[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) scale_sum[k].v[v] = bias_sum[k].v[v] = C(0);
        if (HAS_SCALE) scale[k] = ((const Pack<SCALE_TYPE, WIDTH>*)Scale)[min(lane + k * LANES, packs - 1)];
    }
    const i64 begin = i64(blockIdx.x) * (THREADS / LANES);
    extern __shared__ uint4 memory[];  // AHEAD: two rows, in turns
    Elements* taken = (Elements*)memory + threadIdx.x;
    C next_mean = C(0), next_variance = C(0);
    if (AHEAD) {
        const i64 row = min(begin + threadIdx.x / LANES, rows - 1);
        fetch(taken, X, dY, row, n, lane, packs);
        next_mean = C(up(Mean[row])), next_variance = C(up(Variance[row]));
    }
    int turn = 0;
    for (i64 first = begin; first < rows; first += step, turn ^= 1) {
        const i64 row = first + threadIdx.x / LANES;
        Taken own;
        if (AHEAD) {
            const i64 after = min(row + step, rows - 1);
            fetch(taken + (turn ^ 1) * 2 * PACKS * THREADS, X, dY, after, n, lane, packs);
            own.mean = next_mean, own.variance = next_variance;
            next_mean = C(up(Mean[after])), next_variance = C(up(Variance[after]));
            wait_for_earlier_groups();
#pragma unroll
            for (int k = 0; k < PACKS; ++k) {
                own.x[k] = taken[(turn * PACKS + k) * 2 * THREADS];
                own.d[k] = taken[((turn * PACKS + k) * 2 + 1) * THREADS];
            }
        } else
            own.load(X, dY, Mean, Variance, row, rows, n, lane, packs);
        // Of 16 bits, one product and one sum do: a mean far above the deviation costs more in X itself.
        const C inverse = rsqrt(own.variance + least), shift = -own.mean * inverse;
        C sum = C(0), product = C(0);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (row >= rows || lane + k * LANES >= packs) continue;
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                const C d = up(own.d[k].v[v]), x = up(own.x[k].v[v]);
                const C h = sizeof(T) == 2 ? x * inverse + shift : (x - own.mean) * inverse;
                scale_sum[k].v[v] += d * h;
                bias_sum[k].v[v] += d;
                const C scaled = HAS_SCALE ? d * C(up(scale[k].v[v])) : d;
                sum += scaled;
                product += scaled * h;
            }
        }
        if (!WRITES) continue;
        row_sums(sum, product, sums[turn]);
        if (row >= rows) continue;
        // dX = (d - sum / n - h * product / n) * r and what comes from the statistics: linear in d and in x - mean
        C constant = -sum * per * inverse, slope = -product * per * inverse * inverse;
        if (HAS_MEAN) constant += C(up(Mean_grad[row])) * per;
        if (HAS_VARIANCE) slope += C(2) * C(up(Variance_grad[row])) * per;
        if (sizeof(T) == 2) constant -= own.mean * slope;
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (lane + k * LANES >= packs) continue;
            Elements result;
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                const C d = up(own.d[k].v[v]), scaled = HAS_SCALE ? d * C(up(scale[k].v[v])) : d;
                const C x = sizeof(T) == 2 ? C(up(own.x[k].v[v])) : C(up(own.x[k].v[v])) - own.mean;
                result.v[v] = down<T>(scaled * inverse + (x * slope + constant));
            }
            ((Elements*)(dX + row * n))[lane + k * LANES] = result;
        }
    }
    if (!COLUMNS) return;
#if LANES < THREADS
    // The groups of a block one after the other, in a fixed order.
    __shared__ Pack<C, WIDTH> shelf[2][LANES * PACKS];
    for (int group = 0; group < THREADS / LANES; ++group) {
        if (threadIdx.x / LANES == group)
#pragma unroll
            for (int k = 0; k < PACKS; ++k)
#pragma unroll
                for (int v = 0; v < WIDTH; ++v) {
                    C &s = shelf[0][lane + k * LANES].v[v], &b = shelf[1][lane + k * LANES].v[v];
                    s = scale_sum[k].v[v] += group == 0 ? C(0) : s;
                    b = bias_sum[k].v[v] += group == 0 ? C(0) : b;
                }
        __syncthreads();
    }
    if (threadIdx.x / LANES < THREADS / LANES - 1) return;
#endif
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
        if (lane + k * LANES < packs) {
            ((Pack<C, WIDTH>*)(dScale + blockIdx.x * n))[lane + k * LANES] = scale_sum[k];
            ((Pack<C, WIDTH>*)(dBias + blockIdx.x * n))[lane + k * LANES] = bias_sum[k];
        }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    backward(PARAMETERS, T* dX, i64 n, double epsilon) {
    __shared__ C sums[2][32];
    const i64 packs = n / WIDTH, row = blockIdx.x;
    const C mean = up(Mean[row]), inverse = C(1) / sqrt(C(up(Variance[row])) + C(epsilon));
    C sum = C(0), product = C(0);
#pragma unroll 2
    for (i64 k = threadIdx.x; k < packs; k += THREADS) {
        const Pack<C, WIDTH> x = loaded(X + row * n, k), d = loaded(dY + row * n, k);
        Pack<C, WIDTH> scale;
        if (HAS_SCALE) scale = loaded(Scale, k);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            const C scaled = HAS_SCALE ? d.v[v] * scale.v[v] : d.v[v];
            sum += scaled;
            product += scaled * (x.v[v] - mean) * inverse;
        }
    }
    sum = row_sum(sum, sums[0]) / C(n);
    product = row_sum(product, sums[1]) / C(n);
    const Extra extra = extra_of(Mean_grad, Variance_grad, row, n);
    for (i64 k = packs - 1 - threadIdx.x; k >= 0; k -= THREADS) {
        const Pack<C, WIDTH> x = loaded(X + row * n, k), d = loaded(dY + row * n, k);
        Pack<C, WIDTH> scale;
        if (HAS_SCALE) scale = loaded(Scale, k);
        Elements result;
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            const C centred = x.v[v] - mean, scaled = HAS_SCALE ? d.v[v] * scale.v[v] : d.v[v];
            const C dx = (scaled - sum - centred * inverse * product) * inverse;
            result.v[v] = down<T>(dx + extra.constant + extra.slope * centred);
        }
        ((Elements*)(dX + row * n))[k] = result;
    }
}

// Column sums over `piece` rows each: dScale and dBias are [gridDim.y, n].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    column_sums(PARAMETERS, C* dScale, C* dBias, i64 rows, i64 n, i64 piece, double epsilon) {
    const i64 pack = i64(blockIdx.x) * THREADS + threadIdx.x, split = blockIdx.y;
    if (pack >= n / WIDTH) return;
    Pack<C, WIDTH> scale_sum, bias_sum;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) scale_sum.v[v] = bias_sum.v[v] = C(0);
#pragma unroll 2
    for (i64 row = split * piece; row < min(rows, (split + 1) * piece); ++row) {
        const Pack<C, WIDTH> x = loaded(X + row * n, pack), d = loaded(dY + row * n, pack);
        const C mean = up(Mean[row]), inverse = C(1) / sqrt(C(up(Variance[row])) + C(epsilon));
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            scale_sum.v[v] += d.v[v] * (x.v[v] - mean) * inverse;
            bias_sum.v[v] += d.v[v];
        }
    }
    ((Pack<C, WIDTH>*)(dScale + split * n))[pack] = scale_sum;
    ((Pack<C, WIDTH>*)(dBias + split * n))[pack] = bias_sum;
}
#endif
#endif
#endif

#ifdef TOTAL
// dScale and dBias of n columns from their sums over `parts` parts of the rows, [parts, n] each, in a fixed order.
extern "C" __global__ void __launch_bounds__(1024)
    total(const C* __restrict__ scales, const C* __restrict__ biases, SCALE_TYPE* dScale, BIAS_TYPE* dBias, i64 parts, i64 n) {
    __shared__ C others[32][33];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    const i64 column = i64(blockIdx.x) * 32 + x;
    const C* from = blockIdx.y ? biases : scales;
    C sum = C(0);
    if (column < n)
#pragma unroll 8
        for (i64 p = y; p < parts; p += 32) sum += from[p * n + column];
    others[y][x] = sum;
    __syncthreads();
    sum = warp_sum(others[x][y]);
    const i64 goal = i64(blockIdx.x) * 32 + y;
    if (x > 0 || goal >= n) return;
    if (blockIdx.y) {
        if (HAS_BIAS_GRAD) dBias[goal] = down<BIAS_TYPE>(sum);
    } else if (HAS_SCALE_GRAD)
        dScale[goal] = down<SCALE_TYPE>(sum);
}
#endif
