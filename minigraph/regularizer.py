"""Weight decay through the gradient: g + c * p (L2) or g + c * sign(p) (L1).

Given to an optimizer as `weight_decay`, or to one parameter as `ParamAttr(regularizer=...)`, which
beats the optimizer's. AdamW's own `weight_decay` is another thing: it shrinks the parameter itself.
"""

from __future__ import annotations

import numbers
from typing import Any, ClassVar

from minigraph.program.builder import Builder
from minigraph.program.whole.settled import Settled

from .errors import AttrError, require
from .program import Variable


def _coefficient(name: str, value: Any) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    coefficient = float(value) if number else -1.0
    require(0 <= coefficient < float("inf"), f"{name} must be a number >= 0, is {value!r}", AttrError)
    return coefficient


class WeightDecayRegularizer(Settled):
    """Base: a coefficient, and the term that is added to a gradient."""

    settings: ClassVar[Any] = {"coeff": _coefficient}

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = coeff

    def __call__(self, param: Variable, grad: Variable, block: Any = None) -> Variable:
        """Append and return the regularized gradient."""
        if self.coeff == 0:
            return grad
        g = Builder(grad.block)
        return g.sum([grad, self.term(g, param)])

    def term(self, g: Builder, param: Variable) -> Variable:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.coeff})"


class L2Decay(WeightDecayRegularizer):
    """g + coeff * p, the gradient of loss + coeff / 2 * sum(p^2)."""

    def term(self, g: Builder, param: Variable) -> Variable:
        return g.scale(param, scale=self.coeff)


class L1Decay(WeightDecayRegularizer):
    """g + coeff * sign(p), the gradient of loss + coeff * sum(|p|)."""

    def term(self, g: Builder, param: Variable) -> Variable:
        return g.scale(g.sign(param), scale=self.coeff)
