"""More functions of one operand: trigonometric and hyperbolic ones, their inverses, exponentials, whole parts."""

from __future__ import annotations

import math

import numpy as np

from minigraph.opdef import op

from .unary import FLAT, SHAPES, function, infer_float, signed


def _between(low: float, high: float):
    """Samples of all shapes with numbers in [low, high]."""

    def samples(rng):
        for shape in SHAPES:
            yield (np.asarray(rng.uniform(low, high, shape)),), {}

    return samples


_cosines = _between(-0.9, 0.9)
tan = function("tan", np.tan, "tan(X), X in radians.", _between(-1.2, 1.2))
asin = function("asin", np.arcsin, "The angle whose sine is X, in [-pi/2, pi/2]; NaN outside [-1, 1].", _cosines)
acos = function("acos", np.arccos, "The angle whose cosine is X, in [0, pi]; NaN outside [-1, 1].", _cosines)
atan = function("atan", np.arctan, "The angle in (-pi/2, pi/2) whose tangent is X.")
sinh = function("sinh", np.sinh, "(e^X - e^-X) / 2")
cosh = function("cosh", np.cosh, "(e^X + e^-X) / 2")
asinh = function("asinh", np.arcsinh, "The number whose sinh is X.")
acosh = function("acosh", np.arccosh, "The number >= 0 whose cosh is X; NaN where X < 1.", _between(1.2, 3.0))
atanh = function("atanh", np.arctanh, "The number whose tanh is X; NaN outside [-1, 1].", _cosines)
expm1 = function("expm1", np.expm1, "e^X - 1, accurate near 0.")
log2 = function("log2", np.log2, "The logarithm of X to base 2; NaN where X < 0.", _between(0.5, 2.0))
log10 = function("log10", np.log10, "The logarithm of X to base 10; NaN where X < 0.", _between(0.5, 2.0))


@tan.grad
def _(g, Out, Out_grad):
    return g.elementwise_mul(Out_grad, g.scale(g.square(Out), bias=1.0))


def _below_one(g, X):
    """sqrt(1 - X^2)"""
    return g.sqrt(g.scale(g.square(X), scale=-1.0, bias=1.0))


@asin.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, _below_one(g, X))


@acos.grad
def _(g, X, Out_grad):
    return g.scale(g.elementwise_div(Out_grad, _below_one(g, X)), scale=-1.0)


@atan.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, g.scale(g.square(X), bias=1.0))


@sinh.grad
def _(g, X, Out_grad):
    return g.elementwise_mul(Out_grad, g.cosh(X))


@cosh.grad
def _(g, X, Out_grad):
    return g.elementwise_mul(Out_grad, g.sinh(X))


@asinh.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, g.sqrt(g.scale(g.square(X), bias=1.0)))


@acosh.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, g.sqrt(g.scale(g.square(X), bias=-1.0)))


@atanh.grad
def _(g, X, Out_grad):
    return g.elementwise_div(Out_grad, g.scale(g.square(X), scale=-1.0, bias=1.0))


@expm1.grad
def _(g, Out, Out_grad):
    return g.elementwise_mul(Out_grad, g.scale(Out, bias=1.0))


@log2.grad
def _(g, X, Out_grad):
    return g.scale(g.elementwise_div(Out_grad, X), scale=1 / math.log(2))


@log10.grad
def _(g, X, Out_grad):
    return g.scale(g.elementwise_div(Out_grad, X), scale=1 / math.log(10))


@op(traits={"elementwise", *FLAT}, inplace={"Out": "X"}, cuda="trunc(X)")
def trunc(X, *, out=None):
    """X without its fraction."""
    return np.trunc(X, out=out[0] if out else None)


@trunc.samples
def _(rng):
    yield from signed(rng)
    yield (np.array([-1.5, -0.5, 2.0, 2.999]),), {}


trunc.infer(infer_float)
