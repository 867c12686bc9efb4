"""Arrays one behind the other in one piece of memory, so that they can be seen as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

ALIGNMENT = 256  # bytes; what vector accesses and matrix products like


def rounded(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def in_a_row(buffers: Iterable[Any]) -> tuple[list[tuple[Any, int]], int]:
    """([(buffer, offset)], bytes in all), one behind the other."""
    placed, end = [], 0
    for b in buffers:
        placed.append((b, end))
        end += rounded(b.nbytes)
    return placed, end


def begin(x: np.ndarray) -> int:
    """The address of its first element."""
    return x.__array_interface__["data"][0]


def in_one_piece(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The memory from the first array to the end of the last, flat; None where they do not lie in a row of bytes.

    Between two of them are fewer bytes than ALIGNMENT, which belong to nobody.
    """
    some = [x for x in arrays if x.size]
    base = some[0].base if some else None
    if not isinstance(base, np.ndarray) or base.dtype != np.uint8 or base.ndim != 1:
        return None
    first = end = begin(some[0])
    for x in some:
        fits = x.base is base and x.dtype == some[0].dtype and x.flags.c_contiguous
        if not fits or not 0 <= begin(x) - end < ALIGNMENT:
            return None
        end = begin(x) + x.nbytes
    start = first - begin(base)
    return base[start : start + end - first].view(some[0].dtype)
