// What each query sees, and the dropout factors of all probabilities, as arrays: of attention that is written out in dense
// operators. Behind attention/inputs.cuh. One thread for each element of the scores; a byte and a number are written.
// seen: [seen_heads, Sq, Sk]. factors: null, or [B, H, Sq, Sk].
extern "C" __global__ void attention_sight(INPUTS, bool* seen, C* factors, i64 seen_heads, i64 elements)
{
    READ_INPUTS
    const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    const i64 row = i / keys, head = row / queries;
    const int k = i % keys, q = row % queries;
    if (head < seen_heads) {
        const Interval x = sight.of_query(q);
        seen[i] = k >= x.lo && k < x.hi && sight.shows(int(head), q, k);
    }
    if (factors) factors[i] = kept(q, k, m, z, place_of(m, z, head / heads, head % heads));
}
