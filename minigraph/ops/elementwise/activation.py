"""Activation functions. A grad operator's inputs say what backward keeps: relu_grad the output,
gelu_grad the input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.kernels.special import normal_cdf, normal_pdf
from minigraph.opdef import op

from .elementwise import destination, draw, masked
from .unary import SHAPES, infer_float, signed

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
TANH_CUBE = 0.044715
LONG = 32  # elements of a row from which a loop over rows is faster than one over elements

# C++ of gelu and of grad operators, with functions of record/prelude.cuh; True is the tanh form.
GELU = {False: "X * normal_cdf(X)", True: "X * logistic(C(2) * gelu_inner(X))"}
GELU_GRAD = {False: "Out_grad * (normal_cdf(X) + X * normal_pdf(X))", True: "Out_grad * gelu_tanh_slope(X)"}
SILU_GRAD = "[&] { const C s = C(1) / (C(1) + exp(-X)); return Out_grad * (C(1) + X * (C(1) - s)) * s; }()"


def _pairs(rng):
    for shape in SHAPES:
        yield (draw(rng, shape), draw(rng, shape)), {}


def positive_part(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """max(x, 0); NaN stays NaN. NumPy has vector code for it where both operands lie in memory, not for a number."""
    zeros = np.zeros(x.shape[-1:] if x.ndim and x.shape[-1] >= LONG else (), x.dtype)
    return np.maximum(x, zeros, out=out)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="X < C(0) ? C(0) : X")
def relu(X, *, out=None):
    """max(X, 0); NaN stays NaN."""
    return positive_part(X, out=out[0] if out else None)


@op("X_grad", of=relu, traits={"elementwise"}, inplace={"X_grad": "Out_grad"}, cuda="Out > C(0) ? Out_grad : C(0)")
def relu_grad(Out, Out_grad, *, out=None):
    """Out_grad where Out > 0, else 0."""
    return masked(Out_grad, Out > 0, out[0] if out else None)


@relu_grad.grad
def _(g, Out, X_grad_grad):
    return None, g.relu_grad(Out, X_grad_grad)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="X > C(0) ? X : alpha * X")
def leaky_relu(X, *, alpha: float = 0.02, out=None):
    """X where X > 0, else alpha * X."""
    return np.multiply(X, _leaky_slope(X, alpha), out=out[0] if out else None)


def _leaky_slope(X: np.ndarray, alpha: float) -> np.ndarray:
    slopes = np.array([alpha, 1], X.dtype)
    return slopes[(X >= 0).view(np.int8)]


@leaky_relu.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {"alpha": 0.1}


@op("X_grad", of=leaky_relu, traits={"elementwise"}, inplace={"X_grad": "Out_grad"},
    cuda="X >= C(0) ? Out_grad : alpha * Out_grad")  # fmt: skip
def leaky_relu_grad(X, Out_grad, *, alpha: float = 0.02, out=None):
    """Out_grad where X >= 0, else alpha * Out_grad."""
    return np.multiply(Out_grad, _leaky_slope(X, alpha), out=out[0] if out else None)


@leaky_relu_grad.grad
def _(g, X, X_grad_grad, *, alpha):
    return None, g.leaky_relu_grad(X, X_grad_grad, alpha=alpha)


def gelu_slope(x: np.ndarray, approximate: bool) -> np.ndarray:
    """The derivative of gelu."""
    if not approximate:
        slope = normal_pdf(x)
        slope *= x
        slope += normal_cdf(x)
        return slope
    t, inner = tanh_argument(x, np.empty(x.shape, x.dtype)), x * x
    np.tanh(t, out=t)
    inner *= 3 * SQRT_2_OVER_PI * TANH_CUBE
    inner += SQRT_2_OVER_PI  # the derivative of tanh's argument
    inner *= x
    inner *= 1 - t * t
    t += 1
    t += inner
    t *= 0.5
    return t


def tanh_argument(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """sqrt(2 / pi) * (x + TANH_CUBE * x^3), written into `out`."""
    np.multiply(x, x, out=out)
    out *= SQRT_2_OVER_PI * TANH_CUBE
    out += SQRT_2_OVER_PI
    out *= x
    return out


@op(traits={"elementwise"}, cuda=lambda a: GELU[a["approximate"]])
def gelu(X, *, approximate: bool = False, out=None):
    """X * Phi(X), Phi the normal distribution function; approximate=True uses the tanh form.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415.
    """
    Out = destination(out, X)
    if approximate:
        np.tanh(tanh_argument(X, Out), out=Out)
        Out += 1
        Out *= 0.5
    else:
        normal_cdf(X, out=Out)
    Out *= X
    return Out


@gelu.samples
def _(rng):
    for approximate in (False, True):
        for shape in SHAPES:
            yield (draw(rng, shape),), {"approximate": approximate}


@op("X_grad", of=gelu, traits={"elementwise"}, inplace={"X_grad": "Out_grad"},
    cuda=lambda a: GELU_GRAD[a["approximate"]])  # fmt: skip
def gelu_grad(X, Out_grad, *, approximate: bool = False, out=None):
    """Out_grad times the derivative of gelu at X."""
    return np.multiply(Out_grad, gelu_slope(X, approximate), out=out[0] if out else None)


@gelu_grad.grad
def _(g, X, Out_grad, X_grad_grad, *, approximate):
    product = g.elementwise_mul(Out_grad, X_grad_grad)
    bend = _gelu_bend(g, X, approximate)
    return g.elementwise_mul(product, bend), g.gelu_grad(X, X_grad_grad, approximate=approximate)


def _gelu_bend(g: Any, X: Any, approximate: bool) -> Any:
    """The second derivative: phi(X) * (2 - X^2), with t = tanh(u) (1 - t^2) * (u' + X * (u'' / 2 - t * u'^2))."""
    square = g.square(X)
    if not approximate:
        density = g.scale(g.exp(g.scale(square, scale=-0.5)), scale=1 / math.sqrt(2 * math.pi))
        return g.elementwise_mul(density, g.scale(square, scale=-1.0, bias=2.0))
    cube = SQRT_2_OVER_PI * TANH_CUBE
    t = g.tanh(g.elementwise_mul(X, g.scale(square, scale=cube, bias=SQRT_2_OVER_PI)))
    u1, half_u2 = g.scale(square, scale=3 * cube, bias=SQRT_2_OVER_PI), g.scale(X, scale=3 * cube)
    inner = g.elementwise_sub(half_u2, g.elementwise_mul(t, g.square(u1)))
    slope = g.scale(g.square(t), scale=-1.0, bias=1.0)
    return g.elementwise_mul(slope, g.elementwise_add(u1, g.elementwise_mul(X, inner)))


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="tanh(X)")
def tanh(X, *, out=None):
    """The hyperbolic tangent of X."""
    return np.tanh(X, out=out[0] if out else None)


@op("X_grad", of=tanh, traits={"elementwise"}, inplace={"X_grad": "Out"}, cuda="Out_grad * (C(1) - Out * Out)")
def tanh_grad(Out, Out_grad, *, out=None):
    """Out_grad * (1 - Out^2)"""
    slope = np.multiply(Out, Out, out=destination(out, Out))
    np.subtract(1, slope, out=slope)
    return np.multiply(Out_grad, slope, out=slope)


@tanh_grad.grad
def _(g, Out, Out_grad, X_grad_grad):
    product = g.elementwise_mul(g.elementwise_mul(Out_grad, X_grad_grad), Out)
    return g.scale(product, scale=-2.0), g.tanh_grad(Out, X_grad_grad)


def one_plus_exp_minus(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """1 + exp(-x), written into `out`; infinite where x is very negative, which 1/... turns into 0."""
    with np.errstate(over="ignore"):
        np.exp(np.negative(x, out=out), out=out)
    return np.add(out, 1, out=out)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="C(1) / (C(1) + exp(-X))")
def sigmoid(X, *, out=None):
    """1 / (1 + exp(-X))"""
    Out = one_plus_exp_minus(X, destination(out, X))
    return np.reciprocal(Out, out=Out)


@op("X_grad", of=sigmoid, traits={"elementwise"}, cuda="Out_grad * (C(1) - Out) * Out")
def sigmoid_grad(Out, Out_grad, *, out=None):
    """Out_grad * Out * (1 - Out)"""
    slope = np.subtract(1, Out, out=destination(out, Out))
    np.multiply(slope, Out, out=slope)
    return np.multiply(Out_grad, slope, out=slope)


@sigmoid_grad.grad
def _(g, Out, Out_grad, X_grad_grad):
    product = g.elementwise_mul(Out_grad, X_grad_grad)
    return g.elementwise_mul(product, g.scale(Out, scale=-2.0, bias=1.0)), g.sigmoid_grad(Out, X_grad_grad)


@op(traits={"elementwise"}, cuda="X / (C(1) + exp(-X))")
def silu(X, *, out=None):
    """X * sigmoid(X), also called swish."""
    Out = one_plus_exp_minus(X, destination(out, X))
    return np.divide(X, Out, out=Out)


@op("X_grad", of=silu, traits={"elementwise"}, cuda=SILU_GRAD)
def silu_grad(X, Out_grad, *, out=None):
    """Out_grad * s * (1 + X * (1 - s)), s = sigmoid(X)"""
    s = one_plus_exp_minus(X, destination(out, X))
    np.reciprocal(s, out=s)
    slope = 1 - s
    slope *= X
    slope += 1
    s *= slope
    s *= Out_grad
    return s


@silu_grad.grad
def _(g, X, Out_grad, X_grad_grad):
    """silu'' = s * (1 - s) * (2 + X * (1 - 2 s))"""
    s = g.sigmoid(X)
    bend = g.scale(g.elementwise_mul(X, g.scale(s, scale=-2.0, bias=1.0)), bias=2.0)
    product = g.elementwise_mul(g.elementwise_mul(Out_grad, X_grad_grad), bend)
    return g.sigmoid_grad(s, product), g.silu_grad(X, X_grad_grad)


for _op in (relu, tanh, sigmoid, silu):
    _op.samples(signed)

relu_grad.samples(_pairs)

for _op in (relu, gelu, leaky_relu, tanh, sigmoid, silu):
    _op.infer(infer_float)
