"""The smooth form of relu, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.opdef import op

from .activation import one_plus_exp_minus
from .elementwise import destination, draw
from .unary import SHAPES, infer_float

FORMS: tuple[dict[str, Any], ...] = ({}, {"beta": 2.5}, {"threshold": 1.25}, {"beta": 0.5, "threshold": 0.4})


def _straight(attrs):
    """C++ of the condition under which softplus is X itself, with a ? after it."""
    return "" if attrs["threshold"] is None else "beta * X > threshold ? "


def _smooth(attrs):
    """C++ of softplus."""
    if attrs["beta"] == 1:
        smooth = "(X > C(0) ? X : C(0)) + log1p(exp(-fabs(X)))"
    else:
        smooth = "((beta * X > C(0) ? beta * X : C(0)) + log1p(exp(-fabs(beta * X)))) / beta"
    return f"{_straight(attrs)}X : {smooth}" if _straight(attrs) else smooth


def _slope(attrs):
    """C++ of softplus_grad."""
    slope = f"Out_grad / (C(1) + exp(-{'X' if attrs['beta'] == 1 else 'beta * X'}))"
    return f"{_straight(attrs)}Out_grad : {slope}" if _straight(attrs) else slope


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda=_smooth)
def softplus(X, *, beta: float = 1.0, threshold: float | None = None, out=None):
    """log(1 + exp(beta * X)) / beta; X itself where beta * X > threshold."""
    zero = X.dtype.type(0)
    if beta == 1 and threshold is None:
        return np.logaddexp(X, zero, out=out[0] if out else None)
    z = X * X.dtype.type(beta)
    smooth = np.logaddexp(z, zero) / X.dtype.type(beta)
    return smooth if threshold is None else np.where(z > threshold, X, smooth)


@softplus.infer
def _(X, *, beta, threshold):
    require(beta != 0, "beta must not be 0", AttrError)
    return infer_float(X)


@softplus.samples
def _(rng):
    for attrs in FORMS:
        for shape in SHAPES:
            yield (draw(rng, shape),), attrs


@op("X_grad", of=softplus, traits={"elementwise"}, cuda=_slope)
def softplus_grad(X, Out_grad, *, beta: float = 1.0, threshold: float | None = None, out=None):
    """Out_grad * sigmoid(beta * X); Out_grad itself where beta * X > threshold."""
    z = X if beta == 1 else X * X.dtype.type(beta)
    s = one_plus_exp_minus(z, destination(out, X))
    np.divide(Out_grad, s, out=s)
    if threshold is not None:
        np.copyto(s, Out_grad, where=z > threshold)
    return s


@softplus_grad.grad
def _(g, X, Out_grad, X_grad_grad, *, beta, threshold):
    product = g.scale(g.elementwise_mul(Out_grad, X_grad_grad), scale=beta)
    z = g.scale(X, scale=beta)
    bend = g.sigmoid_grad(g.sigmoid(z), product)
    if threshold is not None:
        border = g.fill_constant(shape=(), value=threshold, dtype=X.dtype)
        bend = g.where(g.greater_than(z, border), g.fill_any_like(X, value=0.0), bend)
    return bend, g.softplus_grad(X, X_grad_grad, beta=beta, threshold=threshold)
