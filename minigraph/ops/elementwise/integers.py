"""Division with a remainder, bits, greatest common divisors."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import DIVIDED
from minigraph.opdef import OpDef, op
from minigraph.types import FLOATS, INTS, TensorType

from .elementwise import draw, function_of_two, infer_arithmetic, infer_binary

PAIRS = ((4, 3), (3,)), ((3,), (2, 3)), ((2, 1, 3), (4, 1)), ((), ()), ((2, 3), ()), ((0, 3), (1, 3))


def _quotients(rng):
    for x, y in PAIRS:
        yield (draw(rng, x) * 3, draw(rng, y)), {}
        yield (rng.integers(-9, 9, x), rng.choice([-3, -1, 2, 4], y)), {}


def _require_divisor(Y: np.ndarray) -> None:
    if Y.dtype not in FLOATS and not Y.all():
        raise DIVIDED("an integer is divided by 0")


@op(traits={"nondifferentiable", "reports"}, gpu="elementwise.elementwise")
def floor_divide(X, Y):
    """X / Y rounded down, with broadcasting; ints divided by 0 are refused, floats give an infinity or NaN.

    Of floats the exact quotient is rounded: 1 // 0.1 is 9, since 0.1 is a little more than a tenth.
    """
    _require_divisor(Y)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.floor_divide(X, Y)


@op(traits={"reports"}, gpu="elementwise.elementwise")
def elementwise_mod(X, Y):
    """What floor division of X by Y leaves, with the sign of Y; ints divided by 0 are refused, floats give NaN."""
    _require_divisor(Y)
    with np.errstate(invalid="ignore"):
        return np.remainder(X, Y)


@elementwise_mod.grad
def _(g, X, Y, Out_grad):
    whole = g.scale(g.floor_divide(X, Y), scale=-1.0)
    X_grad, _ = g.elementwise_add_grad(X, whole, Out_grad)
    _, Y_grad = g.elementwise_mul_grad(whole, Y, Out_grad)
    return X_grad, Y_grad


floor_divide.infer(infer_arithmetic).samples(_quotients)
elementwise_mod.infer(infer_arithmetic).samples(_quotients)


def infer_bits(X: TensorType, Y: TensorType) -> TensorType:
    """The broadcast type of integers, or of truth values."""
    require(not X.is_float, f"X is {X.dtype}, only integers and truth values have bits", DTypeError)
    return infer_binary(X, Y)


def _bits(rng):
    for x, y in PAIRS:
        yield (rng.integers(-90, 90, x), rng.integers(-90, 90, y)), {}
    yield (np.array([True, True, False, False]), np.array([True, False, True, False])), {}
    yield (np.array([200, 7], np.uint8), np.array([255, 8], np.uint8)), {}


def _of_bits(name: str, ufunc: np.ufunc, word: str, symbol: str) -> OpDef:
    doc = f"X {word} Y, bit by bit, of integers or of truth values; with broadcasting."
    made = function_of_two(name, ufunc, doc, f"X {symbol} Y", "nondifferentiable", "commutative")
    return made.infer(infer_bits).samples(_bits)


bitwise_and = _of_bits("bitwise_and", np.bitwise_and, "and", "&")
bitwise_or = _of_bits("bitwise_or", np.bitwise_or, "or", "|")
bitwise_xor = _of_bits("bitwise_xor", np.bitwise_xor, "xor", "^")


@op(traits={"elementwise", "nondifferentiable"}, inplace={"Out": "X"}, cuda="~X")
def bitwise_not(X, *, out=None):
    """Every bit of an integer turned over."""
    return np.invert(X, out=out[0] if out else None)


@bitwise_not.infer
def _(X):
    require(X.dtype in INTS, f"X is {X.dtype}, not an integer", DTypeError, "logical_not takes truth values")
    return X


@bitwise_not.samples
def _(rng):
    yield (rng.integers(-90, 90, (4, 3)),), {}
    yield (np.array([0, 255], np.uint8),), {}


@op(traits={"elementwise", "nondifferentiable", "commutative"}, cuda="common_divisor(X, Y)")
def gcd(X, Y, *, out=None):
    """The greatest common divisor of integers, with broadcasting; that of 0 and 0 is 0."""
    return np.gcd(X, Y, out=out[0] if out else None)


@gcd.infer
def _(X, Y):
    require(X.dtype in INTS, f"X is {X.dtype}, not an integer", DTypeError)
    return infer_binary(X, Y)


@gcd.samples
def _(rng):
    for x, y in PAIRS:
        yield (rng.integers(-90, 90, x), rng.integers(-90, 90, y)), {}
    yield (np.array([12, 0, 0, -4]), np.array([18, 5, 0, 6])), {}
