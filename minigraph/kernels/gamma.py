"""The gamma function's logarithm and the derivatives of that, which NumPy lacks.

polygamma follows its recurrence up to where Stirling's series holds (Abramowitz and Stegun, 6.3.18 and 6.4.11).
"""

from __future__ import annotations

import math

import numpy as np

LOWEST = -10000.0  # the recurrence would take too long below
FAR = 16.0  # where eight terms of the series give all digits
SERIES = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000,
)  # fmt: skip  # Bernoulli's numbers B_2k / (2k)!


def _log_gamma(x: float) -> float:
    return math.inf if x == -math.inf or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


def log_gamma(x: np.ndarray) -> np.ndarray:
    """log |gamma(x)|, infinite at 0, -1, -2, ..."""
    return np.vectorize(_log_gamma, otypes=[np.float64])(x).astype(x.dtype)


def polygamma(x: np.ndarray, n: int) -> np.ndarray:
    """The n-th derivative of the digamma function; NaN below LOWEST, and for n = 0 at 0, -1, -2, ..."""
    given, x = x, np.array(x, np.float64)
    none = (x < LOWEST) | ((x <= 0) & (x == np.floor(x)) if n == 0 else False) | np.isnan(x)
    x[none] = 1.0
    extra = np.zeros_like(x)
    if n == 0:
        below = x < 0
        rest = x[below] - np.round(x[below])  # the tangent has period 1, and is exact there
        extra[below] = -math.pi / np.tan(math.pi * rest)
        x[below] = 1 - x[below]
    shifted = np.zeros_like(x)
    with np.errstate(divide="ignore"):
        while (small := x < FAR + n).any():
            shifted[small] += x[small] ** (-1.0 - n)
            x[small] += 1
        inverse = 1 / x
        term = inverse**2 if n == 0 else (n + 1) * inverse ** (n + 2)
        series = np.zeros_like(x)
        for k, b in enumerate(SERIES):
            series += b * term
            term = term * inverse**2 * ((n + 2 * k + 2) * (n + 2 * k + 3))
        if n == 0:
            result = np.log(x) - 0.5 * inverse - series - shifted + extra
        else:
            zeta = shifted + inverse**n / n + 0.5 * inverse ** (n + 1) + series
            result = (1 if n % 2 else -1) * math.factorial(n) * zeta
    return np.where(none, np.nan, result).astype(given.dtype)
