"""What happens to gradients before the updates read them: checks, grad_scale and clipping."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from minigraph.errors import ProgramError, require
from minigraph.errors.kinds import FOREIGN, NO_GRADIENT
from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder
from minigraph.types import float32

from .settings import LOW_PRECISION

ParamsGrads = list[tuple[Any, Any]]


def trainable(chosen: Sequence[Any], loss: Variable) -> list[Variable]:
    """The parameters of a list of parameters and names that may be trained; all must belong to the loss's program."""
    params = [p if isinstance(p, Variable) else loss.block.var(p) for p in chosen]
    for p in params:
        require(
            p.program is loss.program, f"parameter {p.name} belongs to program {p.program.name}, the loss to"
            f" {loss.program.name}", FOREIGN, "a name stands for the parameter of the loss's program",
        )  # fmt: skip
        _check_parameter(p)
    return [p for p in params if not p.stop_gradient]


def given_gradients(params_grads: Sequence[tuple[Any, Any]]) -> ParamsGrads:
    """The pairs that have a gradient, by the parameters' names: each parameter once, all of one program."""
    for p, _ in params_grads:
        _check_parameter(p)
    pairs = sorted(((p, g) for p, g in params_grads if g is not None), key=lambda pair: pair[0]._name)
    require(pairs, "there is no gradient to apply", NO_GRADIENT)
    params = [p for p, _ in pairs]
    for p, following in itertools.pairwise(params):
        if p is following:
            raise ProgramError(f"parameter {p.name} has two gradients")
    first = params[0]
    for p in params:
        if p.block is not first.block:
            raise FOREIGN(
                f"parameters {first.name} and {p.name} belong to two programs, {first.program.name} and"
                f" {p.program.name}"
            )
    return pairs


def scaled(pairs: ParamsGrads, factor: Variable) -> ParamsGrads:
    """Gradients times a number on the device, each in its own type; those of 16 bits are rounded once, behind it."""
    g = Builder(pairs[0][1].block)
    scale = g.reshape(factor, shape=())
    typed = {scale.dtype: scale}

    def times(grad: Variable) -> Variable:
        wide = float32 if grad.dtype in LOW_PRECISION else grad.dtype
        if wide not in typed:
            typed[wide] = g.cast(scale, dtype=wide)
        if wide == grad.dtype:
            return g.elementwise_mul(grad, typed[wide])
        return g.cast(g.elementwise_mul(g.cast(grad, dtype=wide), typed[wide]), dtype=grad.dtype)

    return [(p, times(grad)) for p, grad in pairs]


def clipped(pairs: ParamsGrads, clip_of: Callable[[Parameter], Any]) -> ParamsGrads:
    """Gradients clipped by the rule of their parameter; those that share a rule are clipped together."""
    rules = [clip_of(p) for p, _ in pairs]
    clipped_grads: dict[str, Any] = {}
    for rule in dict.fromkeys(id(rule) for rule in rules):
        part = [pair for pair, r in zip(pairs, rules, strict=True) if id(r) == rule]
        clip = next(r for r in rules if id(r) == rule)
        clipped_grads |= {p._name: grad for p, grad in (clip(part) if clip is not None else part)}
    return [(p, clipped_grads[p._name]) for p, _ in pairs]


def _check_parameter(value: Any) -> None:
    if not isinstance(value, Parameter):
        raise ProgramError(f"{value} is no parameter, an optimizer cannot update it")
