"""Functions of two operands that are no arithmetic: angles, distances, extrema that pass over NaN, neighbours."""

from __future__ import annotations

import numpy as np

from minigraph.opdef import OpDef, op

from .elementwise import OPERAND_SHAPES, draw, function_of_two, infer_arithmetic
from .unary import infer_float


def _infer_floats(X, Y):
    infer_float(X)
    return infer_arithmetic(X, Y)


def _operands(rng):
    for x, y, axis in OPERAND_SHAPES:
        if axis == -1:
            yield (draw(rng, x), draw(rng, y)), {}


@op(traits={"elementwise"}, cuda="atan2(X, Y)")
def atan2(X, Y, *, out=None):
    """The angle in [-pi, pi] of the point with ordinate X and abscissa Y, with broadcasting."""
    return np.arctan2(X, Y, out=out[0] if out else None)


atan2.infer(_infer_floats)


@atan2.grad
def _(g, X, Y, Out_grad):
    distance = g.hypot(X, Y)  # whose square may be 0 or infinite
    sine, cosine = g.elementwise_div(X, distance), g.elementwise_div(Y, distance)
    X_grad, _ = g.elementwise_mul_grad(X, g.elementwise_div(cosine, distance), Out_grad)
    _, Y_grad = g.elementwise_mul_grad(g.elementwise_div(g.scale(sine, scale=-1.0), distance), Y, Out_grad)
    return X_grad, Y_grad


atan2.samples(_operands)


@op(traits={"elementwise"}, cuda="hypot(X, Y)")
def hypot(X, Y, *, out=None):
    """The square root of X^2 + Y^2, also where a square overflows or is 0, with broadcasting."""
    return np.hypot(X, Y, out=out[0] if out else None)


hypot.infer(_infer_floats)


@hypot.grad
def _(g, X, Y, Out, Out_grad):
    X_grad, _ = g.elementwise_mul_grad(X, g.elementwise_div(X, Out), Out_grad)
    _, Y_grad = g.elementwise_mul_grad(g.elementwise_div(Y, Out), Y, Out_grad)
    return X_grad, Y_grad


hypot.samples(_operands)


@op(traits={"elementwise"},
    cuda="X == Y ? X + C(0.69314718055994531) : (X > Y ? X : Y) + log1p(exp(-fabs(X - Y)))")  # fmt: skip
def logaddexp(X, Y, *, out=None):
    """log(e^X + e^Y) without overflow, with broadcasting."""
    return np.logaddexp(X, Y, out=out[0] if out else None)


logaddexp.infer(_infer_floats)


@logaddexp.grad
def _(g, X, Y, Out_grad):
    X_grad, _ = g.elementwise_mul_grad(X, g.sigmoid(g.elementwise_sub(X, Y)), Out_grad)
    _, Y_grad = g.elementwise_mul_grad(g.sigmoid(g.elementwise_sub(Y, X)), Y, Out_grad)
    return X_grad, Y_grad


@logaddexp.samples
def _(rng):
    yield from _operands(rng)
    yield (np.array([1.0, 700.0, -900.0, 3.0]), np.array([1.0, 710.0, -900.0, -50.0])), {}


def _extremum(name: str, ufunc: np.ufunc, word: str, sign: str, compare: str) -> OpDef:
    doc = f"The {word} of X and Y with broadcasting, the other one where one is NaN."
    opdef = function_of_two(name, ufunc, doc, f"X {sign} Y || Y != Y ? X : Y")

    @opdef.grad
    def _(g, X, Y, Out_grad):
        chosen = g.logical_or(g.emit(compare, X, Y), g.not_equal(Y, Y))
        return g.where_grad(chosen, X, Y, Out_grad)

    return opdef.infer(infer_arithmetic).samples(_with_nan)


def _with_nan(rng):
    yield from _operands(rng)
    yield (np.array([np.nan, 1.0, 2.0]), np.array([1.0, np.nan, 3.0])), {}


fmax = _extremum("fmax", np.fmax, "larger", ">=", "greater_equal")
fmin = _extremum("fmin", np.fmin, "smaller", "<=", "less_equal")


@op(traits={"elementwise"},
    cuda="sizeof(C) == 4 ? C(nextafterf(float(X), float(Y))) : C(nextafter(double(X), double(Y)))")  # fmt: skip
def nextafter(X, Y, *, out=None):
    """The float beside X in the direction of Y, with broadcasting; Y where they are equal, NaN where one is NaN.

    No gradient flows through it: asking for one is an error.
    """
    return np.nextafter(X, Y, out=out[0] if out else None)


nextafter.infer(_infer_floats)


@nextafter.samples
def _(rng):
    yield from _operands(rng)
    yield (np.array([0.0, -0.0, 1.0, 1.0, np.inf, np.nan]), np.array([1.0, -1.0, 1.0, -np.inf, np.inf, 1.0])), {}
