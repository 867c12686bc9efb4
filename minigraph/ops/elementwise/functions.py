"""More functions of one operand: trigonometric and hyperbolic ones, their inverses, exponentials, whole parts."""

from __future__ import annotations

import math

import numpy as np

from .unary import SHAPES, function, signed, zeros


def _between(low: float, high: float):
    """Samples of all shapes with numbers in [low, high]."""

    def samples(rng):
        for shape in SHAPES:
            yield (np.asarray(rng.uniform(low, high, shape)),), {}

    return samples


def _below_one(g, X):
    """sqrt(1 - X^2)"""
    return g.sqrt(g.scale(g.square(X), scale=-1.0, bias=1.0))


_cosines = _between(-0.9, 0.9)
tan = function(
    "tan", np.tan, "tan(X), X in radians.",
    lambda g, Out, Out_grad: g.elementwise_mul(Out_grad, g.scale(g.square(Out), bias=1.0)), _between(-1.2, 1.2),
)  # fmt: skip
asin = function(
    "asin", np.arcsin, "The angle whose sine is X, in [-pi/2, pi/2]; NaN outside [-1, 1].",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, _below_one(g, X)), _cosines,
)  # fmt: skip
acos = function(
    "acos", np.arccos, "The angle whose cosine is X, in [0, pi]; NaN outside [-1, 1].",
    lambda g, X, Out_grad: g.scale(g.elementwise_div(Out_grad, _below_one(g, X)), scale=-1.0), _cosines,
)  # fmt: skip
atan = function(
    "atan", np.arctan, "The angle in (-pi/2, pi/2) whose tangent is X.",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, g.scale(g.square(X), bias=1.0)),
)  # fmt: skip
sinh = function(
    "sinh", np.sinh, "(e^X - e^-X) / 2", lambda g, X, Out_grad: g.elementwise_mul(Out_grad, g.cosh(X))
)
cosh = function(
    "cosh", np.cosh, "(e^X + e^-X) / 2", lambda g, X, Out_grad: g.elementwise_mul(Out_grad, g.sinh(X))
)
asinh = function(
    "asinh", np.arcsinh, "The number whose sinh is X.",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, g.sqrt(g.scale(g.square(X), bias=1.0))),
)  # fmt: skip
acosh = function(
    "acosh", np.arccosh, "The number >= 0 whose cosh is X; NaN where X < 1.",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, g.sqrt(g.scale(g.square(X), bias=-1.0))), _between(1.2, 3.0),
)  # fmt: skip
atanh = function(
    "atanh", np.arctanh, "The number whose tanh is X; NaN outside [-1, 1].",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, g.scale(g.square(X), scale=-1.0, bias=1.0)), _cosines,
)  # fmt: skip
expm1 = function(
    "expm1", np.expm1, "e^X - 1, accurate near 0.",
    lambda g, Out, Out_grad: g.elementwise_mul(Out_grad, g.scale(Out, bias=1.0)),
)  # fmt: skip
log2 = function(
    "log2", np.log2, "The logarithm of X to base 2; NaN where X < 0.",
    lambda g, X, Out_grad: g.scale(g.elementwise_div(Out_grad, X), scale=1 / math.log(2)), _between(0.5, 2.0),
)  # fmt: skip
log10 = function(
    "log10", np.log10, "The logarithm of X to base 10; NaN where X < 0.",
    lambda g, X, Out_grad: g.scale(g.elementwise_div(Out_grad, X), scale=1 / math.log(10)), _between(0.5, 2.0),
)  # fmt: skip


def _whole_and_not(rng):
    yield from signed(rng)
    yield (np.array([-1.5, -0.5, 2.0, 2.999]),), {}


trunc = function("trunc", np.trunc, "X without its fraction.", zeros, _whole_and_not)
