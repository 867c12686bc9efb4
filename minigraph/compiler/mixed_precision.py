"""Mixed precision of a Program and of its startup program, before its gradients exist."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.passes.engine.log import PassReport
from minigraph.passes.mixed_precision.lists import BLACK, ELSEWHERE, GRAY, PADDLES, WHITE
from minigraph.passes.mixed_precision.mixed_precision import MixedPrecision, gray_of
from minigraph.program import Program, Variable
from minigraph.program.builder import Builder
from minigraph.program.variable import WIDE_SUFFIX
from minigraph.types import DType, TensorType

from .rewrite import rewrite

__all__ = [
    "BLACK", "ELSEWHERE", "GRAY", "PADDLES", "WHITE", "MixedPrecision", "cast_program", "gray_of",
    "narrow_initial_values",
]  # fmt: skip


def cast_program(program: Program, facts: MixedPrecision) -> PassReport:
    """Apply mixed precision to `program` itself; names of parameters that have 16 bits then are in `facts.narrowed`."""
    (report,) = rewrite(program, [facts])
    return report


def narrow_initial_values(startup: Program, names: Iterable[str], half: DType) -> None:
    """Let a startup program fill these variables in 16 bits, by a cast of what its initializers give."""
    block = startup.global_block()
    for name in sorted(names):
        wide = block.vars.get(name)
        if wide is None or wide.dtype == half:
            continue
        wide.name, wide.persistable = name + WIDE_SUFFIX, False
        narrow: Variable = block.create_var(name, type=TensorType(wide.shape, half), persistable=True)
        narrow.stop_gradient = wide.stop_gradient
        Builder(block).cast(wide, dtype=half, out={"Out": narrow})
