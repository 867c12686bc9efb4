// Values made from nothing: every element is written once.
//
// arange  out[i] = start + step * i in A (integers, or doubles rounded after each operation as on a CPU),
//         then converted to T

extern "C" __global__ void __launch_bounds__(256) arange(T* out, i64 size, A start, A step)
{
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i < size) out[i] = down<T>(Compute<T>::type(ADD(start, MUL(step, A(i)))));
}
