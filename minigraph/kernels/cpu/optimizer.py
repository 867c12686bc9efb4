"""Parameter updates on a CPU: in place, block by block, all parameters of an operator spread over the cores at once.

A kernel gets the arrays of the Scope as `out` and updates them; where `out` is absent it updates
copies. The loops are machine code where numba is installed and there is enough to do (`compiled/elements.py`), which
gets the addresses of all arrays in one call. NumPy runs one pass per elementary operation, so a block is small enough
to stay in cache between them, and large enough that threads seldom wait for the interpreter lock. Each element is
computed by the same operations, by NumPy or not, wherever blocks end, so results do not depend on the number of cores.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.interrupts import deferred
from minigraph.kernels.parallel import for_blocks
from minigraph.kernels.updates import PLAIN, SHARED, Loop, Update, slots_of, update_of

BLOCK = 196608  # elements
FEW, OFTEN = 65536, 1000  # elements, and runs with them until it is worth its time to make machine code
NORM_BLOCK = 8192  # elements that BLAS sums in the array's type: of longer ones it makes threads, whose sums differ
UNCHANGED = 1.0, 0.0

Arrays = list[np.ndarray]
Lists = dict[str, Arrays]
Kernel = Callable[..., Any]
Change = tuple[float, float]  # what gradients are multiplied with first, and how much of the parameter is added then


def _kernel(op_type: str, listed: bool) -> Kernel:
    """The kernel of an operator; `listed` if slots are lists, but those in SHARED."""
    slots = slots_of(op_type)

    def prepared(inputs: Sequence[Any], out: Sequence[Any] | None, attrs: Mapping[str, Any]) -> Prepared:
        given = {
            s: a if listed and s not in SHARED else [a]
            for s, a in zip(slots.inputs, inputs, strict=False) if a is not None
        }  # fmt: skip
        targets = {s: o if listed else [o] for s, o in zip(slots.updated, out or (), strict=False) if o is not None}
        return _prepared(op_type, given, targets, attrs)

    def kernel(*inputs: Any, out: Sequence[Any] | None = None, **attrs: Any) -> Any:
        results, step, _ = prepared(inputs, out, attrs)
        step()
        return tuple(None if s not in results else results[s] if listed else results[s][0] for s in slots.updated)

    def for_arrays(
        *inputs: Any, out: Sequence[Any] | None = None, moving: Sequence[str] = (), **attrs: Any
    ) -> Callable[[], None] | None:
        """A step on these very arrays, as often as it is called; None if any is another one then, or must be copied."""
        _, step, in_place = prepared(inputs, out, attrs)
        return step if in_place and not moving else None

    kernel.for_arrays = for_arrays  # type: ignore[attr-defined]
    return kernel


class Prepared(NamedTuple):
    """A step whose arrays are known.

    results   {slot: arrays with the new values after the step} for the updated slots that are given
    in_place  whether these are the given ones, and none had to be copied
    """

    results: Lists
    step: Callable[[], None]
    in_place: bool


def _prepared(op_type: str, given: Lists, out: Mapping[str, Sequence[Any]], attrs: Mapping[str, Any]) -> Prepared:
    """The step of an operator on lists of arrays, with results in the arrays of `out` where there are some."""
    update, slots = update_of(op_type, attrs), slots_of(op_type)
    results = {slot: _targets(given[slot], out.get(slot)) for slot in slots.updated if slot in given}
    columns = [given["Grad"], results["MasterParam" if "MasterParam" in results else "Param"]]
    columns += [results[slot] for slot in update.states]
    flat = [[np.require(a, requirements=["C", "A"]) for a in column] for column in columns]
    copied = [
        [(a, contiguous) for a, contiguous in zip(*pair, strict=True) if a is not contiguous]
        for pair in zip(columns, flat, strict=True)
    ]
    scale, skip = (given.get(slot, [None])[0] for slot in ("GradScale", "SkipUpdate"))
    rate = given["LearningRate"][0]
    coeff, count, betas = attrs.get("regularization_coeff", 0.0), len(columns[0]), update.betas(attrs)
    powers = [results[slot] for slot in update.powers]
    run = _bound(update.loop, flat) if update.finish is None else _adapted(update, flat)

    def step() -> None:
        if skip is not None and skip.item():
            return
        old = [[a.item() for a in column] for column in powers]
        numbers = _numbers(update, rate.item(), old, count, attrs)
        for column, values, beta in zip(powers, old, betas, strict=True):  # now: they leave the cache in the run
            for power, value in zip(column, values, strict=True):
                power.fill(value * beta)
        run(numbers, (scale.item() if scale is not None else 1.0, coeff))
        for a, contiguous in itertools.chain(*copied[1:]):  # the gradients are only read
            a[...] = contiguous
        if "MasterParam" in results:
            for p, master in zip(results["Param"], results["MasterParam"], strict=True):
                p[...] = master

    in_place = all(new is a for slot in results for new, a in zip(results[slot], given[slot], strict=True))
    return Prepared(results, step, in_place and not any(copied))


def _targets(arrays: Arrays, out: Sequence[Any] | None) -> Arrays:
    """The arrays to update: those of `out`, with the values of `arrays`; copies where there are none."""
    return [_target(*pair) for pair in zip(arrays, out or [None] * len(arrays), strict=True)]


def _target(array: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if not isinstance(out, np.ndarray):  # absent, or a NumPy scalar
        return np.array(array)
    if out is not array:
        np.copyto(out, array)
    return out


class Numbers(NamedTuple):
    """Sets of numbers for a loop, and which of them is for each parameter."""

    sets: list[tuple[float, ...]]
    rows: list[int]


def _numbers(
    update: Update, rate: float, powers: Sequence[Sequence[float]], count: int, attrs: Mapping[str, Any]
) -> Numbers:
    """The numbers of the step, computed once for parameters with the same powers."""
    keys = list(zip(*powers, strict=True)) if powers else [()] * count
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    sets = [tuple(map(float, update.numbers(rate, *key, **attrs))) for key in places]
    return Numbers(sets, [places[key] for key in keys])


@cache
def _compiled() -> Any:
    """The module that runs loops as machine code; None without numba."""
    try:
        from .compiled import elements
    except ImportError:
        return None
    return elements


def _bound(loop: Loop, columns: Sequence[Arrays]) -> Callable[[Numbers, Change], None]:
    """`loop(*arrays, *numbers)` on all elements of contiguous arrays, each with its numbers."""
    if sum(a.size for a in columns[0]) >= FEW:
        return _in_machine_code(loop, columns)
    way, runs = _in_numpy(loop, columns), itertools.count(1)

    def run(numbers: Numbers, change: Change) -> None:
        nonlocal way
        if next(runs) == OFTEN:
            way = _in_machine_code(loop, columns)
        way(numbers, change)

    return run


def _in_machine_code(loop: Loop, columns: Sequence[Arrays]) -> Callable[[Numbers, Change], None]:
    with deferred():  # numba whose first import, or whose compilation, was interrupted is of no use any more
        compiled = _compiled()
        return compiled.bound(loop, columns) if compiled is not None else _in_numpy(loop, columns)


def _in_numpy(loop: Loop, columns: Sequence[Arrays]) -> Callable[[Numbers, Change], None]:
    flat = [[a.reshape(-1) for a in column] for column in columns]
    ends = list(itertools.accumulate(a.size for a in flat[0]))
    number = flat[0][0].dtype.type

    def run(numbers: Numbers, change: Change) -> None:
        typed = [tuple(map(number, n)) for n in numbers.sets]
        scale, coeff = change

        def on_block(start: int, stop: int) -> None:
            i = bisect.bisect_right(ends, start)
            while start < stop:
                first = ends[i] - flat[0][i].size
                end = min(stop, ends[i])
                parts = [column[i][start - first : end - first] for column in flat]
                if scale != 1:
                    parts[0] = parts[0] * scale
                if coeff:
                    parts[0] = parts[0] + parts[1] * coeff
                loop(*parts, *typed[numbers.rows[i]])
                start, i = end, i + 1

        for_blocks(ends[-1], BLOCK, on_block)

    return run


def _adapted(update: Update, columns: Sequence[Arrays]) -> Callable[[Numbers, Change], None]:
    """Directions of all parameters first, then steps of the size that the norms give."""

    def run(numbers: Numbers, change: Change) -> None:
        assert update.finish is not None
        params, directions = columns[1], [np.empty(p.shape, p.dtype) for p in columns[1]]
        first = Numbers([n[:-1] for n in numbers.sets], numbers.rows)
        _bound(update.loop, [*columns, directions])(first, change)
        rates = [numbers.sets[row][-1] for row in numbers.rows]
        sizes = [(rate * norm_ratio(p, r),) for p, r, rate in zip(params, directions, rates, strict=True)]
        _bound(update.finish, [directions, params])(Numbers(sizes, list(range(len(sizes)))), UNCHANGED)

    return run


def norm_ratio(X: np.ndarray, Y: np.ndarray) -> float:
    """||X|| / ||Y||, 1 where one of them is 0."""
    x, y = (math.sqrt(_squares(a, np.dtype("float64"))) for a in (X, Y))
    return x / y if x > 0 and y > 0 else 1.0


def foreach_norm_ratio(X: Arrays, Y: Arrays) -> Arrays:
    """||X|| / ||Y|| of each pair as float64, 1 where one of them is 0."""
    return [np.array([norm_ratio(x, y)]) for x, y in zip(X, Y, strict=True)]


def squared_l2_norm(X: np.ndarray) -> np.ndarray:
    """sum(X^2) without an array of squares; the sums of blocks are added in float64."""
    return np.asarray(_squares(X), X.dtype)


def foreach_squared_l2_norm(X: Arrays) -> np.ndarray:
    """The sum of X^2 over all arrays, each summed as by squared_l2_norm."""
    return np.asarray(sum(np.asarray(_squares(x), x.dtype) for x in X), X[0].dtype)


def _squares(X: np.ndarray, dtype: np.dtype | None = None) -> float:
    """The sum of squares; those of a block are summed in `dtype`, the array's own if not given."""
    x, dtype = X.reshape(-1), dtype or X.dtype
    blocks = (x[i : i + NORM_BLOCK].astype(dtype, copy=False) for i in range(0, x.size, NORM_BLOCK))
    return sum(float(np.dot(b, b)) for b in blocks)


globals().update({name: _kernel(name, listed=False) for name in PLAIN})
globals().update({f"fused_{name}": _kernel(name, listed=True) for name in PLAIN})
