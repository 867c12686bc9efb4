"""Activations of two pieces that meet, and x / (1 + |x|): elu with its relatives, hardtanh, softsign."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.opdef import op

from .elementwise import draw, masked
from .unary import SHAPES, infer_float, signed

FORMS: tuple[dict[str, Any], ...] = ({}, {"alpha": 0.7}, {"alpha": 1.7, "scale": 1.1}, {"input_scale": 0.5})


@op(traits={"elementwise"}, cuda="X > C(0) ? scale * X : scale * alpha * expm1(input_scale * X)")
def elu(X, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0):
    """scale * X where X > 0, else scale * alpha * (exp(input_scale * X) - 1).

    With input_scale = 1 / alpha it is celu, with Klambauer's scale and alpha selu.
    Source: Clevert, Unterthiner and Hochreiter, Exponential Linear Units, arXiv:1511.07289.
    """
    c = X.dtype.type
    low = c(scale * alpha) * np.expm1(c(input_scale) * np.minimum(X, c(0)))
    return np.where(X > 0, c(scale) * X, low)


elu.infer(infer_float)


@elu.samples
def _(rng):
    for attrs in FORMS:
        for shape in SHAPES:
            yield (draw(rng, shape),), attrs


@op("X_grad", of=elu, traits={"elementwise"},
    cuda="Out_grad * (X > C(0) ? C(scale) : scale * alpha * input_scale * exp(input_scale * X))")  # fmt: skip
def elu_grad(X, Out_grad, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0):
    """Out_grad * scale where X > 0, else Out_grad * scale * alpha * input_scale * exp(input_scale * X)."""
    c = X.dtype.type
    low = c(scale * alpha * input_scale) * np.exp(c(input_scale) * np.minimum(X, c(0)))
    return Out_grad * np.where(X > 0, c(scale), low)


@elu_grad.grad
def _(g, X, Out_grad, X_grad_grad, *, alpha, scale, input_scale):
    """The second derivative is 0 where X > 0: there the two terms below are the same."""
    attrs = {"alpha": alpha, "scale": scale, "input_scale": input_scale}
    product = g.elementwise_mul(Out_grad, X_grad_grad)
    line = g.scale(g.relu_grad(X, product), scale=scale)
    bend = g.scale(g.elementwise_sub(g.elu_grad(X, product, **attrs), line), scale=input_scale)
    return bend, g.elu_grad(X, X_grad_grad, **attrs)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="X < min ? C(min) : X > max ? C(max) : X")
def hardtanh(X, *, min: float = -1.0, max: float = 1.0, out=None):
    """X brought into [min, max], NaN stays NaN. Unlike clip's its slope is 0 on the border, as relu's is at 0."""
    return np.clip(X, X.dtype.type(min), X.dtype.type(max), out=out[0] if out else None)


@hardtanh.infer
def _(X, *, min, max):
    require(min <= max, f"min {min} is larger than max {max}", AttrError)
    return infer_float(X)


@hardtanh.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {}
        yield (draw(rng, shape),), {"min": 0.0, "max": 6.0}


@op("X_grad", of=hardtanh, traits={"elementwise"}, inplace={"X_grad": "Out_grad"},
    cuda="X > min && X < max ? Out_grad : C(0)")  # fmt: skip
def hardtanh_grad(X, Out_grad, *, min: float = -1.0, max: float = 1.0, out=None):
    """Out_grad where min < X < max, else 0."""
    inside = (X.dtype.type(min) < X) & (X.dtype.type(max) > X)
    return masked(Out_grad, inside, out[0] if out else None)


@hardtanh_grad.grad
def _(g, X, X_grad_grad, *, min, max):
    return None, g.hardtanh_grad(X, X_grad_grad, min=min, max=max)


@op(traits={"elementwise"}, cuda="X / (C(1) + fabs(X))")
def softsign(X):
    """X / (1 + |X|)"""
    return X / (1 + np.abs(X))


softsign.infer(infer_float)


@softsign.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, g.square(g.scale(g.abs(X), bias=1.0)))


softsign.samples(signed)
