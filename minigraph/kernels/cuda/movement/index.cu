// Elements picked by position.
//
// take       out[o, i, :] = x[o, index[i], :] for o in [0, outer), i in [0, n): rows of `inner` words. A
//            group of LANES threads copies up to 8 words per thread of one row, so long rows are
//            spread over groups, numbered in J. An index outside [low, size) is reported and its row zero; negative
//            ones count from the back; rows of index `padding` are zero. Reads and writes each row once.
// look_at    reports indices outside [low, size); reads each once.
// one_hot    writes the ones into an array of zeros. An index outside [0, depth) is reported.
// triangle   out[..., i, j] = x[..., i, j] where j - i <= diagonal (lower) or >= diagonal (upper), else 0;
//            V words per access, which is not read where it is all zeros.

#ifdef W
typedef W Word;  // a name that can be called: Word() is zero
#endif

#ifdef LANES
extern "C" __global__ void __launch_bounds__(256) take(
    const W* __restrict__ x, const INDEX* __restrict__ index, W* __restrict__ out,
    i64 outer, i64 n, i64 size, i64 inner, i64 pieces, i64 low, i64 padding, Fault* fault, i64 step)
{
    constexpr int WORDS = 8;
    look(fault);
    const J item = J(blockIdx.x) * (256 / LANES) + threadIdx.x / LANES;
    const J line = item / J(pieces), matrix = line / J(n);
    if (matrix >= J(outer)) return;
    const i64 row = line, o = matrix, i = line - matrix * J(n);
    const i64 first = i64(item - line * J(pieces)) * (LANES * WORDS) + threadIdx.x % LANES;
    i64 at = i64(index[i]);
    bool found = at >= low && at < size;
    if (!found && first == 0 && o == 0) report(fault, step, at, i);
    if (at < 0) at += size;
    found = found && at != padding;
    const W* from = x + (o * size + at) * inner + first;
    W* to = out + row * inner + first;
    W word[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        word[k] = Word();
        if (found && first + k * LANES < inner) word[k] = from[k * LANES];
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k)
        if (first + k * LANES < inner) to[k * LANES] = word[k];
}
#endif

#ifdef LOOK
extern "C" __global__ void __launch_bounds__(256) look_at(
    const INDEX* __restrict__ index, i64 n, i64 low, i64 size, Fault* fault, i64 step)
{
    look(fault);
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= n) return;
    const i64 at = i64(index[i]);
    if (at < low || at >= size) report(fault, step, at, i);
}
#endif

#ifdef T
extern "C" __global__ void __launch_bounds__(256) one_hot(
    const INDEX* __restrict__ x, T* out, i64 n, i64 depth, Fault* fault, i64 step)
{
    look(fault);
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= n) return;
    const i64 at = i64(x[i]);
    if (at < 0 || at >= depth) {
        report(fault, step, at, i);
        return;
    }
    out[i * depth + at] = down<T>(Compute<T>::type(1));
}
#endif

#ifdef LOWER
extern "C" __global__ void __launch_bounds__(256) triangle(
    const W* __restrict__ x, W* out, i64 packs, i64 rows, i64 columns, i64 diagonal)
{
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    if (at >= packs) return;
    const i64 row = I(at) / I(columns / V), j = (at - row * (columns / V)) * V;
    const i64 edge = row - I(row) / I(rows) * rows + diagonal;  // the column on the diagonal
    Pack<W, V> pack;
    if (LOWER ? j <= edge : j + V > edge) {
        pack = *(const Pack<W, V>*)(x + at * V);
#pragma unroll
        for (int k = 0; k < V; ++k)
            if (LOWER ? j + k > edge : j + k < edge) pack.v[k] = Word();
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) pack.v[k] = Word();
    }
    *(Pack<W, V>*)(out + at * V) = pack;
}
#endif
