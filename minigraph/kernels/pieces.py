"""Where the equal pieces of an array lie that several ranks share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def piece_size(size: int, ranks: int) -> int:
    """Elements of each piece of an array with so many."""
    return -(-size // ranks)


def piece_bounds(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first element of a rank's piece and the one behind its last; what the piece has more is zeros."""
    wide = piece_size(size, ranks)
    return min(rank * wide, size), min((rank + 1) * wide, size)


def piece(x: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """A rank's piece of an array, flat, as a new array."""
    start, end = piece_bounds(x.size, rank, ranks)
    out = np.zeros(piece_size(x.size, ranks), x.dtype)
    out[: end - start] = x.reshape(-1)[start:end]
    return out


def whole(pieces: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """The array of which all ranks' pieces are these, in their order."""
    return np.concatenate(pieces)[: math.prod(shape)].reshape(shape)
