// Philox4x32-10, laid out as in minigraph/kernels/philox.py: the block of four words that four elements are made from.
struct Words {
    u32 v[4];
};

__device__ __forceinline__ Words philox4x32(u64 block, u64 seed, i64 number, i64 step) {
    u32 c0 = u32(block), c1 = u32(block >> 32), c2 = u32(step), c3 = u32(number);
    u32 k0 = u32(seed), k1 = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = multiply_wide(c0, 0xD2511F53u), p1 = multiply_wide(c2, 0xCD9E8D57u);
        c0 = u32(p1 >> 32) ^ c1 ^ k0;
        c2 = u32(p0 >> 32) ^ c3 ^ k1;
        c1 = u32(p1);
        c3 = u32(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}
