// Which keys a block of the backward kernel has, which tiles of STEP queries see some of them, and when its turn comes to
// add to the gradient of such a tile: blocks add in the order of their tickets, which is that of keys, up or down.
//
// Tickets are taken by `together` heads in turn, so a block follows its predecessor at the distance at which blocks end;
// that many heads keep the device busy. Where late keys are seen by late queries only, as under a causal mask, they come
// first: a block finds done what the others add to the tiles that it reaches. Not so for the last heads that take turns:
// there early keys come first, whose blocks have most to do, so that all blocks of the device end together.
//
// AROUND: where all blocks of a head run at the same time, they would queue at each tile. Then each starts at a tile of
// its own and goes round, so that it comes to a tile one step behind the next block: that is the order there. Such blocks
// wait for later tickets, too; a cooperative launch sees to it that all run at the same time.
struct Walk {
    int block, key_head, batch;
    int begin, end, start;  // tiles, and the first that is visited

    __device__ __forceinline__ Walk(int ticket, int lines, int together, int queries, int keys, int key_heads, int low,
                                    int high)
        : last((keys + ROWS - 1) / ROWS - 1), low(low), high(high) {
        const int blocks = last + 1, first_line = ticket / (blocks * together) * together;
        upward = high >= keys || first_line + together >= lines;
        const int members = min(together, lines - first_line), within = ticket - first_line * blocks;
        const int line = first_line + within % members;
        block = upward ? within / members : last - within / members;
        key_head = line % key_heads;
        batch = line / key_heads;
        const int last_row = min(queries - 1, block * ROWS + ROWS - 1 - low);
        begin = max(0, block * ROWS - high) / STEP;
        end = max(begin, last_row < 0 ? 0 : last_row / STEP + 1);
        start = AROUND ? (block * end + last) / blocks : begin;
    }
    // How many blocks add to one of these tiles before this block.
    __device__ __forceinline__ int before(int tile) const {
        if (AROUND) {
            const int ahead = tile * (last + 1) / end - block;
            return ahead < 0 ? ahead + last + 1 : ahead;
        }
        const int first_key = max(0, tile * STEP + low), last_key = tile * STEP + STEP - 1 + high;
        return upward ? block - first_key / ROWS : min(last, last_key / ROWS) - block;
    }

private:
    bool upward;
    int last, low, high;
};
