"""Functions of two operands that are no arithmetic: angles, extrema that pass over NaN, floats beside others."""

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
    square = g.elementwise_add(g.square(X), g.square(Y))
    X_grad, _ = g.elementwise_mul_grad(X, g.elementwise_div(Y, square), Out_grad)
    _, Y_grad = g.elementwise_mul_grad(g.elementwise_div(g.scale(X, scale=-1.0), square), Y, Out_grad)
    return X_grad, Y_grad


atan2.samples(_operands)


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
