"""Views: what operators that only give elements other places show of their input's memory, as Buffers with strides.

A function that is an operator's fact `shows` gives a Buffer for each output: its elements, in C order, are those of the
output. One that is its fact `joins` gives a Buffer of its output for each input. movement.py copies what does not lie
there already.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .buffer import Buffer, begins

Slots = Mapping[str, Any]
Shows = Callable[[Slots, Slots, Slots], list[Buffer]]  # of inputs, outputs and attributes
PIECE = 16  # bytes: what kernels load at once


def whole(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """The only input that is read."""
    return [ins.get("Out_grad") or ins["X"]]


def transposed(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """Axis i is X's axis perm[i]."""
    x, perm = ins["X"], attrs["perm"]
    return [x.spread([x.shape[p] for p in perm], [x.strides[p] for p in perm])]


def sliced(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """X[start:end:step], no axis dropped yet."""
    return [section(ins["X"], attrs)]


def section(x: Buffer, attrs: Slots) -> Buffer:
    """The part of `x` that a slice takes."""
    ranges = [range(size) for size in x.shape]
    steps = attrs["steps"] or (1,) * len(attrs["axes"])
    for axis, start, end, step in zip(attrs["axes"], attrs["starts"], attrs["ends"], steps, strict=True):
        ranges[axis] = ranges[axis][start:end:step]
    start = sum(r.start * s for r, s in zip(ranges, x.strides, strict=True)) if all(ranges) else 0
    return x.spread([len(r) for r in ranges], [r.step * s for r, s in zip(ranges, x.strides, strict=True)], start)


def cut(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """Consecutive pieces of X along an axis."""
    sizes = [part.shape[attrs["axis"]] for part in outs["Out"]]
    return pieces(ins["X"], sizes, attrs["axis"])


def joined_from(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """The pieces of Out_grad that came from each of X."""
    return pieces(ins["Out_grad"], [x.shape[attrs["axis"]] for x in ins["X"]], attrs["axis"])


def pieces(x: Buffer, sizes: Sequence[int], axis: int) -> list[Buffer]:
    """Pieces of these sizes along an axis, one behind the other."""
    axis %= x.ndim
    starts = [0, *itertools.accumulate(sizes)]
    return [
        x.spread((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.strides, start * x.strides[axis] if size else 0)
        for start, size in zip(starts, sizes, strict=False)
    ]


def joined(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """The place of each X in Out, one behind the other along an axis."""
    return pieces(outs["Out"], [x.shape[attrs["axis"]] for x in ins["X"]], attrs["axis"])


def stacked(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """The place of each X in Out, along a new axis in which it has size 1."""
    return pieces(outs["Out"], [1] * len(ins["X"]), attrs["axis"])


def turned_back(ins: Slots, outs: Slots, attrs: Slots) -> list[Buffer]:
    """Out with its axes turned back: the place of the input of a transpose."""
    out = outs["Out"]
    perm = [axis % out.ndim for axis in attrs["perm"]]
    places = [perm.index(axis) for axis in range(out.ndim)]
    return [out.spread([out.shape[p] for p in places], [out.strides[p] for p in places])]


def shown_from(opdef: Any, there: Buffer, shape: Sequence[int], attrs: Slots) -> Buffer | None:
    """Where the input of a view lies, if its only output lies there; None where that is not known."""
    if opdef.joins is not None:
        return opdef.joins({}, {"Out": there}, attrs)[0]
    return reshaped(there, shape) if opdef.shows is whole else None


def reshaped(x: Buffer, shape: Sequence[int]) -> Buffer | None:
    """The same elements in another shape; None where strides cannot say where they lie."""
    if tuple(shape) == x.shape:
        return x
    if x.steps is None:
        return x.view(shape)
    runs = _runs(x)
    strides, left, step = [], 1, 1
    for extent in reversed(shape):
        if extent > 1 and left == 1:
            left, step = runs.pop()
        if left % extent:
            return None
        strides.append(step)
        left, step = left // extent, step * extent
    return x.spread(shape, strides[::-1])


def in_rows(x: Buffer) -> tuple[int, int] | None:
    """(elements of a row, from one row to the next) of a Buffer with strides; None without such numbers of 31 bits."""
    runs = _runs(x)
    if runs[-1][1] != 1:
        runs.append((1, 1))
    return (runs[1][0], runs[0][1]) if len(runs) == 2 and runs[0][1] < 2**31 else None


def _runs(x: Buffer) -> list[tuple[int, int]]:
    """(places, step) of axes that are one, outermost first."""
    runs: list[tuple[int, int]] = []
    for extent, step in zip(x.shape, x.strides, strict=True):
        if extent > 1 and runs and runs[-1][1] == extent * step:
            runs[-1] = runs[-1][0] * extent, step
        elif extent > 1:
            runs.append((extent, step))
    return runs


def unfit(x: Buffer) -> str | None:
    """Why kernels that read rows by strides, in pieces of 16 bytes, cannot read `x` where it lies."""
    *outer, last = x.strides
    if last != 1:
        return f"elements of its rows lie {last} apart"
    size = x.dtype.itemsize
    if any(step <= 0 for step in outer):
        return "its rows run backwards"
    odd = next((step * size for step in outer if step * size % PIECE), None)
    if odd is not None:
        return f"its rows are {odd} bytes apart, which is no multiple of {PIECE}"
    if x.alignment % PIECE:
        return f"it begins {begins(x) * size} bytes behind what it is part of, which is no multiple of {PIECE}"
    return None
