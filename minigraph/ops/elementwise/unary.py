"""Functions of one operand, element by element.

Most gradients are compositions of these functions and of the arithmetic operators, one line each,
which gives gradients of all orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.opdef import DTypeAttr, OpDef, op
from minigraph.types import INTS, TensorType, bool_, float16

from .elementwise import destination, draw, masked

SHAPES = ((4, 3), (), (0, 3), (1,), (2, 1, 3))


def zeros(g: Any, Out_grad: Any) -> Any:
    """The gradient of steps: 0, also where they jump, as Paddle's."""
    return g.fill_any_like(Out_grad, value=0.0)


def infer_float(X: TensorType, **attrs: Any) -> TensorType:
    """X's own type, which must be a float."""
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError, "cast it first")
    return X


def infer_number(X: TensorType) -> TensorType:
    """X's own type, which must not be bool."""
    require(X.dtype != bool_, "X is bool", DTypeError, "cast it first")
    return X


def signed(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {}


def _positive(rng):
    for shape in SHAPES:
        yield (np.abs(draw(rng, shape)),), {}


def _signed_and_ints(rng):
    yield from signed(rng)
    yield (np.array([[-3, 0, 2]]),), {}


def _signed_and_halves(rng):
    yield from signed(rng)
    yield (np.array([-2.5, -1.5, -0.5, -0.2, -0.0, 0.0, 0.49999999999999994, 0.5, 1.5, 2.5, 1023.5]),), {}


def function(
    name: str, ufunc: np.ufunc, doc: str, grad: Callable[..., Any], samples=signed, infer=infer_float,
    cuda: str | None = None,
) -> OpDef:  # fmt: skip
    """An operator that is one NumPy function, and one CUDA function `name` unless `cuda` is given.

    grad   its gradient, written with operators
    """

    def apply(X, *, out=None):
        return ufunc(X, out=out[0] if out else None)

    apply.__name__, apply.__doc__ = name, doc
    defined = op(traits={"elementwise"}, inplace={"Out": "X"}, cuda=cuda or f"{name}(X)")(apply)
    return defined.infer(infer).samples(samples).grad(grad)


exp = function("exp", np.exp, "e^X", lambda g, Out, Out_grad: g.elementwise_mul(Out_grad, Out))
log = function(
    "log", np.log, "The natural logarithm of X; NaN where X < 0.",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, X), _positive,
)  # fmt: skip
log1p = function(
    "log1p", np.log1p, "log(1 + X), accurate near 0.",
    lambda g, X, Out_grad: g.elementwise_div(Out_grad, g.scale(X, bias=1.0)), _positive,
)  # fmt: skip
sqrt = function(
    "sqrt", np.sqrt, "The square root of X; NaN where X < 0.",
    lambda g, Out, Out_grad: g.scale(g.elementwise_div(Out_grad, Out), scale=0.5), _positive,
)  # fmt: skip
square = function(
    "square", np.square, "X * X", lambda g, X, Out_grad: g.scale(g.elementwise_mul(Out_grad, X), scale=2.0),
    _signed_and_ints, infer_number, "X * X",
)  # fmt: skip
abs = function(
    "abs", np.absolute, "|X|; its gradient at 0 is 0.",
    lambda g, X, Out_grad: g.elementwise_mul(Out_grad, g.sign(X)), _signed_and_ints, infer_number,
)  # fmt: skip
sin = function(
    "sin", np.sin, "sin(X), X in radians.", lambda g, X, Out_grad: g.elementwise_mul(Out_grad, g.cos(X))
)
cos = function(
    "cos", np.cos, "cos(X), X in radians.",
    lambda g, X, Out_grad: g.scale(g.elementwise_mul(Out_grad, g.sin(X)), scale=-1.0),
)  # fmt: skip
reciprocal = function(
    "reciprocal", np.reciprocal, "1 / X",
    lambda g, Out, Out_grad: g.scale(g.elementwise_mul(Out_grad, g.square(Out)), scale=-1.0), cuda="C(1) / X",
)  # fmt: skip


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="rsqrt(X)")
def rsqrt(X, *, out=None):
    """1 / sqrt(X); NaN where X < 0."""
    root = np.sqrt(X, out=destination(out, X))
    return np.reciprocal(root, out=root)


rsqrt.infer(infer_float).samples(_positive)


@rsqrt.grad
def _(g, Out, Out_grad):
    return g.scale(g.elementwise_mul(Out_grad, g.pow(Out, factor=3.0)), scale=-0.5)


SIGN = "X > C(0) ? C(1) : X < C(0) ? C(-1) : X == C(0) ? C(0) : X"
sign = function("sign", np.sign, "-1, 0 or 1; NaN stays NaN.", zeros, _signed_and_ints, infer_number, SIGN)
floor = function("floor", np.floor, "The largest whole number <= X.", zeros)
ceil = function("ceil", np.ceil, "The smallest whole number >= X.", zeros)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="round(X)")
def round(X, *, out=None):
    """The nearest whole number; halves go away from zero, as C's round and Paddle's."""
    whole = np.trunc(X)
    far = np.absolute(X - whole) >= 0.5  # exact, also where X + 0.5 is not; inf - inf is NaN, and not far
    return np.add(whole, np.copysign(far, X, dtype=X.dtype), out=destination(out, X))


round.infer(infer_float).grad(zeros).samples(_signed_and_halves)


def _test(name: str, ufunc: np.ufunc, doc: str, cuda: str) -> OpDef:
    """An operator that asks one question about each number."""

    def ask(X, *, out=None):
        return ufunc(X, out=out[0] if out else None)

    ask.__name__, ask.__doc__ = name, doc
    define = op(traits={"elementwise", "nondifferentiable"}, cuda=cuda)
    return define(ask).infer(_infer_test).samples(_test_samples)


def _infer_test(X: TensorType) -> TensorType:
    return X.with_dtype(bool_)


def _test_samples(rng):
    yield (np.array([[1.0, np.nan, np.inf, -np.inf]]),), {}
    yield (np.array(np.nan),), {}
    yield (np.array([1, 2]),), {}


isnan = _test("isnan", np.isnan, "Whether X is NaN.", "X != X")
isinf = _test("isinf", np.isinf, "Whether X is infinite.", "X == X && X - X != X - X")
isfinite = _test("isfinite", np.isfinite, "Whether X is neither infinite nor NaN.", "X - X == X - X")


def _power(attrs):
    """C++ of X ** factor; small whole factors without the function of two variables."""
    short = {2.0: "X * X", 3.0: "X * X * X", 1.0: "X", -1.0: "C(1) / X", 0.0: "C(1)"}
    return short.get(attrs["factor"], "power(X, factor)")


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda=_power)
def pow(X, *, factor: float, out=None):
    """X ** factor; of ints for whole factors >= 0."""
    return np.power(X, X.dtype.type(factor), out=out[0] if out else None)


@pow.infer
def _(X, *, factor):
    infer_number(X)
    _check_value(X, "factor", factor)
    require(X.is_float or factor >= 0, f"factor {factor} of {X.dtype} X is negative", AttrError, "cast X to a float")
    return X


@pow.grad
def _(g, X, Out_grad, *, factor):
    if factor == 0:  # else 0 * 0^-1 at X = 0
        return g.fill_any_like(X, value=0.0)
    return g.scale(g.elementwise_mul(Out_grad, g.pow(X, factor=factor - 1)), scale=factor)


@pow.samples
def _(rng):
    for shape in SHAPES:
        yield (np.abs(draw(rng, shape)),), {"factor": 2.5}
    yield (draw(rng, (4, 3)),), {"factor": 2.0}
    yield (draw(rng, (4, 3)),), {"factor": -1.0}
    yield (np.array([0.0, 1.0, -2.0]),), {"factor": 0.0}
    yield (np.array([-2, 0, 3]),), {"factor": 3.0}


def _check_value(X: TensorType, name: str, value: float | None) -> None:
    """A number that meets ints must itself be one of their type."""
    if X.dtype in INTS and value is not None:
        info = np.iinfo(X.dtype)
        require(
            value.is_integer() and info.min <= value <= info.max, f"{name} {value} is no {X.dtype}, as X is",
            AttrError, "cast X to a float",
        )  # fmt: skip


def _line(attrs):
    """C++ of scale."""
    if not attrs["bias"]:
        return "X * scale"
    return "X * scale + bias" if attrs["bias_after_scale"] else "(X + bias) * scale"


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda=_line)
def scale(X, *, scale: float = 1.0, bias: float = 0.0, bias_after_scale: bool = True, out=None):
    """X * scale + bias, or (X + bias) * scale with bias_after_scale=False; X's type stays.

    Of ints the scale and the bias must be whole numbers.
    """
    Out = destination(out, X)
    factor, summand = X.dtype.type(scale), X.dtype.type(bias)
    if not bias:
        return np.multiply(X, factor, out=Out)
    if bias_after_scale:
        return np.add(np.multiply(X, factor, out=Out), summand, out=Out)
    return np.multiply(np.add(X, summand, out=Out), factor, out=Out)


@scale.infer
def _(X, *, scale, bias, bias_after_scale):
    infer_number(X)
    _check_value(X, "scale", scale)
    _check_value(X, "bias", bias)
    return X


@scale.grad
def _(g, Out_grad, *, scale, bias, bias_after_scale):
    return g.scale(Out_grad, scale=scale)


@scale.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {"scale": 2.5, "bias": 1.5}
    yield (draw(rng, (4, 3)),), {"scale": -0.5}
    yield (draw(rng, (4, 3)),), {"scale": 3.0, "bias": 2.0, "bias_after_scale": False}
    yield (np.array([1, -2]),), {"scale": -2.0, "bias": 5.0}


def _clipped(attrs):
    """C++ of clip; comparisons with NaN are false, so it stays."""
    low = "X" if attrs["min"] is None else "(X < min ? min : X)"
    return low if attrs["max"] is None else f"{low} > max ? max : {low}"


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda=_clipped)
def clip(X, *, min: float | None = None, max: float | None = None, out=None):
    """X brought into [min, max]; None leaves a side open, NaN stays NaN."""
    return np.clip(X, *_bounds(X, min, max), out=out[0] if out else None)


def _bounds(X: np.ndarray, low: float | None, high: float | None) -> list[np.generic | None]:
    return [None if bound is None else X.dtype.type(bound) for bound in (low, high)]


@clip.infer
def _(X, *, min, max):
    infer_number(X)
    _check_value(X, "min", min)
    _check_value(X, "max", max)
    require(min is None or max is None or min <= max, f"min {min} is larger than max {max}", AttrError)
    return X


@clip.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {"min": -1.0, "max": 0.9}
    yield (draw(rng, (4, 3)),), {"min": 0.1}
    yield (draw(rng, (4, 3)),), {"max": 0.1}
    yield (draw(rng, (4, 3)),), {}
    yield (np.array([-5, 0, 5]),), {"min": -1.0, "max": 3.0}


def _inside(attrs):
    """C++ of clip_grad."""
    sides = [side for name, side in (("min", "X > min"), ("max", "X < max")) if attrs[name] is not None]
    return f"{' && '.join(sides)} ? Out_grad : C(0)" if sides else "Out_grad"


@op("X_grad", of=clip, traits={"elementwise"}, cuda=_inside)
def clip_grad(X, Out_grad, *, min: float | None = None, max: float | None = None, out=None):
    """Out_grad where min < X < max, else 0: none at the bounds, as in Paddle."""
    low, high = _bounds(X, min, max)
    inside = np.ones(X.shape, bool)
    if low is not None:
        inside &= low < X
    if high is not None:
        inside &= high > X
    return masked(Out_grad, inside, out[0] if out else None)


@clip_grad.grad
def _(g, X, X_grad_grad, *, min, max):
    return None, g.clip_grad(X, X_grad_grad, min=min, max=max)


def _converted(attrs):
    """C++ of cast: one rounding on the way to float16, and narrow ints by way of int as on a CPU."""
    if attrs["dtype"] == bool_:
        return "X != 0"
    if attrs["dtype"] == float16:
        return "to_round_once(X)"
    return "int(X)" if attrs["dtype"] in INTS and attrs["dtype"].itemsize < 4 else "X"


@op(traits={"elementwise"}, cuda=_converted)
def cast(X, *, dtype: DTypeAttr, out=None):
    """X with another data type. Floats lose their fraction on the way to ints; not zero is True."""
    if out is None or out[0] is None:
        return X.astype(dtype)
    np.copyto(out[0], X, casting="unsafe")
    return out[0]


@cast.infer
def _(X, *, dtype):
    return X.with_dtype(dtype)


@cast.grad
def _(g, X, Out_grad, *, dtype):
    return g.cast(Out_grad, dtype=X.dtype) if X.type.is_float else None


@cast.samples
def _(rng):
    for dtype in ("float64", "float32", "float16", "bfloat16", "int64", "int8", "bool"):
        yield (draw(rng, (4, 3)),), {"dtype": dtype}
    yield (np.array([[0, 1, -2]]),), {"dtype": "float32"}
    yield (np.array([True, False]),), {"dtype": "float64"}
    yield (np.array(2.5),), {"dtype": "int32"}
    yield (np.zeros((0, 2)),), {"dtype": "float32"}
