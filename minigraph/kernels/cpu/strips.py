"""Large products of float32 matrices by machine code of our own (`compiled/gemm.py`), where BLAS is slower.

A product is cut by shape alone into strips of its columns, below each other where there are many rows. Each thread
computes one strip after the other in one call of machine code: where a strip was computed, little of Python's own
memory is left in the caches. What a thread has copied of its rows stays for its next strip of the same rows.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.cores import cores
from minigraph.kernels.interrupts import deferred
from minigraph.kernels.parallel import together

STRIP = 256  # columns that a thread computes at once
TILE = 32  # columns that machine code computes at once
COPIED = 2**19  # numbers of rows that a thread has copied at most
LEAST = 64  # rows, and products of each sum


class ProductEpilogue(NamedTuple):
    """Bias, then relu, or the mask of a relu before: of a float32 product of M rows and N columns.

    by_numpy  the same on the whole product, in place: for products that BLAS computes
    bias      [N], added to each row
    relu      whether numbers below 0 become 0
    mask      uint8 [M, 16 * ceil(N / 128)], zeros beyond N bits. With `relu` bits are written: whether a number is
              above 0. Without, numbers whose bit is 0 become 0
    """

    by_numpy: Callable[[np.ndarray], object]
    bias: np.ndarray | None = None
    relu: bool = False
    mask: np.ndarray | None = None

    def check(self, out: np.ndarray) -> None:
        """These are arrays for this product. Errors: ValueError; machine code would write other memory."""
        (m, n), bias, mask = out.shape, self.bias, self.mask
        fits = bias is None or (bias.shape == (n,) and bias.dtype == np.float32 and bias.flags.c_contiguous)
        if mask is not None:
            fits &= mask.shape == (m, -(-n // 128) * 16) and mask.dtype == np.uint8 and mask.flags.c_contiguous
            fits &= mask.flags.writeable or not self.relu
        if not fits:
            raise ValueError(f"bias {_shown(bias)} and mask {_shown(mask)} are not those of float32[{m}, {n}]")


def _shown(x: np.ndarray | None) -> str:
    return "None" if x is None else f"{x.dtype}{list(x.shape)} with strides {list(x.strides)}"


Product = tuple[np.ndarray, np.ndarray, np.ndarray, ProductEpilogue | None]  # a, b, out, and what follows on a @ b


def faster(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `multiply` can compute out = a @ b and is expected to be faster than BLAS.

    That is so for float32, at least LEAST rows and products, and the columns of a strip, on the processors that
    `compiled/gemm.py` names.
    """
    if a.ndim != 2 or b.ndim != 2 or min(a.shape) < LEAST or b.shape[1] < STRIP:
        return False
    if any(x.dtype != np.float32 for x in (a, b, out)) or out.shape != (a.shape[0], b.shape[1]):
        return False
    return out.flags.writeable and out.strides[1] == out.itemsize and _machine_code() is not None


@cache
def _machine_code() -> Any:
    """The module that makes machine code; None without numba, or on another processor."""
    with deferred():  # numba whose first import, or whose compilation, was interrupted is of no use any more
        try:
            from .compiled import gemm
        except ImportError:
            return None
        if not gemm.measured_here():
            return None
        gemm.handed_out()  # now: while threads wait for it, they are taken for slow ones
        return gemm


def multiply(products: Sequence[Product]) -> None:
    """out = a @ b, and what follows on it, of each; threads share the strips of all of them.

    The arrays of `out` share no memory with each other or with operands.
    """
    gemm = _machine_code()
    numbers = np.array([_numbers(*one) for one in products], np.int64)
    strips, room = _strips(tuple((*a.shape, b.shape[1]) for a, b, *_ in products))
    work, turns = gemm.handed_out(), np.zeros(2 * gemm.LINE, np.int64)
    total = sum(out.size * a.shape[1] for a, _, out, _ in products)

    def own(_: int) -> int:
        return work(numbers, strips, turns, _address(_own.memory_of(room)))

    together(min(cores(), len(strips)), own, total, lambda: int(turns[gemm.LINE]))


@lru_cache(maxsize=256)
def _strips(shapes: tuple[tuple[int, int, int], ...]) -> tuple[np.ndarray, int]:
    """(pieces of products of so many rows, products of a sum and columns as machine code takes them, bytes of memory
    that a thread needs)."""
    gemm, found, room = _machine_code(), list[tuple[int, ...]](), 0
    for number, (m, k, n) in enumerate(shapes):
        height = max(STRIP, COPIED // min(k, gemm.INNER))
        for i in range(0, m, height):
            rows = min(height, m - i)
            for part in _columns(n, STRIP if k <= gemm.INNER else 2 * STRIP):
                found.append((number, i, rows, part.start, part.stop - part.start))
                room = max(room, gemm.room(rows, part.stop - part.start, k))
    return np.array(found, np.int64), room


def _columns(n: int, width: int) -> list[slice]:
    """n columns in strips; at the end narrow ones, so that threads end at about the same time."""
    wide = max(0, n - width) // width * width
    rest, parts = n - wide, -(-2 * (n - wide) // width)
    narrow = -(-rest // (parts * TILE)) * TILE
    starts = [*range(0, wide, width), *range(wide, n, narrow)]
    return [slice(start, stop) for start, stop in itertools.pairwise([*starts, n])]


def _numbers(a: np.ndarray, b: np.ndarray, out: np.ndarray, epilogue: ProductEpilogue | None) -> tuple[int, ...]:
    """A product as machine code takes it."""
    operands = a.shape[1], _address(a), *a.strides, _address(b), *b.strides, _address(out), out.strides[0]
    if epilogue is None:
        return *operands, 0, 0, 0, 0
    epilogue.check(out)
    bias, mask = epilogue.bias, epilogue.mask
    bits = (0, 0) if mask is None else (_address(mask), mask.strides[0])
    return *operands, 0 if bias is None else _address(bias), epilogue.relu, *bits


class _Copies(threading.local):
    """Memory that a thread keeps."""

    memory = np.empty(0, np.uint8)

    def memory_of(self, size: int) -> np.ndarray:
        """At least so many bytes."""
        if self.memory.size < size:
            self.memory = np.empty(size, np.uint8)
        return self.memory


_own = _Copies()


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]
