"""Large products of float32 matrices by machine code of our own (`compiled/gemm.py`), where BLAS is slower.

A product is cut by shape alone into strips of its columns, below each other where there are many rows. A strip is
computed by one thread. What it has copied of its rows stays with the thread for the next strip of the same rows.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .epilogue import Epilogue

STRIP = 256  # columns that a thread computes at once
TILE = 32  # columns that machine code computes at once
INNER = 1024  # products that are added up before the rest: so many numbers of a row are copied at once
COPIED = 2**19  # numbers of rows that a thread has copied at most
LEAST = 64  # rows, columns, and products of each sum

Piece = tuple[int, Callable[[], None]]  # multiplications, and who does them


def faster(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `strips` can compute out = a @ b and is expected to be faster than BLAS.

    That is so for float32 and at least LEAST of everything, on the processors that `compiled/gemm.py` names.
    """
    if a.ndim != 2 or b.ndim != 2 or min(*a.shape, b.shape[1]) < LEAST:
        return False
    if any(x.dtype != np.float32 for x in (a, b, out)) or out.shape != (a.shape[0], b.shape[1]):
        return False
    return out.flags.writeable and out.strides[1] == out.itemsize and _machine_code() is not None


@cache
def _machine_code() -> Any:
    """The module that makes machine code; None without numba, or on another processor."""
    try:
        from .compiled import gemm
    except ImportError:
        return None
    return gemm if gemm.measured_here() else None


def strips(a: np.ndarray, b: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None) -> list[Piece]:
    """The pieces of out = a @ b, which may be done in any order by any thread. `out` shares no memory with others."""
    (m, k), found = a.shape, list[Piece]()
    if epilogue is not None:
        epilogue.check(out)
    height = max(STRIP, COPIED // min(k, INNER))
    columns = _columns(b.shape[1], STRIP if k <= INNER else 2 * STRIP)
    for rows in (slice(i, i + height) for i in range(0, m, height)):
        copied = object()
        for part in columns:
            follows = None if epilogue is None else epilogue.part(rows, part)
            strip = Strip(a[rows], b[:, part], out[rows, part], copied, follows)
            found.append((strip.out.size * k, strip))
    return found


def _columns(n: int, width: int) -> list[slice]:
    """n columns in strips; at the end narrow ones, so that threads end at about the same time."""
    wide = max(0, n - width) // width * width
    rest, parts = n - wide, -(-2 * (n - wide) // width)
    narrow = -(-rest // (parts * TILE)) * TILE
    starts = [*range(0, wide, width), *range(wide, n, narrow)]
    return [slice(start, stop) for start, stop in itertools.pairwise([*starts, n])]


class Strip:
    """out = a @ b, and what follows on it, computed when it is called.

    copied  what stands for the rows of `a` as they are now: the same object in all strips of them
    """

    def __init__(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, copied: object, epilogue: Epilogue | None
    ) -> None:
        self.a, self.b, self.out, self.copied, self.epilogue = a, b, out, copied, epilogue

    def __call__(self) -> None:
        gemm, (m, n), k = _machine_code(), self.out.shape, self.a.shape[1]
        memory = _own.memory_of(gemm.room(m, n, min(k, INNER)))
        fresh, _own.copied = _own.copied is not self.copied, None
        for start in range(0, k, INNER):
            a, b = self.a[:, start : start + INNER], self.b[start : start + INNER]
            follows = _numbers(self.epilogue if start + INNER >= k else None)
            gemm.multiply()(
                m, n, a.shape[1], _address(a), *a.strides, _address(b), *b.strides,
                _address(self.out), self.out.strides[0], start, _address(memory), fresh, *follows,
            )  # fmt: skip
        _own.copied = self.copied if k <= INNER else None


def _numbers(epilogue: Epilogue | None) -> tuple[int, int, int, int]:
    """An epilogue as machine code takes it: bias, relu, mask, bytes from a row of the mask to the next."""
    if epilogue is None:
        return 0, 0, 0, 0
    bias, mask = epilogue.bias, epilogue.mask
    bits = (0, 0) if mask is None else (_address(mask), mask.strides[0])
    return 0 if bias is None else _address(bias), epilogue.relu, *bits


class _Copies(threading.local):
    """What a thread keeps: memory, and what stands for the rows that lie copied in it."""

    memory = np.empty(0, np.uint8)
    copied: object = None

    def memory_of(self, size: int) -> np.ndarray:
        """At least so many bytes."""
        if self.memory.size < size:
            self.memory, self.copied = np.empty(size, np.uint8), None
        return self.memory


_own = _Copies()


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]
