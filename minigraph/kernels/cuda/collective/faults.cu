// Faults of other ranks: faults.py.

extern "C" __global__ void __launch_bounds__(1) tell(const Fault* fault, float* found)
{
    *found = ask(fault).bad();
}

// A fault of this rank keeps its place in the record; checks of NaN have theirs, and no step comes behind ELSEWHERE.
extern "C" __global__ void __launch_bounds__(1) hear(const float* found, Fault* fault)
{
    if (*found == 0) return;
    fault->latest = fault->settled / 2 + 1;
    if (atomicCAS(&fault->taken, 0ull, 1ull) == 0ull) fault->step = ELSEWHERE;
}
