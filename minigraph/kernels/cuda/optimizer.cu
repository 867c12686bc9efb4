// Parameter updates in place: one pass over parameter, gradient and states, V elements per access.
// T is the parameter's type, C that of its states and of the arithmetic, L the learning rate's.
// The outputs may be the inputs. Bytes moved: sgd 2 reads and 1 write of the parameter's size,
// momentum 3 and 2, adam 4 and 3. Hyperparameters are doubles, rounded to C once.
// squared_norm: sum of x^2 in double over at most 1024 blocks, then over their results, in fixed order.

#define PACKS                                                                       \
    for (i64 at = (i64(blockIdx.x) * 256 + threadIdx.x) * V; at < size; at += i64(gridDim.x) * 256 * V)

#ifdef L
extern "C" __global__ void __launch_bounds__(256) sgd(
    const T* param, const T* grad, const L* rate, T* param_out, i64 size)
{
    const C lr = C(up(*rate));
    PACKS {
        Pack<T, V> p = *(const Pack<T, V>*)(param + at);
        const Pack<T, V> g = *(const Pack<T, V>*)(grad + at);
#pragma unroll
        for (int j = 0; j < V; ++j) p.v[j] = down<T>(up(p.v[j]) - up(g.v[j]) * lr);
        *(Pack<T, V>*)(param_out + at) = p;
    }
}

extern "C" __global__ void __launch_bounds__(256) momentum(
    const T* param, const T* grad, const C* velocity, const L* rate, T* param_out, C* velocity_out,
    i64 size, double mu, i64 use_nesterov)
{
    const C lr = C(up(*rate)), decay = C(mu);
    PACKS {
        Pack<T, V> p = *(const Pack<T, V>*)(param + at);
        const Pack<T, V> g = *(const Pack<T, V>*)(grad + at);
        Pack<C, V> v = *(const Pack<C, V>*)(velocity + at);
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const C slope = up(g.v[j]);
            v.v[j] = v.v[j] * decay + slope;
            p.v[j] = down<T>(up(p.v[j]) - (use_nesterov ? slope + v.v[j] * decay : v.v[j]) * lr);
        }
        *(Pack<T, V>*)(param_out + at) = p;
        *(Pack<C, V>*)(velocity_out + at) = v;
    }
}

// Adam and AdamW: decay is 0 for Adam. The bias corrections are folded into step and epsilon.
extern "C" __global__ void __launch_bounds__(256) adam(
    const T* param, const T* grad, const L* rate, const C* moment1, const C* moment2,
    const double* power1, const double* power2, T* param_out, C* moment1_out, C* moment2_out,
    i64 size, double beta1, double beta2, double epsilon, double decay, double lr_ratio)
{
    __shared__ C step, eps, shrink;
    if (threadIdx.x == 0) {  // in double, once per block
        const double lr = double(up(*rate)) * lr_ratio, correction = sqrt(1 - *power2);
        step = C(lr * correction / (1 - *power1));
        eps = C(epsilon * correction);
        shrink = C(1 - lr * decay);
    }
    __syncthreads();
    const C b1 = C(beta1), b2 = C(beta2), a1 = C(1 - beta1), a2 = C(1 - beta2);
#pragma unroll 1
    PACKS {
        Pack<T, V> p = *(const Pack<T, V>*)(param + at);
        const Pack<T, V> g = *(const Pack<T, V>*)(grad + at);
        Pack<C, V> m = *(const Pack<C, V>*)(moment1 + at), v = *(const Pack<C, V>*)(moment2 + at);
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const C slope = up(g.v[j]);
            m.v[j] = m.v[j] * b1 + slope * a1;
            v.v[j] = v.v[j] * b2 + slope * slope * a2;
            p.v[j] = down<T>(up(p.v[j]) * shrink - m.v[j] / (sqrt(v.v[j]) + eps) * step);
        }
        *(Pack<T, V>*)(param_out + at) = p;
        *(Pack<C, V>*)(moment1_out + at) = m;
        *(Pack<C, V>*)(moment2_out + at) = v;
    }
}
#endif

// A launch of its own after adam: every block has read the powers by then.
extern "C" __global__ void powers(
    const double* power1, const double* power2, double* power1_out, double* power2_out, double beta1, double beta2)
{
    *power1_out = *power1 * beta1;
    *power2_out = *power2 * beta2;
}

#ifdef NORM
extern "C" __global__ void __launch_bounds__(256) squared_norm(const T* x, double* sums, i64 size)
{
    __shared__ double shared[8];
    double sum = 0;
#pragma unroll 4
    PACKS {
        const Pack<T, V> p = *(const Pack<T, V>*)(x + at);
        C squares = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) squares += up(p.v[j]) * up(p.v[j]);
        sum += squares;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) norm_total(const double* sums, C* out, i64 blocks)
{
    __shared__ double shared[8];
    double sum = 0;
    for (i64 b = threadIdx.x; b < blocks; b += 256) sum += sums[b];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *out = C(sum);
}
#endif
