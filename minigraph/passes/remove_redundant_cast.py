"""remove_redundant_cast: a cast to a wider type and on is one cast, or none.

    cast(cast(X, wide), other)       ->  cast(X, other)    where `wide` holds all values of X's type
    cast(cast(X, wide), X's type)    ->  X
    cast(X, X's type)                ->  X

Only exact pairs go: float32 to float64 and back is nothing; float32 to bfloat16 and back rounds, so
it stays. Casts from floats to ints stay too: a float outside the int's range has no defined result,
and by another way it may have another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.ir.graph import Graph, OpNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.pairs import combine_pairs
from minigraph.passes.engine.rule import refuse_unless
from minigraph.types import FLOATS, INTS, bfloat16, bool_, float16, float32, float64

FORMATS = {float64: (53, 1023), float32: (24, 127), float16: (11, 15), bfloat16: (8, 127)}  # digits, largest exponent


def remove_redundant_cast(graph: Graph, report: PassReport) -> int:
    """Apply the equations of this file."""
    return combine_pairs(graph, report, "cast", "Casts", _combine, _is_identity)


def holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether each value of `narrow` is one of `wide`."""
    if wide == narrow or narrow == bool_:
        return True
    if wide == bool_ or (wide in INTS and narrow in FLOATS):
        return False
    if narrow in FLOATS:
        return all(a >= b for a, b in zip(FORMATS[wide], FORMATS[narrow], strict=True))
    bounds = np.iinfo(narrow)
    if wide in FLOATS:
        return max(bounds.max, -bounds.min - 1).bit_length() <= FORMATS[wide][0]
    return np.iinfo(wide).min <= bounds.min and bounds.max <= np.iinfo(wide).max


def _combine(first: OpNode, second: OpNode) -> dict[str, Any]:
    start, middle, end = first.inputs["X"][0].type.dtype, first.attrs["dtype"], second.attrs["dtype"]
    refuse_unless(holds(middle, start), f"{middle} does not hold all values of {start}, the first cast rounds")
    refuse_unless(
        middle not in FLOATS or end not in INTS or holds(end, start),
        f"{start} may hold values that {end} does not, what {middle} makes of them is not defined",
    )
    return {"dtype": end}


def _is_identity(first: OpNode, attrs: dict[str, Any]) -> bool:
    return first.inputs["X"][0].type.dtype == attrs["dtype"]
