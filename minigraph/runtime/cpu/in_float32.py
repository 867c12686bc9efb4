"""16-bit floats are storage on a CPU: a step computes in float32 and rounds its results once, into its buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.one_piece import rounded
from minigraph.runtime.memory import Life
from minigraph.runtime.schedule import flat
from minigraph.types import TensorType, bfloat16, float16, float32

from .memory import AddressRange

LOW_PRECISION = frozenset({float16, bfloat16})


class WideInputs:
    """Memory for the 16-bit operands of one step at a time, as float32: each lies behind the one before.

    Memory from the system would be given back after each step, and each page of it be a fault in the next.
    """

    def __init__(self) -> None:
        self.nbytes = self.end = 0
        self.memory = np.empty(0, np.uint8)

    def make_room(self, types: Sequence[TensorType]) -> None:
        """Let a step with operands of these types fit."""
        self.nbytes = max(self.nbytes, sum(rounded(4 * t.size) for t in types if t.dtype in LOW_PRECISION))

    def place(self, arena: AddressRange) -> None:
        """Lie in the range that `arena` has for scratch."""
        (self.memory,), _ = arena.scratch.buffers([Life(self.nbytes, 0, 0)])

    def of(self, x: np.ndarray) -> np.ndarray:
        """An operand as float32."""
        nbytes = 4 * math.prod(x.shape)
        wide = self.memory[self.end : self.end + nbytes].view(float32).reshape(x.shape)
        self.end += rounded(nbytes)
        np.copyto(wide, x)
        return wide


def in_float32(kernel: Callable[..., Any], types: list[Any], writes: bool, inputs: WideInputs) -> Callable[..., Any]:
    """A kernel for 16-bit operands or results of `types`, of one that computes in float32.

    writes   whether the kernel takes `out`: results of other types are its own business then
    """

    def up(x: Any) -> Any:
        if isinstance(x, list):
            return [up(v) for v in x]
        return inputs.of(x) if x is not None and x.dtype in LOW_PRECISION else x

    def own(t: Any, to: Any) -> Any:
        if isinstance(t, list):
            return [own(*pair) for pair in zip(t, to, strict=True)]
        return to if t is not None and t.dtype not in LOW_PRECISION else None

    def down(x: Any, t: Any, to: Any) -> Any:
        if isinstance(t, list):
            return [down(*each) for each in zip(x, t, to, strict=True)]
        if t is None:
            return None
        if to is None or (writes and t.dtype not in LOW_PRECISION):
            return np.asarray(x).astype(t.dtype, copy=False)
        np.copyto(to, x, casting="unsafe")  # all is read by now, whatever it is written over
        return to

    def run(*args: Any, out: Sequence[Any], **attrs: Any) -> Any:
        inputs.end = 0
        if writes:
            attrs["out"] = tuple(own(*pair) for pair in zip(types, out, strict=True))
        results = kernel(*[up(a) for a in args], **attrs)
        if len(types) == 1:
            return down(results, types[0], out[0])
        return tuple(down(*each) for each in zip(results, types, out, strict=True))

    if hasattr(kernel, "may_overwrite"):
        run.may_overwrite = partial(_may_overwrite, kernel.may_overwrite, flat(types))  # type: ignore[attr-defined]
    return run


def _may_overwrite(
    kernel: Callable[..., list[list[int]]], types: Sequence[TensorType], X: list[TensorType], *more: Any, **attrs: Any
) -> list[Sequence[int]]:
    """Over which of X each result may be written: of 16 bits over all, they have been read by then."""
    wide = [[t.with_dtype(float32) if t.dtype in LOW_PRECISION else t for t in s] if s else s for s in (X, *more)]
    found = kernel(*wide, **attrs) or [[]] * len(types)
    return [range(len(X)) if t.dtype in LOW_PRECISION else own for t, own in zip(types, found, strict=True)]
