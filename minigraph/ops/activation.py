"""Activation functions. A grad operator's inputs say what backward keeps: relu_grad the output,
gelu_grad the input."""

from __future__ import annotations

import math

import numpy as np

from ..kernels.special import normal_cdf, normal_pdf
from ..opdef import op

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
TANH_CUBE = 0.044715


@op(traits={"elementwise"}, inplace={"Out": "X"})
def relu(X, *, out=None):
    """max(X, 0); NaN stays NaN."""
    return np.maximum(X, X.dtype.type(0), out=out[0] if out else None)


@relu.grad
def _(g, Out, Out_grad):
    return g.relu_grad(Out, Out_grad)


@relu.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}


@op("X_grad", traits={"elementwise"}, inplace={"X_grad": "Out_grad"})
def relu_grad(Out, Out_grad, *, out=None):
    """Out_grad where Out > 0, else 0."""
    return np.multiply(Out_grad, Out > 0, out=out[0] if out else None)


@relu_grad.infer
def _(Out, Out_grad):
    return Out


@relu_grad.grad
def _(g, Out, X_grad_grad):
    return None, g.relu_grad(Out, X_grad_grad)


@relu_grad.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 3))), {}


def gelu_slope(x: np.ndarray, approximate: bool) -> np.ndarray:
    """The derivative of gelu."""
    if not approximate:
        return normal_cdf(x) + x * normal_pdf(x)
    t = np.tanh(SQRT_2_OVER_PI * (x + TANH_CUBE * x**3))
    return (1 + t + x * (1 - t * t) * (SQRT_2_OVER_PI * (1 + 3 * TANH_CUBE * x * x))) * x.dtype.type(0.5)


@op(traits={"elementwise"})
def gelu(X, *, approximate: bool = False):
    """X * Phi(X), Phi the normal distribution function; approximate=True uses the tanh form.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415.
    """
    if approximate:
        return X * ((1 + np.tanh(SQRT_2_OVER_PI * (X + TANH_CUBE * X**3))) * X.dtype.type(0.5))
    return X * normal_cdf(X)


@gelu.grad
def _(g, X, Out_grad, *, approximate):
    return g.gelu_grad(X, Out_grad, approximate=approximate)


@gelu.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=(4, 3)),), {"approximate": True}


@op("X_grad", traits={"elementwise"})
def gelu_grad(X, Out_grad, *, approximate: bool = False):
    """Out_grad times the derivative of gelu at X."""
    return Out_grad * gelu_slope(X, approximate)


@gelu_grad.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 3))), {}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 3))), {"approximate": True}
