// One elementary operation on a list of tensors: out = RESULT of x and y, element by element in C.
// Columns: 0 x of type X, 1 out of type R, 2 (where it is an array or one element of each) y of type Y.
// ONE: y has one element. NUMBER: y is a number. Every operand is read once and out written once.

template <int V> __device__ __forceinline__ Answer pack(const X* xs, R* outs, const Y* ys, const C number, const bool condition, const Fault* fault)
{
    Pack<R, V> out;
    const Pack<X, V> px = *(const Pack<X, V>*)xs;
#ifdef ARRAY
    const Pack<Y, V> py = *(const Pack<Y, V>*)ys;
#endif
    const Answer answer = ASK;
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const C x = C(up(px.v[j]));
#ifdef ARRAY
        const C y = C(up(py.v[j]));
#else
        const C y = number;
#endif
        out.v[j] = down<R>(RESULT);
    }
    store((Pack<R, V>*)outs, out, answer);
    return answer;
}

extern "C" __global__ void __launch_bounds__(256, 1) foreach(TENSORS, double given, const bool* flag AND_FAULT)
{
    Answer answer = {};
    FIND
    const X* const x = (const X*)ADDRESS(0) + start;
    R* const out = (R*)ADDRESS(1) + start;
    C number = C(given);
    const Y* y = nullptr;
#ifdef ONE
    number = C(up(*(const Y*)ADDRESS(2)));
#endif
#ifdef ARRAY
    y = (const Y*)ADDRESS(2) + start;
#endif
#ifdef FLAG
    const bool condition = *flag;
#else
    const bool condition = false;
#endif
    const u64 places = (u64)x % (PACK * sizeof(X)) | (u64)out % (PACK * sizeof(R)) | (u64)y % (PACK * sizeof(Y));
    if (left >= CHUNK && places == 0) {
        for (int i = threadIdx.x * PACK; i < CHUNK; i += 256 * PACK) answer = pack<PACK>(x + i, out + i, y + i, number, condition, FAULT);
    } else {
        for (int i = threadIdx.x; i < CHUNK && i < left; i += 256) answer = pack<1>(x + i, out + i, y + i, number, condition, FAULT);
    }
    SETTLE
}
