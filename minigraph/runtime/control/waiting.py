"""The blocks of operators that wait for numbers, kept for the numbers and shapes that came last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.program import Operator
from minigraph.program.blocks.deferred import block_of, check_results, gradient_block, numbers_of
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.types import TensorType, type_of

KEPT = 64  # blocks of one operator


class WaitingBlocks:
    """Blocks of the operators `deferred` and `deferred_grad` of one program.

    dropped   is called with a block that had to make room
    """

    def __init__(self, dropped: Callable[[SubProgram], Any]) -> None:
        self.dropped = dropped
        self.blocks: dict[int, OrderedDict[Any, SubProgram]] = {}  # by id of the operator

    def block(self, op: Operator, xs: Sequence[Any], numbers: Sequence[np.ndarray]) -> SubProgram:
        """The block of an operator for arrays of these shapes and for these numbers."""
        types = tuple(TensorType(tuple(x.shape), v.dtype) for x, v in zip(xs, op.inputs.get("X", ()), strict=True))
        key = types, tuple(a.tobytes() for a in numbers)  # 0.0 == -0.0, and NaN is not NaN
        known = self.blocks.setdefault(id(op), OrderedDict())
        block = known.get(key)
        if block is None:
            block = known[key] = _built(op, types, numbers_of(numbers))
            if len(known) > KEPT:
                self.dropped(known.popitem(last=False)[1])
        known.move_to_end(key)
        return block


def _built(op: Operator, types: Sequence[TensorType], numbers: tuple[Any, ...]) -> SubProgram:
    if op.type == "deferred_grad":
        return gradient_block(op.attrs, types, numbers, op.site)
    block = block_of(op.attrs, types, numbers, op.site)
    check_results(block, [type_of(t) for t in op.attrs["types"]])
    return block
