"""Products of float32 matrices by machine code of our own (`compiled/gemm.py`), where BLAS is slower.

A product is cut by shape alone into strips of its columns, below each other where there are many rows. Each thread
computes one strip after the other in one call of machine code. What a thread has copied of its rows stays for its next
strip of the same rows.

Where a strip was computed, little of Python's own memory is left in the caches, and each line of Python takes many
times as long as in a loop. So what can be known of a product before a run is made once: `Strips`.
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
LEAST = 64  # rows
LONG = 64  # products of a sum; with fewer BLAS is slow
NARROW = 16  # columns of a product that is computed as its transpose: a tile has fewer rows than columns
LARGE, SMALL = 2**24, 2**20  # multiplications that are worth several threads; where BLAS is slow


class ProductEpilogue(NamedTuple):
    """What is computed with a float32 product a @ b of M rows and N columns: bias, then relu, or the mask of a relu
    before; sums of columns.

    by_numpy  the same for the whole product, in place: for products that BLAS computes
    bias      [N], added to each row
    relu      whether numbers below 0 become 0
    mask      uint8 [M, 16 * ceil(N / 128)], zeros beyond N bits. With `relu` bits are written: whether a number is
              above 0. Without, numbers whose bit is 0 become 0
    sums      [N], written: the sums of the columns of b
    """

    by_numpy: Callable[[np.ndarray], object]
    bias: np.ndarray | None = None
    relu: bool = False
    mask: np.ndarray | None = None
    sums: np.ndarray | None = None

    def check(self, out: np.ndarray) -> None:
        """These are arrays for this product. Errors: ValueError; machine code would write other memory."""
        (m, n), bias, mask, sums = out.shape, self.bias, self.mask, self.sums
        fits = all(
            x is None or (x.shape == (n,) and x.dtype == np.float32 and x.flags.c_contiguous) for x in (bias, sums)
        ) and (sums is None or sums.flags.writeable)
        if mask is not None:
            fits &= mask.shape == (m, -(-n // 128) * 16) and mask.dtype == np.uint8 and mask.flags.c_contiguous
            fits &= mask.flags.writeable or not self.relu
        if not fits:
            given = f"bias {_shown(bias)}, mask {_shown(mask)} and sums {_shown(sums)}"
            raise ValueError(f"{given} are not those of float32[{m}, {n}]")


def _shown(x: np.ndarray | None) -> str:
    return "None" if x is None else f"{x.dtype}{list(x.shape)} with strides {list(x.strides)}"


Product = tuple[np.ndarray, np.ndarray, np.ndarray, ProductEpilogue | None]  # a, b, out, and what follows on a @ b


def faster(a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> bool:
    """Whether `multiply` can compute a @ b and is expected to be faster than BLAS.

    That is so for float32, on the processors that `compiled/gemm.py` names, where sums or rows are short or there is
    much to do.
    """
    if a.ndim != 2 or b.ndim != 2 or a.dtype != np.float32 or b.dtype != np.float32:
        return False
    (m, k), n = a.shape, b.shape[1]
    if not _worth_it(m, k, n) or k != len(b):
        return False
    return (out is None or _writes(a, b, out)) and _machine_code() is not None


def _worth_it(m: int, k: int, n: int) -> bool:
    """Whether a product of these sizes is expected to be faster."""
    if n >= STRIP and m >= LEAST:
        return m * k * n >= (LARGE if k >= LONG else SMALL) and k > 0
    return 0 < n <= NARROW and m >= STRIP and k >= LONG and m * k * n >= SMALL


def _writes(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `out` is memory of its own that can hold a @ b."""
    fits = out.dtype == np.float32 and out.shape == (len(a), b.shape[1]) and out.strides[1] == out.itemsize
    return fits and out.flags.writeable and not (np.may_share_memory(out, a) or np.may_share_memory(out, b))


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
        for make in (gemm.handed_out, gemm.placed):
            make()  # now: while threads wait for it, they are taken for slow ones
        return gemm


def multiply(products: Sequence[Product]) -> None:
    """out = a @ b, and what follows on it, of each; threads share the strips of all of them.

    The arrays of `out` share no memory with each other or with operands.
    """
    Strips(products)()


class Strips:
    """Products as in `multiply` that are computed whenever it is called, from what their operands hold then."""

    def __init__(self, products: Sequence[Product]) -> None:
        turned = [one[2].shape[1] <= NARROW for one in products]
        computed = [_transposed(one) if turn else one for one, turn in zip(products, turned, strict=True)]
        self.behind = [pair for *pair, turn in zip(products, computed, turned, strict=True) if turn]
        self.turned, self.arrays = turned, [list[Any](one) for one in computed]
        self.moved = list[tuple[int, int]]()  # operands that hold for one call
        self.numbers = np.array([_numbers(*one) for one in computed], np.int64)
        self.strips, self.room = _strips(tuple((*a.shape, b.shape[1]) for a, b, *_ in computed))
        self.total = sum(out.size * a.shape[1] for a, _, out, _ in computed)

    def __call__(self) -> None:
        gemm = _machine_code()
        turns = np.zeros(2 * gemm.LINE, np.int64)  # a helper of the call before may still look at those of that one
        work, numbers, strips, room = gemm.handed_out(), self.numbers, self.strips, self.room

        def own(_: int) -> int:
            memory, address = _own.of(room)  # held here: at the end of the process thread-local memory goes first
            done = work(numbers, strips, turns, address)
            del memory
            return done

        # machine code has only addresses, and who is interrupted twice leaves while a helper may be at work
        own.arrays = [*map(tuple, self.arrays)]  # type: ignore[attr-defined]
        together(min(cores(), len(strips)), own, self.total, lambda: int(turns[gemm.LINE]))
        while self.moved:
            number, place = self.moved.pop()
            self.arrays[number][place] = None
        for (_, _, out, epilogue), (_, _, found, _) in self.behind:
            np.copyto(out, found.T)
            if epilogue is not None:
                epilogue.by_numpy(out)

    def replace(self, number: int, place: int, x: np.ndarray) -> None:
        """Another first (0) or second (1) operand for the next call, of the same shape and type; then it is let go."""
        if self.turned[number]:
            place, x = 1 - place, x.T
        self.arrays[number][place] = x
        self.moved.append((number, place))
        _machine_code().placed()(self.numbers[number, 1 + 3 * place : 4 + 3 * place], x)


def _transposed(product: Product) -> Product:
    """The same as b^T @ a^T, in an array of its own."""
    a, b, out, _ = product
    return b.T, a.T, np.empty(out.shape[::-1], out.dtype), None


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
        return *operands, 0, 0, 0, 0, 0
    epilogue.check(out)
    bias, mask, sums = (0 if x is None else _address(x) for x in (epilogue.bias, epilogue.mask, epilogue.sums))
    return *operands, bias, epilogue.relu, mask, 0 if epilogue.mask is None else epilogue.mask.strides[0], sums


class _Copies(threading.local):
    """Memory that a thread keeps, and its address."""

    memory, address = np.empty(0, np.uint8), 0

    def of(self, size: int) -> tuple[np.ndarray, int]:
        """At least so many bytes, and where they are."""
        if self.memory.size < size:
            self.memory = np.empty(size, np.uint8)
            self.address = _address(self.memory)
        return self.memory, self.address


_own = _Copies()


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]
