// Small arrays become parts of one, or parts of one become arrays, by one launch. Of part n
//   destination[r * q + j] = source[r * p + j] for all its rows r and the `row` words j of each.
// A block moves BLOCK words of a part, every thread BLOCK / 256 of them, all under way at once. W is the word.
struct Parts {
    u64 sources[WIDTH], destinations[WIDTH];
    i64 p[WIDTH], q[WIDTH];               // words from one row to the next
    i64 rows[WIDTH], row[WIDTH];          // how many, words of each
    i64 firsts[WIDTH], count;             // the number of a part's first block; parts
};

extern "C" __global__ void __launch_bounds__(256) parts(const __grid_constant__ Parts given)
{
    constexpr int EACH = BLOCK / 256;
    int n = 0;
    for (int end = int(given.count); end - n > 1;) {
        const int middle = (n + end) / 2;
        if (given.firsts[middle] <= blockIdx.x) n = middle;
        else end = middle;
    }
    const u32 row = u32(given.row[n]), words = u32(given.rows[n]) * row;
    const i64 p = given.p[n], q = given.q[n];
    const W* const source = (const W*)given.sources[n];
    W* const destination = (W*)given.destinations[n];
    const u32 down = 256 / row, along = 256 % row;  // from one word of a thread to its next one
    u32 at = (blockIdx.x - u32(given.firsts[n])) * BLOCK + threadIdx.x, r = at / row, j = at % row;
    W word[EACH];
    i64 to[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k, at += 256) {
        if (at < words) word[k] = source[r * p + j];
        to[k] = at < words ? r * q + j : -1;
        r += down, j += along;
        if (j >= row) j -= row, ++r;
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k)
        if (to[k] >= 0) destination[to[k]] = word[k];
}
