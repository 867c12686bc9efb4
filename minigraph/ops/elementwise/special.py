"""The error function, its inverse, and the gamma function's logarithm with its derivatives."""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.kernels import bessel, gamma, special
from minigraph.opdef import op

from .unary import SHAPES, draw, infer_float


@op(traits={"elementwise"}, cuda="erf(X)")
def erf(X):
    """The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to X."""
    return special.erf(X)


@erf.grad
def _(g, X, Out_grad):
    bell = g.exp(g.scale(g.square(X), scale=-1.0))
    return g.scale(g.elementwise_mul(Out_grad, bell), scale=2 / math.sqrt(math.pi))


@erf.samples
def _(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {}
    yield (np.array([0.0, 1e-9, -1.0, 1.0001, 5.0, -30.0]),), {}


@op(traits={"elementwise"}, cuda="erfinv(X)")
def erfinv(X):
    """The number whose error function is X; infinite at -1 and 1, NaN beyond."""
    return special.erf_inverse(X)


@erfinv.grad
def _(g, Out, Out_grad):
    return g.scale(g.elementwise_mul(Out_grad, g.exp(g.square(Out))), scale=math.sqrt(math.pi) / 2)


@erfinv.samples
def _(rng):
    for shape in SHAPES:
        yield (np.asarray(rng.uniform(-0.9, 0.9, shape)),), {}


@op(traits={"elementwise"}, cuda="lgamma(X)")
def lgamma(X):
    """log |gamma(X)|, infinite at 0, -1, -2, ..."""
    return gamma.log_gamma(X)


@lgamma.grad
def _(g, X, Out_grad):
    return g.elementwise_mul(Out_grad, g.polygamma(X))


@lgamma.samples
def _(rng):
    for shape in SHAPES:
        yield (np.asarray(rng.uniform(0.3, 4.0, shape)),), {}
    yield (np.array([-0.5, -1.5, -3.25, 20.0]),), {}


@op(traits={"elementwise"}, cuda=lambda attrs: f"polygamma(X, {attrs['n']})")
def polygamma(X, *, n: int = 0):
    """The n-th derivative of the digamma function, which is that of lgamma; NaN below -10000.

    At 0, -1, -2, ... digamma itself (n = 0) is NaN.
    """
    return gamma.polygamma(X, n)


@polygamma.infer
def _(X, *, n):
    require(0 <= n <= 20, f"n must lie in [0, 20], is {n}", AttrError)
    return infer_float(X)


@polygamma.grad
def _(g, X, Out_grad, *, n):
    return g.elementwise_mul(Out_grad, g.polygamma(X, n=n + 1))


@polygamma.samples
def _(rng):
    for shape in SHAPES:
        yield (np.asarray(rng.uniform(0.5, 4.0, shape)),), {}
    yield (np.array([-0.5, -1.25, 30.0, 1.5]),), {}
    yield (np.asarray(rng.uniform(1.0, 4.0, (4, 3))),), {"n": 1}
    yield (np.asarray(rng.uniform(1.0, 4.0, (4, 3))),), {"n": 2}


@op(traits={"elementwise"}, cuda="scaled_bessel(X, 0)")
def i0e(X):
    """The modified Bessel function I0(X), divided by e^|X|."""
    return bessel.scaled_bessel(X, 0)


@i0e.grad
def _(g, X, Out, Out_grad):
    slope = g.elementwise_sub(g.i1e(X), g.elementwise_mul(g.sign(X), Out))
    return g.elementwise_mul(Out_grad, slope)


@op(traits={"elementwise"}, cuda="scaled_bessel(X, 1)")
def i1e(X):
    """The modified Bessel function I1(X), divided by e^|X|."""
    return bessel.scaled_bessel(X, 1)


@i1e.grad
def _(g, X, Out, Out_grad):
    """I0 - I1 / X, of which 1/2 is left at 0, and what e^-|X| adds."""
    zero = g.equal(X, g.fill_any_like(X, value=0.0))
    divisor = g.where(zero, g.fill_any_like(X, value=1.0), X)
    ratio = g.where(zero, g.fill_any_like(X, value=0.5), g.elementwise_div(Out, divisor))
    slope = g.elementwise_sub(g.i0e(X), g.elementwise_add(ratio, g.elementwise_mul(g.sign(X), Out)))
    return g.elementwise_mul(Out_grad, slope)


def _bessel_samples(rng):
    for shape in SHAPES:
        yield (draw(rng, shape),), {}
    yield (np.array([-3.0, 19.9, 20.5, -700.0, 1e4]),), {}
    yield (np.array([0.0, 1e-6], np.float32),), {}


i0e.samples(_bessel_samples)
i1e.samples(_bessel_samples)

for _op in (erf, erfinv, lgamma, i0e, i1e):
    _op.infer(infer_float)
