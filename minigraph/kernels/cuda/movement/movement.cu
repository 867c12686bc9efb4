// destination[to + sum_a i_a * destination_a] = source[start + sum_a i_a * source_a] over all indices i.
//
// copy   every thread moves 4 words; the last axis varies fastest. Words are as wide as the innermost
//        run of elements and the addresses allow, up to 16 bytes. At most 8 axes: extents e, steps s
//        in the source and d in the destination, in words.
// tiles  the source's fastest axis is not the destination's: `wide` x DOWN words go through shared memory, read along
//        one axis and written along the other, a line of 16 bytes at once. Sizes and addresses may be any (unless
//        ALIGNED): rows stand there as they lie in memory, from a 16-byte boundary on, with what lies beside them, and
//        what is written begins and ends with a sector, the 32 bytes that the L2 cache writes at once. It stays out
//        of the L1 cache. At most 6 more axes.
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
extern "C" __global__ void __launch_bounds__(256) tiles(
    const W* __restrict__ source, W* __restrict__ destination, i64 words, i64 start, i64 to,
    i64 across, i64 down, i64 source_pitch, i64 destination_pitch, i64 tiles_across, i64 tiles_down, i64 wide,
    i64 e0, i64 e1, i64 e2, i64 e3, i64 e4, i64 e5, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4, i64 s5,
    i64 d0, i64 d1, i64 d2, i64 d3, i64 d4, i64 d5)
{
    constexpr int V = 16 / sizeof(W), ACROSS = TILE / V, PACKS = DOWN / V;  // lines of a row that is read, or written
    constexpr int SECTOR = ALIGNED ? 1 : 32 / sizeof(W), HALO = ALIGNED ? 0 : SECTOR, ROWS = DOWN + HALO;
    constexpr int LINES = ACROSS + (ODD ? 8 : ALIGNED ? 0 : 1), READ = 256 / ACROSS, WRITTEN = 256 / PACKS;
    static_assert(ALIGNED || (READ % V == 0 && WRITTEN % SECTOR == 0), "a thread's own lie alike beside boundaries");
    typedef Pack<W, V> Line;
    extern __shared__ uint4 memory[];
    W* tile = (W*)memory;
    const i64 extent[6] = {e0, e1, e2, e3, e4, e5};
    const i64 source_step[6] = {s0, s1, s2, s3, s4, s5};
    const i64 destination_step[6] = {d0, d1, d2, d3, d4, d5};
    const i64 row = i64(blockIdx.x % u32(tiles_down)) * DOWN;
    u32 rest = blockIdx.x / u32(tiles_down);
    const i64 column = i64(rest % u32(tiles_across)) * wide;
    rest /= u32(tiles_across);
#pragma unroll
    for (int a = AXES - 1; a >= 0; --a) {
        const u32 i = rest % u32(extent[a]);
        rest /= u32(extent[a]);
        start += i * source_step[a];
        to += i * destination_step[a];
    }
    const i64 from = start + (row - HALO) * source_pitch + column;
    const u32 skew = u32(u64(source + from) / sizeof(W)), skew_step = u32(source_pitch);
    // Row y lies skew + y * skew_step words behind a boundary in the source. In the tile its first line lies at begin(y),
    // its first word `within` it. Lines of a column, V rows apart, must lie in different banks; and a copy is faster to
    // where 128 bytes begin as in the source: where the pitch is odd, this does both.
    auto begin = [&](u32 y) {
        return ODD ? y * LINES * V + (skew + y * skew_step) % (8 * V) / V * V : (y * LINES + y / V) * V;
    };
    auto within = [&](u32 y) { return ALIGNED ? 0 : (skew + y * skew_step) % V; };
    const int right = int(min(across - column, wide)), bottom = int(min(down - row, i64(DOWN + HALO)));
    auto fetch = [&](int y, int x) {  // line x of row y
        if ((row == 0 && y < HALO) || y >= bottom + HALO) return;
        const int place = x * V - within(y);  // behind a boundary
        if (place >= right) return;
        const i64 line = from + y * source_pitch + place;
        W* goal = tile + begin(y) + x * V;
        if (ALIGNED || u64(line) <= u64(words - V))
            copy_ahead<true>(goal, source + line);
        else  // at the ends of the array
#pragma unroll 1
            for (int j = 0; j < V; ++j)
                if (place + j >= 0 && place + j < right) goal[j] = source[line + j];
    };
#pragma unroll 4
    for (int y = threadIdx.x / ACROSS; y < ROWS; y += READ) fetch(y, threadIdx.x % ACROSS);
    if (!ALIGNED)
        for (int y = threadIdx.x; y < ROWS; y += 256) fetch(y, ACROSS);
    wait_for_copies();
    __syncthreads();
    constexpr int ALONG = 8, BESIDE = 32 / ALONG;  // lines of a column that a warp writes, and columns
    const int k = threadIdx.x % ALONG + threadIdx.x / 32 % (PACKS / ALONG) * ALONG;
    const int x0 = threadIdx.x / ALONG % BESIDE + threadIdx.x / (BESIDE * PACKS) * BESIDE;
    W* into = destination + to + (column + x0) * destination_pitch + row;
    const int place = k * V - int(u64(into) / sizeof(W) % SECTOR);
    if (place >= bottom) return;
    into += place;
    const bool whole = (row > 0 || place >= 0) && place + V <= bottom;
    int at[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const u32 y = HALO + place + j;
        at[j] = begin(y) + within(y) + x0;
    }
#pragma unroll(V > 8 ? 2 : 4)
    for (int x = 0; x0 + x < right; x += WRITTEN, into += WRITTEN * destination_pitch) {
        Line line;
#pragma unroll
        for (int j = 0; j < V; ++j) line.v[j] = tile[at[j] + x];
        if (ALIGNED || whole)
            __stcg((uint4*)into, *(const uint4*)&line);
        else
#pragma unroll
            for (int j = 0; j < V; ++j)
                if ((row > 0 || place + j >= 0) && place + j < bottom) into[j] = line.v[j];
    }
}
#endif
