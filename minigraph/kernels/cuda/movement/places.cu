// Places of elements in flat arrays. A thread computes one; an index out of range is reported, and 0 written.
//   flat   out[i] = sum of index[i, k] * step[k] over the axes
//   along  out[i] = the place of element i in an array with other steps, its coordinate of one axis replaced by index[i]
//   last   out[index[i]] = the largest such i; out holds -1 at first

#define SIZES i64 n0, i64 n1, i64 n2, i64 n3, i64 n4, i64 n5, i64 n6, i64 n7
#define STEPS i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5, i64 s6, i64 s7

#define BEGIN                                                     \
    look(fault);                                                  \
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;            \
    if (i >= items) return;

// The index counted from the front; reported where the axis has no such place.
__device__ __forceinline__ i64 counted(i64 at, i64 size, i64 i, Fault* fault, i64 step) {
    const bool found = at >= -size && at < size;
    if (!found) report(fault, step, at, i);
    return !found ? 0 : at < 0 ? at + size : at;
}

#ifdef FLAT
extern "C" __global__ void __launch_bounds__(256) flat(
    const INDEX* __restrict__ index, i64* out, i64 items, SIZES, STEPS, Fault* fault, i64 step)
{
    BEGIN
    i64 total = 0;
#define AXIS(k)                                                                                 \
    if (k < AXES) total += s##k * counted(i64(index[i * AXES + (k < AXES ? k : 0)]), n##k, i, fault, step);
    AXIS(0) AXIS(1) AXIS(2) AXIS(3) AXIS(4) AXIS(5) AXIS(6) AXIS(7)
    out[i] = total;
}
#endif

#ifdef ALONG
extern "C" __global__ void __launch_bounds__(256) along(
    const INDEX* __restrict__ index, i64* out, i64 items, SIZES, STEPS, i64 size, i64 stride, i64, i64, i64, i64, i64,
    i64, Fault* fault, i64 step)
{
    BEGIN
    i64 total = stride * counted(i64(index[i]), size, i, fault, step), rest = i;
#define AXIS(k)                                \
    if (k < AXES) {                            \
        total += s##k * (rest % n##k);         \
        rest /= n##k;                          \
    }
    AXIS(7) AXIS(6) AXIS(5) AXIS(4) AXIS(3) AXIS(2) AXIS(1) AXIS(0)
    out[i] = total;
}
#endif

#ifdef LAST
extern "C" __global__ void __launch_bounds__(256) last(
    const INDEX* __restrict__ index, i64* out, i64 items, SIZES, Fault* fault, i64 step)
{
    BEGIN
    const i64 at = i64(index[i]);
    if (at < -n0 || at >= n0) report(fault, step, at, i);
    else atomicMax(out + (at < 0 ? at + n0 : at), i);
}
#endif
