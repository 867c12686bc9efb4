// The bit mask of relu: rows of `columns` values, their bits little-endian in rows of `width` bytes.
//   pack_mask   reads z once, writes width bytes a row; one thread makes one byte
//   apply_mask  reads and writes d once, reads the mask once
extern "C" __global__ void pack_mask(const T* __restrict__ z, unsigned char* mask, i64 rows, i64 columns, i64 width)
{
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= rows * width) return;
    i64 row = at / width, first = at % width * 8;
    u32 bits = 0;
    for (int j = 0; j < 8; ++j)
        if (first + j < columns && up(z[row * columns + first + j]) > 0) bits |= 1u << j;
    mask[at] = (unsigned char)bits;
}

extern "C" __global__ void apply_mask(T* d, const unsigned char* __restrict__ mask, i64 size, i64 columns, i64 width)
{
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= size) return;
    i64 row = at / columns, column = at % columns;
    if (!(mask[row * width + column / 8] >> (column % 8) & 1)) d[at] = down<T>(0.0f);
}
