"""Elementary operations on lists of arrays on a GPU: one launch for a list (ops/optimizer/foreach.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.tensors import Tensors, chosen_mode, launch_over
from minigraph.types import bool_

CHUNK = 2048  # elements of a block
PACK_BYTES = 16

Slots = Mapping[str, Any]


def _record(
    binder: Binder, xs: list[Buffer], outs: list[Buffer], ys: list[Buffer] | None, result: str,
    number: float = 0.0, flag: Buffer | None = None,
) -> None:  # fmt: skip
    """outs[i] = result of x and y; `ys` hold as many elements as xs, or one each, or stand for `number`."""
    for arrays in (True, False):  # tensors whose partner is an array, then those whose partner is one number
        part = [i for i, x in enumerate(xs) if x.size and arrays == (ys is not None and ys[i].size == x.size != 1)]
        if not part:
            continue
        columns = [[xs[i] for i in part], [outs[i] for i in part]]
        columns += [[ys[i] for i in part]] if ys is not None else []
        widest = max(b.dtype.itemsize for column in columns for b in column[:1])
        other = ys[part[0]] if ys is not None else xs[0]
        defines = {
            "X": CUDA_TYPES[xs[0].dtype], "R": CUDA_TYPES[outs[0].dtype], "Y": CUDA_TYPES[other.dtype],
            "C": compute_type(xs[0].dtype), "PACK": PACK_BYTES // widest, "RESULT": result,
        }  # fmt: skip
        defines |= {} if ys is None else {"ARRAY": 1} if arrays else {"ONE": 1}
        defines |= {"FLAG": 1} if flag is not None else {}
        tensors = Tensors(columns, [xs[i].size for i in part])
        unused = Buffer((1,), bool_, ptr=0)
        guard, fault = binder.guard(columns[1])
        mode = chosen_mode(binder, len(part), len(columns))
        launch_over(
            binder, "optimizer/foreach.cu", "foreach", tensors, mode, CHUNK, np.float64(number), flag or unused,
            *fault, defines=defines | guard,
        )  # fmt: skip


def store(binder: Binder, pairs: Sequence[tuple[Buffer, Buffer]]) -> None:
    """(to, from): copies into arrays of a Scope, unless the run has a fault."""
    for dtype in dict.fromkeys(to.dtype for to, _ in pairs):
        some = [pair for pair in pairs if pair[0].dtype == dtype]
        _record(binder, [source for _, source in some], [to for to, _ in some], None, "x")


def _binary(function: str) -> Callable[..., None]:
    def bind(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
        xs, given = ins["X"], ins["Y"] or None
        ys = None if given is None else [given[i % len(given)] for i in range(len(xs))]
        result = f"{function}(y, x)" if attrs["reverse"] else f"{function}(x, y)"
        _record(binder, xs, outs["Out"], ys, result, attrs["y"])

    return bind


def _unary(function: str) -> Callable[..., None]:
    def bind(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
        _record(binder, ins["X"], outs["Out"], None, f"{function}(x)")

    return bind


foreach_add, foreach_sub, foreach_mul = _binary("add"), _binary("subtract"), _binary("multiply")
foreach_div, foreach_max = _binary("divide"), _binary("maximum")
foreach_sqrt, foreach_abs, foreach_sign = _unary("root"), _unary("absolute"), _unary("sign")


def foreach_cast(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Each array in another float type."""
    _record(binder, ins["X"], outs["Out"], None, "x")


def foreach_where(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """X where the flag is true, Y otherwise."""
    _record(binder, ins["X"], outs["Out"], ins["Y"], "condition ? x : y", flag=ins["Condition"])
