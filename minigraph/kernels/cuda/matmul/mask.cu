// The bit mask of relu: rows of `columns` values, their bits little-endian in rows of `width` bytes.
//   pack_mask   reads z once, writes width bytes a row; one thread makes one byte of 8 values, read
//               at once where rows are multiples of 8
//   relu_mask   the same, and max(z, 0) in place: reads and writes z once
//   apply_mask  reads and writes d once, reads the mask once; one thread takes 8 values
template <bool STORE> __device__ void mask_of(T* z, unsigned char* mask, i64 rows, i64 columns, i64 width)
{
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= rows * width) return;
    i64 row = at / width, first = at % width * 8;
    T* values = z + row * columns + first;
    u32 bits = 0;
    if (columns % 8 == 0 && first < columns) {
        Pack<T, 8> pack = *(const Pack<T, 8>*)values;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const auto value = up(pack.v[j]);
            bits |= u32(value > 0) << j;
            if (STORE && value <= 0) pack.v[j] = down<T>(0.0f);  // a NaN stays
        }
        if (STORE) *(Pack<T, 8>*)values = pack;
    } else {
        for (int j = 0; j < 8 && first + j < columns; ++j) {
            const auto value = up(values[j]);
            bits |= u32(value > 0) << j;
            if (STORE && value <= 0) values[j] = down<T>(0.0f);
        }
    }
    mask[at] = (unsigned char)bits;
}

extern "C" __global__ void pack_mask(const T* __restrict__ z, unsigned char* mask, i64 rows, i64 columns, i64 width)
{
    mask_of<false>((T*)z, mask, rows, columns, width);
}

extern "C" __global__ void relu_mask(T* z, unsigned char* mask, i64 rows, i64 columns, i64 width)
{
    mask_of<true>(z, mask, rows, columns, width);
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
