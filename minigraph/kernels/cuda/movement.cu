// destination[to + sum_a i_a * destination_a] = source[start + sum_a i_a * source_a] over all indices i.
//
// copy   every thread moves 4 words; the last axis varies fastest. Words are as wide as the innermost
//        run of elements and the addresses allow, up to 16 bytes. At most 8 axes: extents e, steps s
//        in the source and d in the destination, in words.
// tiles  the source's fastest axis is not the destination's: squares of TILE x TILE words go through
//        shared memory, read along one axis and written along the other, V words (16 bytes) at once.
//        A pitch of an odd number of banks keeps columns apart. At most 6 more axes.
//
// Both read and write every word once. W is the word, I the type that holds every offset of `copy`,
// U its unsigned twin.

extern "C" __global__ void __launch_bounds__(256) copy(
    const W* __restrict__ source, W* __restrict__ destination, I words, I start, I to,
    I e0, I e1, I e2, I e3, I e4, I e5, I e6, I e7, I s0, I s1, I s2, I s3, I s4, I s5, I s6, I s7,
    I d0, I d1, I d2, I d3, I d4, I d5, I d6, I d7)
{
    const I extent[8] = {e0, e1, e2, e3, e4, e5, e6, e7};
    const I source_step[8] = {s0, s1, s2, s3, s4, s5, s6, s7};
    const I destination_step[8] = {d0, d1, d2, d3, d4, d5, d6, d7};
    const U first = U(blockIdx.x) * 1024 + threadIdx.x;
    W word[4];
    I into[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        U rest = first + k * 256;
        if (rest >= U(words)) continue;
        I from = start;
        into[k] = to;
#pragma unroll
        for (int a = AXES - 1; a > 0; --a) {
            const I i = I(rest % U(extent[a]));
            rest /= U(extent[a]);
            from += i * source_step[a];
            into[k] += i * destination_step[a];
        }
        from += I(rest) * source_step[0];
        into[k] += I(rest) * destination_step[0];
        word[k] = source[from];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
        if (first + k * 256 < U(words)) destination[into[k]] = word[k];
}

#ifdef TILE
// across: extent of the axis that is fastest in the source; down: of the one fastest in the destination
extern "C" __global__ void __launch_bounds__(256) tiles(
    const W* __restrict__ source, W* __restrict__ destination, i64 start, i64 to,
    i64 across, i64 down, i64 source_pitch, i64 destination_pitch, i64 tiles_across, i64 tiles_down,
    i64 e0, i64 e1, i64 e2, i64 e3, i64 e4, i64 e5, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5,
    i64 d0, i64 d1, i64 d2, i64 d3, i64 d4, i64 d5)
{
    constexpr int PER_ROW = TILE / V, ROWS = 256 / PER_ROW, ROUNDS = TILE / ROWS;
    constexpr int GROUP = ROUNDS < 4 ? ROUNDS : 4;  // accesses in flight
    constexpr int PAD = sizeof(W) < 4 ? 4 / sizeof(W) : 1;
    __shared__ W tile[TILE][TILE + PAD];
    const i64 extent[6] = {e0, e1, e2, e3, e4, e5};
    const i64 source_step[6] = {s0, s1, s2, s3, s4, s5};
    const i64 destination_step[6] = {d0, d1, d2, d3, d4, d5};
    u32 rest = blockIdx.x;
    const i64 column = i64(rest % u32(tiles_across)) * TILE;
    rest /= u32(tiles_across);
    const i64 row = i64(rest % u32(tiles_down)) * TILE;
    rest /= u32(tiles_down);
#pragma unroll
    for (int a = AXES - 1; a >= 0; --a) {
        const i64 i = rest % extent[a];
        rest /= extent[a];
        start += i * source_step[a];
        to += i * destination_step[a];
    }
    const int x = threadIdx.x % PER_ROW * V, y = threadIdx.x / PER_ROW;
#pragma unroll
    for (int g = 0; g < ROUNDS; g += GROUP) {
        Pack<W, V> run[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const i64 r = row + y + (g + k) * ROWS, c = column + x;
            if (r < down && c < across) run[k] = *(const Pack<W, V>*)(source + start + r * source_pitch + c);
        }
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
#pragma unroll
            for (int j = 0; j < V; ++j) tile[y + (g + k) * ROWS][x + j] = run[k].v[j];
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < ROUNDS; ++g) {
        const i64 r = column + y + g * ROWS, c = row + x;
        Pack<W, V> run;
#pragma unroll
        for (int j = 0; j < V; ++j) run.v[j] = tile[x + j][y + g * ROWS];
        if (r < across && c < down) *(Pack<W, V>*)(destination + to + r * destination_pitch + c) = run;
    }
}
#endif
