"""Validation of a pass: the program before and after it computes the same, tried on made-up numbers.

Both programs are interpreted operator by operator with the reference functions. All floats are
float64, so a difference comes from the rewrite and not from rounding. An unknown size is a small
prime, one for each axis. Floats are normal; weights keep products as large as their operands; ints
and labels are 0 or 1; states lie between 0 and 1.

It cannot see kernels that are not the reference (CUDA, `cpu=` variants, low precision), buffers and
schedules of the Executor, a difference that shows only for other sizes or values, and a value that
becomes NaN on both sides. Programs that cannot run on such numbers (an index that must be
larger than 1, feeds whose sizes must differ on one axis) are not checked; `validate` says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from minigraph.errors import MinigraphError
from minigraph.errors.kinds import VALIDATE
from minigraph.opdef.reference import run_reference
from minigraph.program import Parameter, Program, Variable
from minigraph.types import FLOATS, INTS, bfloat16, bool_, float16, float32, float64

SIZES = (3, 5, 7, 11, 13, 17, 19, 23)  # for an unknown size of axis 0, 1, ...
TOLERANCE = 1e-9
EPSILON = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
ROUNDINGS = 16  # of a value on its way, where a pass computes in the program's own types

Arrays = dict[str, np.ndarray]


def validate(
    before: Program, after: Program, pass_name: str, fetched: Iterable[str] = (), rounds: bool = False,
    mends: bool = False,
) -> str | None:  # fmt: skip
    """Raise a VerifyError if a variable that both programs have, or a fetched one, differs.

    rounds  allow for roundings of the programs' own types, of which there are none else
    mends   allow for numbers where the program before gives NaN
    Returns why the programs could not be compared, None if they were.
    """
    values = made_up_values(before)
    try:
        old = evaluate(before, values)
    except (MinigraphError, ValueError, IndexError) as problem:
        return f"not validated, the program does not run on made-up numbers: {getattr(problem, 'fact', problem)}"
    try:
        new = evaluate(after, values)
    except (MinigraphError, ValueError, IndexError, KeyError) as problem:
        raise VALIDATE(f"{pass_name} made a program that does not run: {problem}") from problem
    for name in fetched:
        if name in old and name not in new:
            raise VALIDATE(f"{pass_name} removed {name}, which is fetched")
    tolerance = max(TOLERANCE, ROUNDINGS * _largest_epsilon(before)) if rounds else TOLERANCE
    written, times = _writes(after), _writes(before)
    lasting = {*fetched, *(v.name for v in before.vars.values() if v.persistable)}
    for name in [n for n in written if n in old]:  # the first one that is written differently
        if name not in lasting and written[name] < times[name]:  # its last value, which nobody reads, may be left out
            continue
        expected = _mended(old[name], new[name]) if mends else old[name]
        difference = distance(expected, new[name])
        if difference > tolerance:
            v = before.vars[name]
            raise VALIDATE(
                f"{pass_name} changed {v} by {difference:.3g} relative to its largest element", site=v.site,
                hint="that is a defect of the pass; switch its flag off and report this program",
            )  # fmt: skip
    return None


def _writes(program: Program) -> Counter[str]:
    """How often each variable is written, in the order of the first writes."""
    return Counter(v.name for op in program.ops for v in op.output_vars)


def _mended(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """`old` with what `new` has where it is NaN."""
    return np.where(np.isnan(old), new, old) if old.dtype in FLOATS and old.shape == new.shape else old


def _largest_epsilon(program: Program) -> float:
    """That of the least precise float type in `program`."""
    return max((EPSILON[v.dtype] for v in program.vars.values() if v.dtype in FLOATS), default=0.0)


def made_up_values(program: Program, seed: int = 0) -> Arrays:
    """An array for every variable of `program` that exists before the first operator."""
    rng, values = np.random.default_rng(seed), {}
    written: set[str] = set()
    for op in program.ops:
        for v in op.input_vars:
            if v.name not in written and v.name not in values:
                values[v.name] = _made_up(rng, v)
        written.update(v.name for v in op.output_vars)
    return values


def _made_up(rng: np.random.Generator, v: Variable) -> np.ndarray:
    shape = tuple(SIZES[axis % len(SIZES)] if size == -1 else size for axis, size in enumerate(v.shape))
    if v.dtype == bool_ or v.dtype in INTS:
        return rng.integers(0, 2, shape).astype(v.dtype)
    if v.persistable and not isinstance(v, Parameter):
        return rng.uniform(0.1, 0.9, shape)  # variances and powers of decays, which must be positive
    spread = math.sqrt(shape[-2]) if isinstance(v, Parameter) and len(shape) > 1 and shape[-2] else 1.0
    return rng.normal(size=shape) / spread


def evaluate(program: Program, values: Mapping[str, np.ndarray]) -> Arrays:
    """The final value of every variable, from the reference functions, floats in float64."""
    env = dict(values)
    with np.errstate(all="ignore"):
        for op in program.ops:
            inputs = {slot: [env[v.name] for v in vs] for slot, vs in op.inputs.items()}
            wanted = [slot for slot, vs in op.outputs.items() if vs]
            results = run_reference(op.opdef, inputs, op.attrs, wanted, (1, op.number, 0), lifted=True)
            for slot in wanted:
                env.update((v.name, x) for v, x in zip(op.outputs[slot], results.get(slot, ()), strict=False))
    return env


def distance(a: np.ndarray, b: np.ndarray, floor: float = 1.0) -> float:
    """The largest difference between two arrays relative to the largest finite element, at least `floor`.

    Infinite where shapes, types, NaNs or infinities differ.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    if a.dtype not in FLOATS:
        return 0.0 if np.array_equal(a, b) else np.inf
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return np.inf
    a, b = a[finite], b[finite]
    return float(np.max(np.abs(a - b), initial=0.0) / max(floor, np.max(np.abs(a), initial=0.0)))
