// Small arrays become parts of one, or parts of one become arrays, by one launch: blockIdx.y is the number of the part.
// destination[to + r * q + j] = source[start + r * p + j] for all rows r and the `words` j of a row of its part.
//
// s, d   sources and destinations;   a, t   their first words;   w   words of a row
// p, q   words from one row to the next in the source and in the destination
// Every thread moves 4 words. W is the word.

extern "C" __global__ void __launch_bounds__(256) parts(
    const W* __restrict__ s0, const W* __restrict__ s1, const W* __restrict__ s2, const W* __restrict__ s3,
    const W* __restrict__ s4, const W* __restrict__ s5, const W* __restrict__ s6, const W* __restrict__ s7,
    W* d0, W* d1, W* d2, W* d3, W* d4, W* d5, W* d6, W* d7,
    i64 a0, i64 a1, i64 a2, i64 a3, i64 a4, i64 a5, i64 a6, i64 a7,
    i64 t0, i64 t1, i64 t2, i64 t3, i64 t4, i64 t5, i64 t6, i64 t7,
    i64 w0, i64 w1, i64 w2, i64 w3, i64 w4, i64 w5, i64 w6, i64 w7,
    i64 p0, i64 p1, i64 p2, i64 p3, i64 p4, i64 p5, i64 p6, i64 p7,
    i64 q0, i64 q1, i64 q2, i64 q3, i64 q4, i64 q5, i64 q6, i64 q7, i64 rows)
{
#define OF_PART(x) (n < 4 ? n < 2 ? n ? x##1 : x##0 : n < 3 ? x##2 : x##3 : n < 6 ? n < 5 ? x##4 : x##5 : n < 7 ? x##6 : x##7)
    const int n = blockIdx.y;
    const u32 row_words = OF_PART(w), words = u32(rows) * row_words;
    const i64 p = OF_PART(p), q = OF_PART(q);
    const W* source = OF_PART(s) + OF_PART(a);
    W* destination = OF_PART(d) + OF_PART(t);
    const u32 first = blockIdx.x * 1024 + threadIdx.x;
    W word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 at = first + k * 256;
        if (at < words) word[k] = source[at / row_words * p + at % row_words];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 at = first + k * 256;
        if (at < words) destination[at / row_words * q + at % row_words] = word[k];
    }
}
