// Whether an element of a list of tensors is infinite or NaN, and, with a second column, each divided by the scale.
// Columns: 0 x, 1 x / scale, both of type T; C is the type of the quotient, S the scale's. Every x is read once.
// `found` is false before; blocks that find something all write true.

extern "C" __global__ void __launch_bounds__(256) check_finite(TENSORS, const S* scale, bool* found_one)
{
    FIND
    const T* const x = (const T*)ADDRESS(0) + start;
    const i64 end = left < CHUNK ? left : CHUNK;
    bool bad = false;
    u64 places = (u64)x;
#if COLUMNS == 2
    T* const out = (T*)ADDRESS(1) + start;
    const C by = C(up(*scale));
    places |= (u64)out;
#endif
    const i64 packed = places % (PACK * sizeof(T)) ? 0 : end / PACK * PACK;
#pragma unroll 4
    for (i64 i = i64(threadIdx.x) * PACK; i < packed; i += 256 * PACK) {
        const Pack<T, PACK> p = *(const Pack<T, PACK>*)(x + i);
#if COLUMNS == 2
        Pack<T, PACK> quotients;
#endif
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
            const C value = up(p.v[j]);
            bad |= value - value != C(0);
#if COLUMNS == 2
            quotients.v[j] = down<T>(divide(value, by));
#endif
        }
#if COLUMNS == 2
        *(Pack<T, PACK>*)(out + i) = quotients;
#endif
    }
    for (i64 i = packed + threadIdx.x; i < end; i += 256) {
        const C value = up(x[i]);
        bad |= value - value != C(0);
#if COLUMNS == 2
        out[i] = down<T>(divide(value, by));
#endif
    }
    if (bad) *found_one = true;
}
