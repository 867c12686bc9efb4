"""Functions that NumPy lacks: the error function, the normal distribution's function, density and quantile.

With u = SLOPE x and w = u / (1 + u), E(w) = erfc(x / sqrt 2) exp(x^2 / 2) (1 + u) / 2 is smooth on [0, 1),
x from 0 to infinity, so one short polynomial in w gives Phi(-x) = E(w) exp(-x^2 / 2) / (1 + u) to the
last digits in the whole tail. Its coefficients are computed in 40-digit arithmetic at first use:
there is no table of constants. Arrays are worked on in blocks whose temporaries stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import cache
from statistics import NormalDist

import numpy as np

BLOCK = 16384  # elements
SLOPE = 0.3
DEGREES = {np.dtype("float64"): 23, np.dtype("float32"): 10}
FARTHEST = 40.0  # Phi(-40) is 0 in float64; keeps infinity out of u / (1 + u)
SPLITTER = 2.0**27 + 1  # Veltkamp's constant: parts a float64 into two halves of 26 bits
PI = Decimal("3.141592653589793238462643383279502884197169")
CENTRAL = 0.4773  # a little more than Phi(2) - 1/2
CENTRAL_DEGREE = 56
ERF_TERMS = 24  # of the power series for |x| <= 1


def normal_cdf(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Phi(x) = erfc(-x / sqrt 2) / 2; NaN stays NaN. `out` may be x itself.

    float64: error below 3e-16, in the lower tail below 2e-15 of the value; float32: below 1.2e-7.
    """
    coefficients = [x.dtype.type(c) for c in _tail_coefficients(DEGREES[x.dtype])]
    result = np.empty(x.shape, x.dtype) if out is None else out
    for x_block, tail, (distance, w, below) in _blocks(x, result, temporaries=3):
        upper = np.greater(x_block, 0)
        np.abs(x_block, out=distance)
        np.minimum(distance, FARTHEST, out=distance)
        np.multiply(distance, SLOPE, out=w)
        np.add(w, 1, out=below)
        np.divide(w, below, out=w)
        np.multiply(w, coefficients[-1], out=tail)
        for c in coefficients[-2:0:-1]:
            np.add(tail, c, out=tail)
            np.multiply(tail, w, out=tail)
        np.add(tail, coefficients[0], out=tail)
        np.divide(tail, below, out=tail)
        _times_exp_half_square(tail, distance, w, below)
        np.subtract(upper, tail, out=tail)  # 1 - tail above 0, -tail below
        np.abs(tail, out=tail)
    return result


def _times_exp_half_square(y: np.ndarray, x: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """y *= exp(-x^2 / 2) in place; x, a and b are overwritten.

    In float64 with the part of x^2 that rounding drops, which the exponential would magnify:
    x = high + low gives x^2 - fl(x^2) = (high^2 - fl(x^2)) + low (x + high), each step exact or nearly so.
    """
    if x.dtype == np.float64:
        high, low = a, b
        np.multiply(x, SPLITTER, out=high)
        np.subtract(high, x, out=low)
        np.subtract(high, low, out=high)
        np.subtract(x, high, out=low)
        dropped = low * (x + high)
        np.multiply(x, x, out=x)
        np.multiply(high, high, out=high)
        np.subtract(high, x, out=high)
        np.add(dropped, high, out=dropped)
        np.multiply(dropped, -0.5, out=dropped)
        np.multiply(dropped, y, out=dropped)
        np.add(y, dropped, out=y)
    else:
        np.multiply(x, x, out=x)
    np.multiply(x, -0.5, out=x)
    np.exp(x, out=x)
    np.multiply(y, x, out=y)


def normal_pdf(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The density exp(-x^2/2) / sqrt(2 pi). `out` may be x itself."""
    result = np.empty(x.shape, x.dtype) if out is None else out
    for x_block, y, _ in _blocks(x, result, temporaries=0):
        np.multiply(x_block, x_block, out=y)
        np.multiply(y, -0.5, out=y)
        np.exp(y, out=y)
        np.multiply(y, 1 / math.sqrt(2 * math.pi), out=y)
    return result


def _blocks(
    x: np.ndarray, result: np.ndarray, temporaries: int
) -> Iterator[tuple[np.ndarray, np.ndarray, list[np.ndarray]]]:
    """Pieces of x, the same pieces of result (C-contiguous), and temporaries of that length."""
    source, target = x.reshape(-1), result.reshape(-1)
    kept = [np.empty(min(BLOCK, source.size), source.dtype) for _ in range(temporaries)]
    for start in range(0, source.size, BLOCK):
        piece = source[start : start + BLOCK]
        yield piece, target[start : start + BLOCK], [k[: piece.size] for k in kept]


@cache
def _tail_coefficients(degree: int) -> tuple[float, ...]:
    """Coefficients of E in powers of w: the interpolant at Chebyshev's points, rounded once at the end."""
    with localcontext() as context:
        context.prec = 40
        count = degree + 1
        points = [Decimal((1 - math.cos(math.pi * (2 * j + 1) / (2 * count))) / 2) for j in range(count)]
        scale = Decimal(SLOPE) * Decimal(2).sqrt()
        differences = [_scaled_erfc(w / (1 - w) / scale) / (1 - w) / 2 for w in points]
        for k in range(1, count):  # Newton's divided differences
            for j in range(degree, k - 1, -1):
                differences[j] = (differences[j] - differences[j - 1]) / (points[j] - points[j - k])
        powers = [differences[-1]]
        for point, difference in zip(points[-2::-1], differences[-2::-1], strict=True):
            shifted = [Decimal(0), *powers]  # powers * (w - point) + difference
            powers = [s - point * p for s, p in zip(shifted, [*powers, Decimal(0)], strict=True)]
            powers[0] += difference
        return tuple(float(p) for p in powers)


def _scaled_erfc(z: Decimal) -> Decimal:
    """erfc(z) exp(z^2), by the power series of erf for small z, else by its continued fraction."""
    if z < 4:
        term = total = z
        n = 0
        while term > total.scaleb(-40):
            n += 1
            term *= 2 * z * z / (2 * n + 1)
            total += term
        return (z * z).exp() - 2 / PI.sqrt() * total
    fraction = Decimal(0)
    for k in range(120, 0, -1):
        fraction = Decimal(k) / 2 / (z + fraction)
    return 1 / (PI.sqrt() * (z + fraction))


def central_normal_quantile(q: np.ndarray) -> np.ndarray:
    """z with Phi(z) - 1/2 = q, for float64 |q| <= CENTRAL, that is |z| <= 2; error below 1e-13."""
    return q * np.polynomial.chebyshev.chebval(2 * (q / CENTRAL) ** 2 - 1, _quantile_series())


@cache
def _quantile_series() -> np.ndarray:
    """Chebyshev coefficients of Phi^-1(1/2 + q) / q over q^2 in [0, CENTRAL^2]."""
    inverse = NormalDist().inv_cdf

    def ratio(s: float) -> float:
        q = CENTRAL * math.sqrt((s + 1) / 2)
        return inverse(0.5 + q) / q

    return np.polynomial.chebyshev.chebinterpolate(np.vectorize(ratio), CENTRAL_DEGREE)


def erf(x: np.ndarray) -> np.ndarray:
    """2 Phi(sqrt(2) x) - 1; near 0 by its power series, which keeps relative accuracy."""
    wide = np.asarray(x, np.float64)
    near = np.clip(wide, -1, 1)
    term, series = near.copy(), near.copy()
    for k in range(1, ERF_TERMS):
        term *= near * near / -k
        series += term / (2 * k + 1)
    far = 1 - 2 * normal_cdf(np.asarray(-math.sqrt(2) * np.abs(wide)))
    size = np.where(np.abs(wide) <= 1, 2 / math.sqrt(math.pi) * np.abs(series), far)
    return np.copysign(size, wide).astype(x.dtype)  # -0.0, too


def erf_inverse(y: np.ndarray) -> np.ndarray:
    """x with erf(x) = y; infinite at -1 and 1, NaN beyond."""
    size = np.abs(np.asarray(y, np.float64))
    inside = np.where(size < 1, size, 0.5)
    tail = np.log((1 - inside) * (1 + inside))  # Winitzki's approximation, then Halley's steps
    half = 2 / (math.pi * 0.147) + tail / 2
    x = np.sqrt(np.maximum(np.sqrt(half * half - tail / 0.147) - half, 0))
    for _ in range(3):
        beyond = 1 - inside - 2 * normal_cdf(np.asarray(-math.sqrt(2) * x))
        error = np.where(x > 0.5, beyond, erf(x) - inside)
        step = error / (2 / math.sqrt(math.pi) * np.exp(-x * x))
        x = x - step / (1 + x * step)
    x = np.where(size < 1, x, np.where(size == 1, np.inf, np.nan))
    return np.copysign(x, y).astype(y.dtype)
