"""Comparisons, logic, and choice by a condition."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import OpDef, op
from minigraph.types import TensorType, bool_, broadcast_shapes

from .elementwise import align, draw, function_of_two, infer_binary, masked_to, operands


def infer_truth(X: TensorType, Y: TensorType, *, axis: int = -1) -> TensorType:
    """bool of the broadcast shape."""
    return infer_binary(X, Y, axis=axis).with_dtype(bool_)


def _comparison(name: str, ufunc: np.ufunc, equation: str, *traits: str) -> OpDef:
    def compare(X, Y, *, axis: int = -1, out=None):
        return ufunc(X, align(Y, X.ndim, axis), out=out[0] if out else None)

    compare.__name__ = name
    compare.__doc__ = f"{equation} as bool, with broadcasting as elementwise_add."
    define = op(traits={"elementwise", "nondifferentiable", *traits}, cuda=equation)
    return define(compare).infer(infer_truth).samples(_comparison_samples)


def _comparison_samples(rng):
    yield from operands(rng)
    yield (np.array([1.0, 2.0, np.nan, -0.0, np.inf]), np.array([1.0, 3.0, np.nan, 0.0, 1.0])), {}
    yield (np.array([1, 2, 3]), np.array([[3], [2]])), {}
    yield (np.array([True, False]), np.array([True, True])), {}


equal = _comparison("equal", np.equal, "X == Y", "commutative")
not_equal = _comparison("not_equal", np.not_equal, "X != Y", "commutative")
less_than = _comparison("less_than", np.less, "X < Y")
less_equal = _comparison("less_equal", np.less_equal, "X <= Y")
greater_than = _comparison("greater_than", np.greater, "X > Y")
greater_equal = _comparison("greater_equal", np.greater_equal, "X >= Y")


def _connective(name: str, ufunc: np.ufunc, word: str, cuda: str) -> OpDef:
    doc = f"X {word} Y as bool, with NumPy broadcasting; numbers are true where not zero."
    made = function_of_two(name, ufunc, doc, cuda, "nondifferentiable", "commutative")
    return made.infer(infer_truth).samples(_connective_samples)


def _connective_samples(rng):
    for x, y in [((2, 3), (3,)), ((), ()), ((0, 2), (1,)), ((2,), (4, 1))]:
        yield (np.asarray(rng.random(x) < 0.5), np.asarray(rng.random(y) < 0.5)), {}
    yield (np.array([0.0, 1.0, np.nan]), np.array([1.0, 0.0, 2.0])), {}


logical_and = _connective("logical_and", np.logical_and, "and", "X && Y")
logical_or = _connective("logical_or", np.logical_or, "or", "X || Y")
logical_xor = _connective("logical_xor", np.logical_xor, "xor", "(X != 0) != (Y != 0)")


@op(traits={"elementwise", "nondifferentiable"}, cuda="X == 0")
def logical_not(X, *, out=None):
    """not X as bool; numbers are true where not zero."""
    return np.logical_not(X, out=out[0] if out else None)


@logical_not.infer
def _(X):
    return X.with_dtype(bool_)


@logical_not.samples
def _(rng):
    yield (np.array([[True, False]]),), {}
    yield (np.array(True),), {}
    yield (np.array([0.0, 2.0, np.nan]),), {}


@op(traits={"elementwise"}, cuda="Condition ? X : Y")
def where(Condition, X, Y, *, out=None):
    """X where Condition, else Y; all three broadcast as in NumPy.

    Condition is bool; X and Y have one data type.
    """
    if out is None or out[0] is None:
        return np.where(Condition, X, Y)
    np.copyto(out[0], Y)
    np.copyto(out[0], X, where=Condition)
    return out[0]


@where.infer
def _(Condition, X, Y):
    require(Condition.dtype == bool_, f"Condition must be bool, is {Condition.dtype}", DTypeError)
    require(X.dtype == Y.dtype, f"X is {X.dtype}, Y is {Y.dtype}", MIXED_TYPES, "cast one of them")
    return X.with_shape(broadcast_shapes(Condition.shape, X.shape, Y.shape, names=("Condition", "X", "Y")))


@where.samples
def _(rng):
    for c, x, y in WHERE_SHAPES:
        yield (np.asarray(rng.random(c) < 0.5), draw(rng, x), draw(rng, y)), {}
    yield (np.array([True, False]), np.array([1, 2]), np.array([3, 4])), {}


WHERE_SHAPES = (
    ((2, 3), (2, 3), (2, 3)), ((3,), (2, 3), ()), ((2, 1), (3,), (1, 3)), ((), (), ()), ((0, 3), (3,), (1,)),
)  # fmt: skip


@op("X_grad?, Y_grad?", of=where, traits={"pointwise"}, no_need_buffer={"X", "Y"},
    cuda={"X_grad": "Condition ? Out_grad : C(0)", "Y_grad": "Condition ? C(0) : Out_grad"})  # fmt: skip
def where_grad(Condition, X, Y, Out_grad, *, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad where Condition, and where not Condition, summed to the shapes of X and Y."""
    x_out, y_out = out or (None, None)
    return (
        masked_to(Out_grad, Condition, X.shape, -1, x_out) if "X_grad" in needs else None,
        masked_to(Out_grad, ~Condition, Y.shape, -1, y_out) if "Y_grad" in needs else None,
    )


@where_grad.grad
def _(g, Condition, X, Y, Out_grad, X_grad_grad=None, Y_grad_grad=None):
    zeros = g.fill_any_like(Out_grad, value=0.0)  # have the shape of the result, which the parts may lack
    X_part = zeros if X_grad_grad is None else g.elementwise_add(zeros, X_grad_grad)
    Y_part = zeros if Y_grad_grad is None else g.elementwise_add(zeros, Y_grad_grad)
    return None, None, None, g.where(Condition, X_part, Y_part)
