"""Gradient clipping: given to an optimizer as `grad_clip`, it comes before weight decay.

Parameters with need_clip=False keep their gradients and do not count in the global norm.
"""

from __future__ import annotations

import numbers
from typing import Any, ClassVar

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of
from minigraph.program.whole.settled import Settled

ParamsGrads = list[tuple[Any, Variable]]


def _number(name: str, value: Any) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(number and value == value, f"{name} must be a number, is {value!r}", AttrError)
    return float(value)


def _positive(name: str, value: Any) -> float:
    require(0 < _number(name, value) < float("inf"), f"{name} must be a number > 0, is {value!r}", AttrError)
    return float(value)


class ClipGradBase(Settled):
    """Base: `clip(params_grads)` appends operators and returns [(parameter, clipped gradient)]."""

    def __call__(self, params_grads: ParamsGrads) -> ParamsGrads:
        pairs = [(p, grad) for p, grad in params_grads if grad is not None]
        wanted = [grad for p, grad in pairs if getattr(p, "need_clip", True)]
        if not wanted:
            return pairs
        clipped = iter(self.clip(Builder(wanted[0].block), wanted))
        return [(p, next(clipped) if getattr(p, "need_clip", True) else grad) for p, grad in pairs]

    def clip(self, g: Builder, grads: list[Variable]) -> list[Variable]:
        raise NotImplementedError


class ClipGradByValue(ClipGradBase):
    """Each element limited to [min, max]; min is -max where it is not given."""

    settings: ClassVar[Any] = {"max": _number, "min": _number}

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = max
        self.min = min if min is not None else -self.max
        require(min is not None or self.max > 0, f"max must be > 0 where min is not given, is {max!r}", AttrError)
        require(self.min <= self.max, f"min {self.min} is greater than max {self.max}", AttrError)

    def clip(self, g: Builder, grads: list[Variable]) -> list[Variable]:
        return [g.clip(grad, min=self.min, max=self.max) for grad in grads]

    def __repr__(self) -> str:
        return f"ClipGradByValue(max={self.max}, min={self.min})"


class ClipGradByNorm(ClipGradBase):
    """Each gradient times clip_norm / max(its L2 norm, clip_norm)."""

    settings: ClassVar[Any] = {"clip_norm": _positive}

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def clip(self, g: Builder, grads: list[Variable]) -> list[Variable]:
        return [_times(g, grad, _factor(g, g.squared_l2_norm(grad), self.clip_norm)) for grad in grads]

    def __repr__(self) -> str:
        return f"ClipGradByNorm({self.clip_norm})"


class ClipGradByGlobalNorm(ClipGradBase):
    """All gradients times clip_norm / max(n, clip_norm), n the L2 norm of all gradients together.

    group_name, auto_skip_clip are accepted as in Paddle; all parameters of one optimizer form one
    group, and the factor is always applied (it is 1 where the norm is small).
    """

    settings: ClassVar[Any] = {"clip_norm": _positive}

    def __init__(self, clip_norm: float, group_name: str = "default_group", auto_skip_clip: bool = False) -> None:
        self.clip_norm = clip_norm
        self.group_name, self.auto_skip_clip = group_name, auto_skip_clip

    def clip(self, g: Builder, grads: list[Variable]) -> list[Variable]:
        squares = [g.squared_l2_norm(grad) for grad in grads]
        widest = np.result_type(*{s.dtype for s in squares})
        total = g.sum([_as_type(g, s, widest) for s in squares])
        factor = _factor(g, total, self.clip_norm)
        return [_times(g, grad, factor) for grad in grads]

    def __repr__(self) -> str:
        return f"ClipGradByGlobalNorm({self.clip_norm})"


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """x times max_norm / max(n, max_norm), n its L2 norm."""
    g, limit = builder_of(x), _positive("max_norm", max_norm)
    return g.elementwise_mul(x, _as_type(g, _factor(g, g.squared_l2_norm(x), limit), x.dtype), name=name)


def _factor(g: Builder, squared_norm: Variable, clip_norm: float) -> Variable:
    """clip_norm / max(norm, clip_norm)"""
    limit = g.fill_constant(shape=(), value=clip_norm, dtype=squared_norm.dtype)
    return g.elementwise_div(limit, g.elementwise_max(g.sqrt(squared_norm), limit))


def _times(g: Builder, grad: Variable, factor: Variable) -> Variable:
    return g.elementwise_mul(grad, _as_type(g, factor, grad.dtype))


def _as_type(g: Builder, x: Variable, dtype: Any) -> Variable:
    return x if x.dtype == dtype else g.cast(x, dtype=dtype)
