"""Norms of whole tensors on a CPU: block by block, so no array of squares or magnitudes is made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BLOCK = 131072  # elements


def p_norm(X: np.ndarray, *, porder: float) -> np.ndarray:
    """The norm of order 1, 2 or inf; blocks are put together in float64."""
    x = X.reshape(-1)
    parts = [_of_block(x[i : i + BLOCK], porder) for i in range(0, x.size, BLOCK)]
    if porder == math.inf:
        return np.asarray(np.max(parts, initial=0.0), X.dtype)
    return np.asarray(sum(parts) if porder == 1 else math.sqrt(sum(parts)), X.dtype)


def foreach_p_norm(X: Sequence[np.ndarray], *, porder: float) -> list[np.ndarray]:
    """p_norm of each array."""
    return [p_norm(x, porder=porder) for x in X]


def _of_block(x: np.ndarray, porder: float) -> float:
    if porder == 2:
        return float(np.dot(x, x))
    return float(np.sum(np.abs(x)) if porder == 1 else np.max(np.abs(x)))
