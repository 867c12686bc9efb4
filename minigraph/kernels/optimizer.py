"""Parameter updates on a CPU: in place, block by block, all parameters of an operator spread over the cores at once.

A kernel gets the arrays of the Scope as `out` and updates them; where `out` is absent it updates
copies. The loops are machine code where numba is installed (`kernels/compiled.py`); NumPy runs one
pass per elementary operation, so a block is small enough to stay in cache between them, and large
enough that threads seldom wait for the interpreter lock. Each element is computed by the same
operations wherever blocks end, so results do not depend on the number of cores.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .compiled import compiled
from .parallel import for_blocks, for_shares
from .updates import PLAIN, SHARED, Update, slots_of, update_of

BLOCK = 196608  # elements
NORM_BLOCK = 8192  # elements that BLAS sums in the array's type: of longer ones it makes threads, whose sums differ

Arrays = list[np.ndarray]
Lists = dict[str, Arrays]
Kernel = Callable[..., Any]


def _single(op_type: str) -> Kernel:
    """The kernel of an operator that updates one parameter: that of a list of one."""
    slots = slots_of(op_type)

    def kernel(*inputs: Any, out: Sequence[Any] | None = None, **attrs: Any) -> Any:
        given = {slot: [a] for slot, a in zip(slots.inputs, inputs, strict=False) if a is not None}
        targets = {slot: [o] for slot, o in zip(slots.updated, out or (), strict=False)}
        results = _update(op_type, given, attrs, targets)
        found = tuple(results[slot][0] if slot in results else None for slot in slots.updated)
        return found

    return kernel


def _fused(op_type: str) -> Kernel:
    """The kernel of an operator that updates lists of parameters."""
    slots = slots_of(op_type)

    def kernel(*inputs: Any, out: Sequence[Any] | None = None, **attrs: Any) -> Any:
        given = {
            slot: [a] if slot in SHARED else a
            for slot, a in zip(slots.inputs, inputs, strict=False) if a is not None
        }  # fmt: skip
        targets = {slot: o for slot, o in zip(slots.updated, out or (), strict=False) if o is not None}
        results = _update(op_type, given, attrs, targets)
        return tuple(results.get(slot) for slot in slots.updated)

    return kernel


def _update(op_type: str, given: Lists, attrs: Mapping[str, Any], out: Mapping[str, Sequence[Any]]) -> Lists:
    """{slot: new values} for the updated slots that are given, in the arrays of `out` where there are some."""
    update, slots = update_of(op_type, attrs), slots_of(op_type)
    count = len(given["Param"])
    results = {
        slot: [_target(a, o) for a, o in zip(given[slot], out.get(slot) or [None] * count, strict=True)]
        for slot in slots.updated if slot in given
    }  # fmt: skip
    skipped = given.get("SkipUpdate")
    if skipped is not None and skipped[0].item():
        return results
    powers = [[a.item() for a in given[slot]] for slot in update.powers]
    numbers = _numbers(update, given["LearningRate"][0].item(), powers, count, attrs)
    columns = [given["Grad"], results["MasterParam" if "MasterParam" in results else "Param"]]
    columns += [results[slot] for slot in update.states]
    flat = [[a.ravel() for a in column] for column in columns]
    scale = given["GradScale"][0].item() if "GradScale" in given else None
    coeff = attrs.get("regularization_coeff", 0.0)
    if update.finish is None:
        _over_blocks(update.loop, flat, numbers, scale, coeff)
    else:
        _adapted(update, flat, numbers, scale, coeff)
    for column, changed in zip(columns[1:], flat[1:], strict=True):
        for result, f in zip(column, changed, strict=True):
            if f.base is None:  # a copy, of what is not contiguous
                result[...] = f.reshape(result.shape)
    if "MasterParam" in results:
        for p, master in zip(results["Param"], results["MasterParam"], strict=True):
            p[...] = master
    for slot, old, beta in zip(update.powers, powers, update.betas(attrs), strict=True):
        for power, new in zip(old, results[slot], strict=True):
            new.fill(power * beta)
    return results


def _numbers(
    update: Update, rate: float, powers: Sequence[Sequence[float]], count: int, attrs: Mapping[str, Any]
) -> list[tuple[float, ...]]:
    """The numbers of the step for each parameter; computed once where powers are the same."""
    known = {}
    keys = list(zip(*powers, strict=True)) if powers else [()] * count
    for key in keys:
        if key not in known:
            known[key] = tuple(float(n) for n in update.numbers(rate, *key, **attrs))
    return [known[key] for key in keys]


def _over_blocks(
    loop: compiled, columns: Sequence[Arrays], numbers: Sequence[tuple[float, ...]],
    scale: float | None = None, coeff: float = 0.0,
) -> None:  # fmt: skip
    """`loop(*arrays, *numbers)` on all elements; the first column is the gradient, changed first where asked.

    Machine code reads each array once, NumPy needs blocks that stay in cache.
    """
    ends = list(itertools.accumulate(a.size for a in columns[0]))
    typed = {n: tuple(map(columns[0][0].dtype.type, n)) for n in set(numbers)}
    code = loop.code()

    def on_block(start: int, stop: int) -> None:
        i = bisect.bisect_right(ends, start)
        while start < stop:
            first = ends[i] - columns[0][i].size
            end = min(stop, ends[i])
            parts = [column[i][start - first : end - first] for column in columns]
            if scale is not None:
                parts[0] = parts[0] * scale
            if coeff:
                parts[0] = parts[0] + parts[1] * coeff
            code(*parts, *typed[numbers[i]])
            start, i = end, i + 1

    size = ends[-1] if ends else 0
    if code is not loop.loop:
        for_shares(size, on_block)
    else:
        for_blocks(size, BLOCK, on_block)


def _adapted(
    update: Update, columns: list[Arrays], numbers: Sequence[tuple[float, ...]], scale: float | None, coeff: float
) -> None:
    """Directions of all parameters first, then steps of the size that the norms give."""
    assert update.finish is not None
    params, directions = columns[1], [np.empty_like(p) for p in columns[1]]
    _over_blocks(update.loop, [*columns, directions], [n[:-1] for n in numbers], scale, coeff)
    sizes = [
        (n[-1] * norm_ratio(p, r),) for p, r, n in zip(params, directions, numbers, strict=True)
    ]
    _over_blocks(update.finish, [directions, params], sizes)


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


def _target(array: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The array to update: `out` with the values of `array`."""
    if not isinstance(out, np.ndarray):  # absent, or a NumPy scalar
        return np.array(array)
    if out is not array:
        np.copyto(out, array)
    return out


globals().update({name: _single(name) for name in PLAIN} | {f"fused_{name}": _fused(name) for name in PLAIN})
