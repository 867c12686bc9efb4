// destination[to + sum_a i_a * destination_a] = source[start + sum_a i_a * source_a] over all indices i.
//
// copy   every thread moves 4 words; the last axis varies fastest. Words are as wide as the innermost
//        run of elements and the addresses allow, up to 16 bytes. At most 8 axes: extents e, steps s
//        in the source and d in the destination, in words.
// blocks the source's fastest axis is not the destination's, both allow 16 bytes at once, and words have 2
//        bytes: blocks of TILE x DOWN words go through shared memory, and a thread turns V x V of them over in its
//        registers. What is read and written side by side is long: short runs cost a memory more than its width.
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
#define PARAMETERS                                                                                   \
    const W* __restrict__ source, W* __restrict__ destination, i64 start, i64 to,                    \
    i64 across, i64 down, i64 source_pitch, i64 destination_pitch, i64 tiles_across, i64 tiles_down, i64 band, \
    i64 e0, i64 e1, i64 e2, i64 e3, i64 e4, i64 e5, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5,  \
    i64 d0, i64 d1, i64 d2, i64 d3, i64 d4, i64 d5
// Where the tile of this block begins: `column` along across, `row` along down, the others in start and to. Blocks
// that run together lie in bands of `band` tiles across.
#define BEGINNING                                                                     \
    const i64 extent[6] = {e0, e1, e2, e3, e4, e5};                                   \
    const i64 source_step[6] = {s0, s1, s2, s3, s4, s5};                              \
    const i64 destination_step[6] = {d0, d1, d2, d3, d4, d5};                         \
    const u32 matrix = u32(tiles_across * tiles_down), inside = blockIdx.x % matrix;  \
    u32 rest = blockIdx.x / matrix;                                                   \
    const u32 of_band = u32(band * tiles_down), first = inside / of_band * u32(band); \
    const u32 wide = min(u32(band), u32(tiles_across) - first);                       \
    const i64 column = i64(first + inside % of_band % wide) * TILE;                   \
    const i64 row = i64(inside % of_band / wide) * DOWN;                              \
    _Pragma("unroll")                                                                 \
    for (int a = AXES - 1; a >= 0; --a) {                                             \
        const u32 i = rest % u32(extent[a]);                                          \
        rest /= u32(extent[a]);                                                       \
        start += i * source_step[a];                                                  \
        to += i * destination_step[a];                                                \
    }

#ifdef BLOCK
extern "C" __global__ void __launch_bounds__(256) blocks(PARAMETERS)
{
    extern __shared__ uint4 memory[];
    typedef Pack<u32, 4> Line;
    constexpr int LINES = TILE / V, GROUPS = DOWN / V;
    Line* tile = (Line*)memory;  // line x of row y stands at x ^ y / V % 8: eight groups of V rows in eight banks
    BEGINNING
    const W* from = source + start + row * source_pitch + column;
#pragma unroll 8
    for (int t = threadIdx.x; t < DOWN * LINES; t += 256) {
        const int y = t / LINES, x = t % LINES;
        if (row + y < down && column + x * V < across)
            copy_ahead(tile + y * LINES + (x ^ y / V % 8), from + y * source_pitch + x * V);
    }
    wait_for_copies();
    __syncthreads();
    W* into = destination + to + column * destination_pitch + row;
    for (int t = threadIdx.x; t < GROUPS * LINES; t += 256) {
        const int g = t % GROUPS, x = t / GROUPS;
        if (row + g * V >= down || column + x * V >= across) continue;
        Line line[V];
#pragma unroll
        for (int i = 0; i < V; ++i) line[i] = tile[(g * V + i) * LINES + (x ^ g % 8)];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            Line turned;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const u32 low = line[2 * j].v[i / 2], high = line[2 * j + 1].v[i / 2];
                turned.v[j] = i % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
            }
            *(Line*)(into + (x * V + i) * destination_pitch + g * V) = turned;
        }
    }
}
#else
extern "C" __global__ void __launch_bounds__(256) tiles(PARAMETERS)
{
    constexpr int PER_ROW = TILE / V, ROWS = 256 / PER_ROW, ROUNDS = TILE / ROWS;
    constexpr int BYTES = V * sizeof(W), MOST = BYTES < 16 ? 16 : 4;  // accesses in flight
    constexpr int GROUP = ROUNDS < MOST ? ROUNDS : MOST;
    constexpr int PAD = sizeof(W) < 4 ? 4 / sizeof(W) : 1;
    __shared__ W tile[TILE][TILE + PAD];
    BEGINNING
    const int x = threadIdx.x % PER_ROW * V, y = threadIdx.x / PER_ROW;
    const W* from = source + start + (row + y) * source_pitch + column + x;
#pragma unroll
    for (int g = 0; g < ROUNDS; g += GROUP) {
        Pack<W, V> run[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const int up = (g + k) * ROWS;
            if (row + y + up < down && column + x < across) run[k] = *(const Pack<W, V>*)(from + up * source_pitch);
        }
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
#pragma unroll
            for (int j = 0; j < V; ++j) tile[y + (g + k) * ROWS][x + j] = run[k].v[j];
    }
    __syncthreads();
    W* into = destination + to + (column + y) * destination_pitch + row + x;
#pragma unroll
    for (int g = 0; g < ROUNDS; ++g) {
        Pack<W, V> run;
#pragma unroll
        for (int j = 0; j < V; ++j) run.v[j] = tile[x + j][y + g * ROWS];
        if (column + y + g * ROWS < across && row + x < down)
            *(Pack<W, V>*)(into + g * ROWS * destination_pitch) = run;
    }
}
#endif
#endif
