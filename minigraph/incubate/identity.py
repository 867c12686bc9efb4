"""identity_loss: says which value is the loss, where that is computed by hand."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.tensor import assign, mean, sum
from minigraph.tensor.arguments import variable

REDUCTIONS = {"sum": sum, "mean": mean, "none": assign}
NUMBERED = dict(enumerate(REDUCTIONS))  # Paddle's other spelling


def identity_loss(x: Variable, reduction: Any = "none") -> Variable:
    """x, its sum or its mean: `reduction` is none, sum or mean, or 2, 0 or 1."""
    x = variable(x, "identity_loss")
    name = NUMBERED.get(reduction, reduction) if isinstance(reduction, int) else str(reduction).lower()
    require(name in REDUCTIONS, f"reduction must be sum, mean or none, is {reduction!r}", AttrError)
    return REDUCTIONS[str(name)](x)
