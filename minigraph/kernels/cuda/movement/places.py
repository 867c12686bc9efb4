"""Places of coordinates in flat arrays, and who writes a place last: bind functions of ops/movement/places.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder, Fill, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

THREADS = 256
AXES = 8  # what places.cu takes

Slots = Mapping[str, Any]


def _steps(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _launch(binder: Binder, function: str, index: Buffer, out: Buffer, items: int, *columns: Sequence[int]) -> None:
    """Launch a thread for each of so many items; `columns` hold a number for each axis."""
    numbers = [i64(n) for column in columns for n in (*column, *[1] * (AXES - len(column)))]
    binder.launch(
        "movement/places.cu", function, blocks_for(items, THREADS), THREADS, index, out, i64(items), *numbers,
        *binder.report("out of range of the axis that it counts"),
        defines={"INDEX": CUDA_TYPES[index.dtype], "AXES": len(columns[0]), function.upper(): 1},
    )  # fmt: skip


def flat_index(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the places of coordinates."""
    x, index, out = ins["X"], ins["Index"], outs["Out"]
    sizes = x.shape[: index.shape[-1]]
    _launch(binder, "flat", index, out, out.size, sizes, _steps(sizes))


def flat_index_along(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the places of elements with another coordinate of one axis."""
    x, index, out = ins["X"], ins["Index"], outs["Out"]
    axis, steps = attrs["axis"] % x.ndim, _steps(x.shape)
    others = [0 if other == axis else step for other, step in enumerate(steps)]
    _launch(binder, "along", index, out, out.size, index.shape, others, [x.shape[axis], steps[axis]])


def last_writer(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the last place of each value of Index, -1 where it is not there."""
    index, out = ins["Index"], outs["Out"]
    if out.nbytes:
        binder.calls.append(Fill(out, 0xFF))
    _launch(binder, "last", index, out, index.size, [out.size])
