// Flash attention, backward, on Hopper. A block has 128 keys (64 for each of two warpgroups) and walks over the queries
// of all heads that read them, STEP at a time: dV = P^T dOut and dK = scale * dS^T Q are summed in registers, its part
// of dQ = scale * dS K is added to float32 sums in global memory. Scores stand transposed, so that P^T and dS^T are left
// operands in registers; dS goes through shared memory. 5 products; the sums are written, added to and read once more.
//
// Blocks add to a tile of sums in one order, mostly that of their keys, so results have the same bits in every run. They
// take tickets: who has the smallest one waits for nobody, so none waits for one that cannot start. STAYS: a block takes
// the next ticket when all is loaded for the last one, and begins with other keys while its sums are on their way.
//
// P weighs dOut in 16 bits, but dS comes from more of it: bfloat16's 8 bits alone would double the error of dQ. There are
// no registers for floats, so float16 of 2^15 P waits, whose small numbers are not subnormal; sums are 2^15 larger.
template <class U> constexpr bool NEEDS_FINER = false;
template <> constexpr bool NEEDS_FINER<bf16> = true;
constexpr bool FINER = NEEDS_FINER<T>;
constexpr float SHIFT = FINER ? 15 : 0, UNSHIFT = FINER ? 1.0f / 32768 : 1;
constexpr u32 SLOPE_BYTES = STEP * ROWS * 2, NUMBER_BYTES = STEP * 8, SUM_FLOATS = STEP * HEAD;
constexpr u32 SUM_BYTES = SUM_FLOATS * 4;
constexpr int FEW = STAYS ? 40 : 24, MANY = STAYS ? 232 : 240;  // registers of a thread that loads, that computes

__device__ __forceinline__ u32 pack_half(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ void unpack_half(float (&x)[2], u32 pair) {
    x[0] = up(f16{(unsigned short)(pair & 0xffff)});
    x[1] = up(f16{(unsigned short)(pair >> 16)});
}

// Per query: lse in base 2 less SHIFT (infinite where no key is seen, so that probabilities are 0) and sum(dOut * Out)
// less the gradient of lse, where dlse is not null: for each tile of STEP queries first the ones, then the others. Nobody has added to dQ yet.
extern "C" __global__ void attention_prepare(const T* out, const T* dout, const float* lse, const float* dlse,
    float* numbers, u32* turns, int queries, int padded, int heads, int width, i64 out_batch, i64 out_head, i64 out_row,
    i64 dout_batch, i64 dout_head, i64 dout_row) {
    constexpr int LANES = HEAD / 8;  // of a row, 16 bytes each
    const int head = blockIdx.x % heads, batch = blockIdx.y;  // neighbours in memory at one time
    const int row = (blockIdx.x / heads * blockDim.x + threadIdx.x) / LANES, piece = threadIdx.x % LANES * 8;
    const i64 line = i64(batch) * heads + head;
    const float found = piece == 0 && row < queries ? lse[line * queries + row] : EMPTY_LSE;  // on its way beside the rows
    const float sum = row_product<LANES>(out + batch * out_batch + head * out_head + row * out_row + piece,
        dout + batch * dout_batch + head * dout_head + row * dout_row + piece, row < queries && piece < width);
    if (piece == 0) {
        float* to = numbers + 2 * (line * padded + row / STEP * STEP) + row % STEP;
        to[0] = found == EMPTY_LSE ? infinity<float>() : found * LOG2E - SHIFT;
        to[STEP] = sum - grad_of_lse(found, dlse, line * queries + row);
        if (row % STEP == 0) turns[1 + line * (padded / STEP) + row / STEP] = 0;
        if (row == 0 && line == 0) turns[0] = 0;
    }
}

// dQ = scale * sums, which lie as accumulators do; zeros where nobody added.
extern "C" __global__ __launch_bounds__(256) void attention_finish(const float* sums, const u32* turns, T* dq,
    int queries, int heads, int width, float scale, i64 dq_batch, i64 dq_head, i64 dq_row) {
    alignas(16) __shared__ T rows[STEP][HEAD + 8];
    const int head = blockIdx.y, batch = blockIdx.z, first = blockIdx.x * STEP;
    const int part = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
    const i64 tile = (i64(batch) * heads + head) * gridDim.x + blockIdx.x;
    const float4* from = reinterpret_cast<const float4*>(sums + tile * SUM_FLOATS) + part * (SUM_FLOATS / 8) + thread;
    const u32 kept = turns[1 + tile] > 0 ? ~0u : 0;  // bits of a result: a branch would let the sums wait for the answer
    float4 x[8];
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = from[j * 128];
    scale *= UNSHIFT;
    const int row = thread / 32 * 16 + lane / 4 + (HEAD == 64 ? part * 64 : 0);
    const int column = lane % 4 * 2 + (HEAD == 64 ? 0 : part * 64);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        *reinterpret_cast<u32*>(&rows[row][column + j * 8]) = pack(x[j].x * scale, x[j].y * scale) & kept;
        *reinterpret_cast<u32*>(&rows[row + 8][column + j * 8]) = pack(x[j].z * scale, x[j].w * scale) & kept;
    }
    __syncthreads();
    T* to = dq + batch * dq_batch + head * dq_head + i64(first) * dq_row;
    for (int i = threadIdx.x; i < STEP * HEAD / 8; i += 256) {
        const int r = i / (HEAD / 8), piece = i % (HEAD / 8);
        if (first + r < queries && piece * 8 < width)
            *reinterpret_cast<uint4*>(to + r * dq_row + piece * 8) =
                *reinterpret_cast<const uint4*>(&rows[r][piece * 8]);
    }
}
