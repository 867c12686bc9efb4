"""Modified Bessel functions of the first kind, which NumPy lacks, divided by e^|x|.

Up to NEAR by their power series, whose terms are positive; beyond by Hankel's expansion, whose smallest term there
is below e^-40 (Abramowitz and Stegun, 9.6.10 and 9.7.1).
"""

from __future__ import annotations

import numpy as np

NEAR = 20.0
TERMS_NEAR, TERMS_FAR = 64, 30


def scaled_bessel(x: np.ndarray, order: int) -> np.ndarray:
    """I_order(x) e^-|x| for order 0 or 1."""
    wide = np.abs(x.astype(np.float64))
    near, far = np.minimum(wide, NEAR), np.maximum(wide, NEAR)
    term = np.exp(-near) * (near / 2 if order else 1.0)
    series = term.copy()
    for k in range(1, TERMS_NEAR):
        term = term * (near * near / 4 / (k * (k + order)))
        series += term
    term = 1 / np.sqrt(2 * np.pi * far)
    expansion = term.copy()
    for k in range(1, TERMS_FAR):
        term = term * (((2 * k - 1) ** 2 - 4 * order) / (8 * k) / far)
        expansion += term
    result = np.where(wide <= NEAR, series, np.where(np.isnan(wide), np.nan, expansion))
    return (np.copysign(result, x.astype(np.float64)) if order else result).astype(x.dtype)
