"""Constants, copies and sums: bind functions of minigraph/ops/movement/creation.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.record.binder import Binder, Fill, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.types import bfloat16, float16, float32

from .movement import BITS, WORDS, bits

SUMMANDS = 16  # read by one kernel
VALUES = 64  # kernel arguments that hold values of a list

Slots = Mapping[str, Any]


def bind_fill(binder: Binder, out: Buffer, value: Any) -> None:
    """Every element of `out` becomes `value`, converted on the host as NumPy does."""
    pattern = np.full((), value, out.dtype).tobytes()
    if out.size == 0:
        return
    if len(set(pattern)) == 1:
        binder.calls.append(Fill(out, pattern[0]))
        return
    number = int(np.frombuffer(pattern, BITS[len(pattern)])[0])
    bind_pointwise(binder, {"Out": bits(out)}, {}, {"Out": "value"}, {"value": number})


def fill_constant(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = value"""
    bind_fill(binder, outs["Out"], attrs["value"])


fill_any_like = fill_constant


def assign_value(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the numbers of a list, which travel as kernel arguments."""
    out = outs["Out"]
    size = out.dtype.itemsize
    values = np.array(attrs["values"], out.dtype).view(BITS[size]).astype(np.int64)
    for start in range(0, len(values), VALUES):
        part = values[start : start + VALUES]
        shown = out.view((len(part),), BITS[size], start * size)
        binder.launch_source(_values_source(size, len(part)), "assign_value", 1, VALUES, shown, *part)


def shape(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the sizes of X, which are known by now."""
    assign_value(binder, ins, outs, {"values": ins["X"].shape})


def _values_source(size: int, count: int) -> str:
    """A kernel that writes `count` words of `size` bytes given as arguments."""
    parameters = ", ".join(f"i64 v{i}" for i in range(count))
    stores = " ".join(f"if (threadIdx.x == {i}) out[{i}] = W(v{i});" for i in range(count))
    return (
        f"{read_source('record/prelude.cuh')}typedef {WORDS[size]} W;\n"
        f'extern "C" __global__ void __launch_bounds__({VALUES}) assign_value(W* out, {parameters})\n{{ {stores} }}\n'
    )


def arange(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = start, start + step, ..."""
    out = outs["Out"]
    whole = all(isinstance(attrs[name], int) for name in ("start", "step"))
    number = i64 if whole else np.float64
    arithmetic = {"A": "i64", "ADD(a, b)": "((a) + (b))", "MUL(a, b)": "((a) * (b))"}
    rounded = {"A": "double", "ADD(a, b)": "__dadd_rn(a, b)", "MUL(a, b)": "__dmul_rn(a, b)"}
    binder.launch(
        "movement/creation.cu", "arange", blocks_for(out.size, 256), 256, out, i64(out.size),
        number(attrs["start"]), number(attrs["step"]),
        defines={"T": CUDA_TYPES[out.dtype], **(arithmetic if whole else rounded)},
    )  # fmt: skip


arange_like = arange


def assign(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X"""
    binder.copy(outs["Out"], ins["X"])


def sum(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X[0] + X[1] + ..., 16-bit floats added in float32 and rounded once."""
    xs, out = list(ins["X"]), outs["Out"]
    if len(xs) == 1:
        return binder.copy(out, xs[0])
    total, end = xs[:SUMMANDS], SUMMANDS
    while end < len(xs):
        partial = binder.scratch(out.shape, float32 if out.dtype in (float16, bfloat16) else out.dtype)
        _add(binder, partial, total)
        total, end = [partial, *xs[end : end + SUMMANDS - 1]], end + SUMMANDS - 1
    return _add(binder, out, total)


def _add(binder: Binder, out: Buffer, xs: Sequence[Buffer]) -> None:
    named = {f"X{i}": x for i, x in enumerate(xs)}
    bind_pointwise(binder, {"Out": out}, named, {"Out": " + ".join(named)})
