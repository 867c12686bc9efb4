// The three words that key an operator's random numbers, for operators that draw them themselves.
extern "C" __global__ void random_key(i64* key, u64 seed, i64 number, const i64* step) {
    key[0] = i64(seed);
    key[1] = number;
    key[2] = *step;
}
