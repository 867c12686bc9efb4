"""Large products by machine code of our own (`compiled/gemm.py`), where that is faster than BLAS.

A product is cut by shape alone into strips of its columns, below each other where there are many rows. Each strip is
computed by one thread, which keeps the rows that it has copied for the next strip of the same ones.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

STRIP = 256  # columns that a thread computes at once
WIDE_STRIP = 512  # where rows do not stay from strip to strip
WHOLE = 32  # columns of a tile
INNER = 1024  # products that are added up before the rest: so many numbers of a row are kept
KEPT = 2**19  # numbers of rows that a thread keeps
LEAST = 64  # rows, columns and products of each, below which BLAS is as fast


def faster(m: int, n: int, k: int, dtype: np.dtype) -> bool:
    """Whether a product of these sizes is faster this way here: on processors on which it was measured."""
    return min(m, n, k) >= LEAST and dtype.char == "f" and _machine_code() is not None


@cache
def _machine_code() -> Any:
    """The module that makes machine code; None without numba, or on another processor."""
    try:
        from .compiled import gemm
    except ImportError:
        return None
    return gemm if gemm.measured_here() else None


def strips(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> list[tuple[int, Callable[[], None]]]:
    """(multiplications, call) of each strip of out = a @ b, which may run in any order on any thread."""
    (m, k), n = a.shape, b.shape[1]
    rows = max(STRIP, KEPT // min(k, INNER))
    columns = _columns(n, STRIP if k <= INNER else 2 * STRIP)
    found = list[tuple[int, Callable[[], None]]]()
    for i in range(0, m, rows):
        kept = object()
        for part in columns:
            strip = Strip(a[i : i + rows], b[:, part], out[i : i + rows, part], kept)
            found.append((strip.out.size * k, strip))
    return found


def _columns(n: int, width: int) -> list[slice]:
    """Strips of n columns; at the end narrow ones, so that threads end at about the same time."""
    wide = max(0, n - width) // width * width
    rest, parts = n - wide, -(-2 * (n - wide) // width)
    narrow = -(-rest // (parts * WHOLE)) * WHOLE
    starts = [*range(0, wide, width), *range(wide, n, narrow)]
    return [slice(start, stop) for start, stop in itertools.pairwise([*starts, n])]


class Strip:
    """out = a @ b, computed when it is called.

    rows  what the rows of `a` are known by among all strips
    """

    def __init__(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, rows: object) -> None:
        self.a, self.b, self.out, self.rows = a, b, out, rows

    def __call__(self) -> None:
        gemm, (m, n), k = _machine_code(), self.out.shape, self.a.shape[1]
        once = k <= INNER
        memory = _own.memory_of(gemm.room(m, n, min(k, INNER)))
        multiply = gemm.multiply()
        fresh = not once or _own.rows is not self.rows
        _own.rows = None
        for start in range(0, k, INNER):
            a, b = self.a[:, start : start + INNER], self.b[start : start + INNER]
            multiply(
                m, n, a.shape[1], _address(a), *a.strides, _address(b), *b.strides,
                _address(self.out), self.out.strides[0], start, _address(memory), fresh,
            )  # fmt: skip
        _own.rows = self.rows if once else None


class _Own(threading.local):
    """What a thread keeps: memory, and which rows lie in it."""

    memory: np.ndarray | None = None
    rows: object = None

    def memory_of(self, size: int) -> np.ndarray:
        """At least so many bytes."""
        if self.memory is None or self.memory.size < size:
            self.memory, self.rows = np.empty(size, np.uint8), None
        return self.memory


_own = _Own()


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]
