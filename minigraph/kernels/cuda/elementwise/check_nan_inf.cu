// Results that are not finite: what check_nan_inf puts behind the kernels of each operator.
//
// scan   counts NaN, inf and -inf in x, and keeps the position of the first of each in `mark`, six words that were zero:
//        three counts, three ~positions (0 for none). Reads x once; where all is finite it writes nothing.
// judge  whether an operator is refused (nonfinite.py has the rule), for its inputs and outputs as `list` names them:
//        a row of `marks` for each input, then for each output a row and the kinds that are excused. The first
//        operator of a run that is refused is told, since these kernels run in the order of the program.

#ifdef T
extern "C" __global__ void __launch_bounds__(256) scan(const T* __restrict__ x, u64* mark, i64 n)
{
    u64 nans = 0, plus = 0, minus = 0, first_nan = 0, first_plus = 0, first_minus = 0;
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < n; i += i64(gridDim.x) * 256) {
        const auto v = up(x[i]);
        if (v - v == 0) continue;
        if (v != v) {
            if (nans++ == 0) first_nan = ~u64(i);
        } else if (v > 0) {
            if (plus++ == 0) first_plus = ~u64(i);
        } else {
            if (minus++ == 0) first_minus = ~u64(i);
        }
    }
    if (nans) atomicAdd(mark, nans), atomicMax(mark + 3, first_nan);
    if (plus) atomicAdd(mark + 1, plus), atomicMax(mark + 4, first_plus);
    if (minus) atomicAdd(mark + 2, minus), atomicMax(mark + 5, first_minus);
}
#endif

#ifdef JUDGE
// Behind the fault record: the first output that was refused since the host looked, and what it holds; an input.
struct NonFinite : Fault {
    u64 found;
    i64 output, kinds, runs, source;
    u64 held[6], given[6];
};

__device__ __forceinline__ i64 kinds_of(const u64* mark)
{
    return (mark[0] != 0) | (mark[1] != 0) << 1 | (mark[2] != 0) << 2;
}

extern "C" __global__ void __launch_bounds__(32) judge(
    const u64* marks, const i64* list, i64 inputs, i64 outputs, i64 passes, const i64* runs, NonFinite* record,
    i64 step)
{
    look(record);
    if (!is_first_thread()) return;
    i64 given = 0, source = -1;
    for (i64 k = 0; k < inputs; ++k) {
        const i64 kinds = kinds_of(marks + 6 * list[k]);
        if (kinds && (source < 0 || (kinds & ~given & 1))) source = list[k];
        given |= kinds;
    }
    for (i64 k = 0; k < outputs; ++k) {
        const i64 row = list[inputs + 2 * k], excused = list[inputs + 2 * k + 1] | (passes & given);
        const i64 kinds = kinds_of(marks + 6 * row) & ~excused;
        if (!kinds) continue;
        record->latest = record->settled / 2 + 1;
        if (record->found) return;
        record->found = u64(step) + 1;
        record->output = row;
        record->kinds = kinds;
        record->runs = *runs;
        record->source = source;
        for (int i = 0; i < 6; ++i) {
            record->held[i] = marks[6 * row + i];
            record->given[i] = source < 0 ? 0 : marks[6 * source + i];
        }
        return;
    }
}
#endif
