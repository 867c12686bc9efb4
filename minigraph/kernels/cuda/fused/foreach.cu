// A body of elementwise operators on each tensor of lists. `on_elements` is its text (fused/foreach.py): N elements of a
// tensor from `first` on; `at` has where the columns of the tensor lie.
// Every value is read once and written once.

extern "C" __global__ void __launch_bounds__(256, 1) foreach(TENSORS SHARED AND_FAULT)
{
    Answer answer = {};
    FIND
    u64 at[COLUMNS], places = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) at[c] = ADDRESS(c);
    PLACES
    if (left >= CHUNK && places == 0) {
        for (int i = threadIdx.x * PACK; i < CHUNK; i += 256 * PACK) answer = on_elements<PACK>(at, start + i GIVEN, FAULT);
    } else {
        for (int i = threadIdx.x; i < CHUNK && i < left; i += 256) answer = on_elements<1>(at, start + i GIVEN, FAULT);
    }
    SETTLE
}
