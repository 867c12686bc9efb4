// The bit mask of relu: rows of `columns` values, their bits little-endian in rows of `width` bytes.
//   pack_mask   reads z once, writes width bytes a row; one thread makes one byte of 8 values, read
//               at once where rows are multiples of 8
//   apply_mask  reads and writes d once, reads the mask once; one thread takes 8 values
extern "C" __global__ void pack_mask(const T* __restrict__ z, unsigned char* mask, i64 rows, i64 columns, i64 width)
{
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= rows * width) return;
    i64 row = at / width, first = at % width * 8;
    const T* values = z + row * columns + first;
    u32 bits = 0;
    if (columns % 8 == 0 && first < columns) {
        const Pack<T, 8> pack = *(const Pack<T, 8>*)values;
#pragma unroll
        for (int j = 0; j < 8; ++j) bits |= u32(up(pack.v[j]) > 0) << j;
    } else {
        for (int j = 0; j < 8; ++j)
            if (first + j < columns && up(values[j]) > 0) bits |= 1u << j;
    }
    mask[at] = (unsigned char)bits;
}

extern "C" __global__ void apply_mask(T* d, const unsigned char* __restrict__ mask, i64 size, i64 columns, i64 width)
{
    const i64 at = (i64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (at >= size) return;
    const i64 row = at / columns, column = at % columns;
    if (columns % 8 == 0) {
        const u32 bits = mask[row * width + column / 8];
        Pack<T, 8> pack = *(Pack<T, 8>*)(d + at);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (!(bits >> j & 1)) pack.v[j] = down<T>(0.0f);
        *(Pack<T, 8>*)(d + at) = pack;
    } else {
        for (i64 i = at; i < min(at + 8, size); ++i)
            if (!(mask[i / columns * width + i % columns / 8] >> (i % columns % 8) & 1)) d[i] = down<T>(0.0f);
    }
}
