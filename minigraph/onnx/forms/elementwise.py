"""Functions element by element, after ops/elementwise/."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.types import FLOATS, bool_, float64, int32, uint8

from ..model import CODES
from ..nodes import Nodes, Term, fits_attribute
from ..registry import form, forms, no_counterpart, same

NEAR = 0.5  # |X| from which on exp(X) - 1 and log(1 + X) lose nothing

same({
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "sin": "Sin", "cos": "Cos", "reciprocal": "Reciprocal",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "where": "Where",
})  # fmt: skip


def _binary(name: str, standard: str) -> None:
    def write(g: Nodes, X: Term, Y: Term, *, axis: int = -1) -> Term:
        return g.node(standard, X, placed(g, X, Y, axis))

    write.__name__ = name
    form(write)


def placed(g: Nodes, X: Term, Y: Term, axis: int) -> Term:
    """Y with axes of size 1 behind it, so that its first axis meets axis `axis` of X."""
    if axis == -1 or Y.ndim >= X.ndim or X.ndim == axis + Y.ndim:
        return Y
    return g.Unsqueeze(Y, g.ints(*range(Y.ndim, X.ndim - axis)))


for _name, _standard in {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div",
    "elementwise_pow": "Pow", "elementwise_max": "Max", "elementwise_min": "Min", "equal": "Equal",
}.items():  # fmt: skip
    _binary(_name, _standard)


def _compared(name: str, standard: str) -> None:
    def write(g: Nodes, X: Term, Y: Term, *, axis: int = -1) -> Term:
        x, y = ((g.cast(v, int32) if v.dtype == bool_ else v) for v in (X, placed(g, X, Y, axis)))
        return g.node(standard, x, y)

    write.__name__ = name
    form(write)


for _name, _standard in {
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual",
}.items():
    _compared(_name, _standard)


def truth(g: Nodes, X: Term) -> Term:
    """X as bool: whether it is not zero."""
    return g.cast(X, bool_)


@form
def trunc(g: Nodes, X: Term) -> Term:
    return g.Where(X < 0, g.Ceil(X), g.Floor(X)) if X.dtype in FLOATS else g.Identity(X)


@form
def round_(g: Nodes, X: Term) -> Term:
    """Halves go away from zero; ONNX's Round takes them to even numbers."""
    if X.dtype not in FLOATS:
        return g.Identity(X)
    whole = trunc(g, X)
    return whole + g.Where(g.Abs(X - whole) >= 0.5, g.Sign(X), g.like(X, 0))


def everywhere(g: Nodes, X: Term, value: Any, dtype: np.dtype) -> Term:
    """One number in X's shape."""
    return g.ConstantOfShape(g.Shape(X), value=np.full(1, value, dtype), dtype=dtype)


@form
def scale(g: Nodes, X: Term, *, scale: float, bias: float, bias_after_scale: bool) -> Term:
    if not bias:
        return X * scale
    if scale == 1:
        return X + bias
    return X * scale + bias if bias_after_scale else (X + bias) * scale


@form
def clip(g: Nodes, X: Term, *, min: float | None, max: float | None) -> Term:
    low, high = (None if bound is None else g.like(X, bound) for bound in (min, max))
    return g.Clip(X, low, high)


@form
def expm1(g: Nodes, X: Term) -> Term:
    """exp(X) - 1; near 0 after Kahan: (u - 1) X / log(u), in which the errors of u = exp(X) cancel."""
    u = g.Exp(X)
    inner = g.Where(g.Equal(u, 1), X, (u - 1) * X / g.Log(g.Where(g.Equal(u, 1), g.like(X, 2), u)))
    return g.Where(g.Abs(X) > NEAR, u - 1, inner)


@form
def log1p(g: Nodes, X: Term) -> Term:
    """log(1 + X); near 0 after Kahan: log(u) X / (u - 1) with u = 1 + X."""
    u = 1 + X
    inner = g.Where(g.Equal(u, 1), X, g.Log(u) * X / g.Where(g.Equal(u, 1), g.like(X, 1), u - 1))
    return g.Where(g.Abs(X) > NEAR, g.Log(u), inner)


@form
def gelu(g: Nodes, X: Term, *, approximate: bool) -> Term:
    if X.dtype == float64:  # runtimes have Gelu in float32, or its constants
        inner = g.Tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X * X * X)) if approximate else g.Erf(X / math.sqrt(2))
        return 0.5 * X * (1 + inner)
    return g.Gelu(X, approximate="tanh" if approximate else "none")


@form
def elu(g: Nodes, X: Term, *, alpha: float, scale: float, input_scale: float) -> Term:
    if scale == input_scale == 1 and X.dtype != float64:
        return g.Elu(X, alpha=alpha)
    low = scale * alpha * expm1(g, input_scale * g.Min(X, 0))
    return g.Where(X > 0, scale * X, low)


@form
def softplus(g: Nodes, X: Term, *, beta: float, threshold: float | None) -> Term:
    if X.dtype != float64 and beta == 1 and threshold is None:
        return g.Softplus(X)
    z = X * beta
    smooth = (g.Relu(z) + log1p(g, g.Exp(-g.Abs(z)))) / beta
    return smooth if threshold is None else g.Where(z > threshold, X, smooth)


@form
def atan2(g: Nodes, X: Term, Y: Term) -> Term:
    """The angle of the point with ordinate X and abscissa Y; 1 / X tells the sign of a zero."""
    half = g.Where((X < 0) | (1 / X < 0), g.like(X, -math.pi), g.like(X, math.pi))
    behind = (Y < 0) | (1 / Y < 0)
    ratio = g.Where(g.IsInf(X) & g.IsInf(Y), g.Sign(X) * g.Sign(Y), X / Y)
    turned = g.Where(g.Equal(Y, 0), half / 2, g.Atan(ratio) + g.Where(behind, half, g.like(X, 0)))
    on_axis = g.Where(behind, half, g.like(X, 0) * X)
    return g.Where(g.Equal(X, 0), on_axis, turned)


@form
def hypot(g: Nodes, X: Term, Y: Term) -> Term:
    """The larger side times the root of 1 + the square of the ratio of sides, which does not overflow."""
    long, short = g.Max(g.Abs(X), g.Abs(Y)), g.Min(g.Abs(X), g.Abs(Y))
    ratio = g.Where(g.Equal(long, 0) | g.IsInf(long), g.like(long, 0), short / long)
    return long * g.Sqrt(ratio * ratio + 1)


@form
def logaddexp(g: Nodes, X: Term, Y: Term) -> Term:
    apart = g.Where(g.Equal(X, Y), g.like(X - Y, 0), X - Y)  # infinities, too
    return g.Max(X, Y) + g.Log(g.Exp(-g.Abs(apart)) + 1)


def _not_nan(g: Nodes, X: Term, Y: Term, chosen: str) -> Term:
    if X.dtype not in FLOATS:
        return g.node(chosen, X, Y)
    return g.Where(g.IsNaN(X), Y, g.Where(g.IsNaN(Y), X, g.node(chosen, X, Y)))


@form
def bce_loss(g: Nodes, X: Term, Label: Term) -> Term:
    low = g.like(X, -100)
    return (Label - 1) * g.Max(log1p(g, -X), low) - Label * g.Max(g.Log(X), low)


@form
def running_average(g: Nodes, Batch: Term, Running: Term, *, momentum: float, is_test: bool) -> Term:
    return g.Identity(Running) if is_test else momentum * Running + (1 - momentum) * Batch


@form
def dropout(g: Nodes, X: Term, *, p: float, mode: str, is_test: bool, seed: int) -> Any:
    if not is_test:
        raise no_counterpart("dropout draws random numbers here", "export program.clone(for_test=True)")
    return (X * (1 - p) if mode == "downscale_in_infer" else g.Identity(X)), everywhere(g, X, 1, uint8)


@form
def uniform_random_like(
    g: Nodes, X: Term, *, min: float, max: float, test_value: float | None, is_test: bool, seed: int
) -> Term:
    if not is_test or test_value is None:
        raise no_counterpart("random numbers are drawn here", "export program.clone(for_test=True)")
    return everywhere(g, X, test_value, X.dtype)


forms(
    not_equal=lambda g, X, Y, *, axis: g.Not(g.Equal(X, placed(g, X, Y, axis))),
    logical_and=lambda g, X, Y: truth(g, X) & truth(g, Y),
    logical_or=lambda g, X, Y: truth(g, X) | truth(g, Y),
    logical_xor=lambda g, X, Y: g.Xor(truth(g, X), truth(g, Y)),
    logical_not=lambda g, X: g.Not(truth(g, X)),
    sign=lambda g, X: g.Sign(X),
    floor=lambda g, X: g.Floor(X) if X.dtype in FLOATS else g.Identity(X),
    ceil=lambda g, X: g.Ceil(X) if X.dtype in FLOATS else g.Identity(X),
    isnan=lambda g, X: g.IsNaN(X) if X.dtype in FLOATS else everywhere(g, X, False, bool_),
    isinf=lambda g, X: g.IsInf(X) if X.dtype in FLOATS else everywhere(g, X, False, bool_),
    isfinite=lambda g, X: g.Not(g.IsNaN(X) | g.IsInf(X)) if X.dtype in FLOATS else everywhere(g, X, True, bool_),
    square=lambda g, X: X * X,
    rsqrt=lambda g, X: g.Reciprocal(g.Sqrt(X)),
    pow=lambda g, X, *, factor: g.Pow(X, factor),
    log2=lambda g, X: g.Log(X) / math.log(2),
    log10=lambda g, X: g.Log(X) / math.log(10),
    fmax=lambda g, X, Y: _not_nan(g, X, Y, "Max"),
    fmin=lambda g, X, Y: _not_nan(g, X, Y, "Min"),
    hardtanh=lambda g, X, *, min, max: g.Clip(X, min, max),
    silu=lambda g, X: X * g.Sigmoid(X),
    softsign=lambda g, X: g.Softsign(X) if X.dtype != float64 else X / (1 + g.Abs(X)),
    leaky_relu=lambda g, X, *, alpha: (
        g.LeakyRelu(X, alpha=alpha) if fits_attribute(X, alpha) else g.Where(X > 0, X, alpha * X)
    ),
    sigmoid_cross_entropy_with_logits=lambda g, X, Label: g.Relu(X) - X * Label + log1p(g, g.Exp(-g.Abs(X))),
)
forms(
    exact=True,
    cast=lambda g, X, *, dtype: g.Cast(X, to=CODES[dtype], dtype=dtype),
    used_statistics=lambda g, Batch, Running, *, is_test: g.Identity(Running if is_test else Batch),
)
