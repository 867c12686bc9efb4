// destination[to + sum_a i_a * destination_a] = source[start + sum_a i_a * source_a] over all indices i.
//
// copy   every thread moves 4 words; the last axis varies fastest. Words are as wide as the innermost
//        run of elements and the addresses allow, up to 16 bytes. At most 8 axes: extents e, steps s
//        in the source and d in the destination, in words.
// blocks the source's fastest axis is not the destination's, both allow 16 bytes at once, and words have 2 or 4
//        bytes: a thread turns V x V words over in its registers
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
    i64 across, i64 down, i64 source_pitch, i64 destination_pitch, i64 tiles_across, i64 tiles_down, \
    i64 e0, i64 e1, i64 e2, i64 e3, i64 e4, i64 e5, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5,  \
    i64 d0, i64 d1, i64 d2, i64 d3, i64 d4, i64 d5
// Where the tile of this block begins: `column` along across, `row` along down, the others in start and to.
#define BEGINNING                                             \
    const i64 extent[6] = {e0, e1, e2, e3, e4, e5};           \
    const i64 source_step[6] = {s0, s1, s2, s3, s4, s5};      \
    const i64 destination_step[6] = {d0, d1, d2, d3, d4, d5}; \
    u32 rest = blockIdx.x;                                    \
    const i64 column = i64(rest % u32(tiles_across)) * TILE;  \
    rest /= u32(tiles_across);                                \
    const i64 row = i64(rest % u32(tiles_down)) * TILE;       \
    rest /= u32(tiles_down);                                  \
    _Pragma("unroll")                                         \
    for (int a = AXES - 1; a >= 0; --a) {                     \
        const u32 i = rest % u32(extent[a]);                  \
        rest /= u32(extent[a]);                               \
        start += i * source_step[a];                          \
        to += i * destination_step[a];                        \
    }

#ifdef BLOCK
// A warp takes 4 x 8 squares of V x V words, the warps of a block lie 4 x 2: reads of 64 bytes by four warps side
// by side, writes of 128 bytes.
extern "C" __global__ void __launch_bounds__(256) blocks(PARAMETERS)
{
    BEGINNING
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 c = column + (warp % 4 * 4 + lane % 4) * V, r = row + (warp / 4 * 8 + lane / 4) * V;
    if (r >= down || c >= across) return;
    const W* from = source + start + r * source_pitch + c;
    W* into = destination + to + c * destination_pitch + r;
    Pack<u32, 4> line[V];
#pragma unroll
    for (int i = 0; i < V; ++i) line[i] = *(const Pack<u32, 4>*)(from + i * source_pitch);
#pragma unroll
    for (int i = 0; i < V; ++i) {
        Pack<u32, 4> turned;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (V == 4) turned.v[j] = line[j].v[i % 4];
            else {
                const u32 low = line[2 * j % V].v[i / 2], high = line[(2 * j + 1) % V].v[i / 2];
                turned.v[j] = i % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
            }
        *(Pack<u32, 4>*)(into + i * destination_pitch) = turned;
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
