"""Products of matrices on a CPU: BLAS computes with one thread, and blocks of large products go to ours.

Some are computed by machine code of our own (`strips.py`).

OpenBLAS's own threads spin while they wait for each other. Beside busy processes each product of more than 0.5 MFLOP
may so last several time slices, and its results depend on the number of threads. Here blocks depend on shapes only, so
results have the same bits for any number of threads.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from minigraph.kernels.parallel import for_each

from .strips import Product, ProductEpilogue, faster, multiply

Operands = tuple[np.ndarray, np.ndarray, np.ndarray | None, ProductEpilogue | None]  # a, b, out, what follows on it
Block = tuple[int, Callable[[], None]]  # multiplications, and who does them

SMALL = 4096  # elements: where no array has as many, BLAS makes no threads
PIECE = 2**23  # multiplications of a block at least
WIDTH = 256  # rows or columns of a block at least: BLAS copies the whole other operand for each


def product(
    a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, epilogue: ProductEpilogue | None = None
) -> np.ndarray:
    """np.matmul(a, b, out=out), then what follows; a large one of floats of 32 or 64 bits in blocks for threads."""
    return products([(a, b, out, epilogue)])[0]


def products(operands: Sequence[Operands]) -> list[np.ndarray]:
    """`product` of each; the blocks of all of them are shared at once, so threads meet once."""
    if not _apart(operands):
        return [product(*one) for one in operands]
    results, blocks = list[np.ndarray](), list[Block]()
    strips, rest = list[Product](), list[tuple[ProductEpilogue, np.ndarray]]()
    for a, b, out, epilogue in operands:
        shape, axis, block = _cut(a, b, out)
        if axis is None:
            results.append(np.matmul(a, b, out=out))
        else:
            results.append(np.empty(shape, a.dtype) if out is None else out)
            if faster(a, b, results[-1]):
                strips.append((a, b, results[-1], epilogue))
                continue
            blocks += _blocks(a, b, results[-1], axis, block)
        if epilogue is not None:
            rest.append((epilogue, results[-1]))
    if strips:
        multiply(strips)
    if blocks:
        for_each(blocks, lambda block: block[1](), cost=lambda block: block[0])
    for epilogue, to in rest:
        epilogue.by_numpy(to)
    return results


def _blocks(a: np.ndarray, b: np.ndarray, to: np.ndarray, axis: int, size: int) -> Iterator[Block]:
    """The product in blocks of so many indices of an axis, by BLAS."""
    for start in range(0, to.shape[axis], size):
        at = axis, start, min(start + size, to.shape[axis])
        part = _part(to, *at)
        yield part.size * a.shape[-1], partial(_multiply, _part(a, *at, -1), _part(b, *at, -2), part)


def _apart(operands: Sequence[Operands]) -> bool:
    """Whether no product writes what another one reads or writes."""
    return not any(
        out is not None and x is not None and np.may_share_memory(out, x)
        for (_, _, out, _), other in itertools.permutations(operands, 2) for x in other[:3]
    )  # fmt: skip


def _multiply(a: np.ndarray, b: np.ndarray, to: np.ndarray) -> None:
    with one_thread_in_blas():
        np.matmul(a, b, out=to)


def _cut(a: np.ndarray, b: np.ndarray, out: np.ndarray | None) -> tuple[tuple[int, ...], int | None, int]:
    """(shape of the product, and as `blocked`); no axis where NumPy computes it as a whole, or refuses it."""
    if min(a.ndim, b.ndim) < 2 or max(a.size * b.shape[-1], b.size * a.shape[-2]) < 2 * PIECE:
        return (), None, 0
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim + b.ndim > 4 else ()
    shape = *batch, a.shape[-2], b.shape[-1]
    overlaps = out is not None and (np.may_share_memory(out, a) or np.may_share_memory(out, b))
    if overlaps or a.shape[-1] != b.shape[-2] or a.dtype != b.dtype or a.dtype.char not in "fd":
        return shape, None, 0
    return shape, *blocked(shape, a.shape[-1])


def blocked(shape: tuple[int, ...], inner: int) -> tuple[int | None, int]:
    """(axis, indices of it in a block) of a product of this shape; None where it stays whole.

    axis  counted from the end: the largest of a batch if there is one, else rows or columns
    """
    work = math.prod(shape) * inner
    if work < 2 * PIECE:
        return None, 0
    rank, batch = len(shape), shape[:-2]
    if math.prod(batch) > 1:
        axis, least = max(range(len(batch)), key=batch.__getitem__) - rank, 1
    else:
        axis, least = -1 if shape[-1] >= shape[-2] else -2, WIDTH
    block = max(least, -(-PIECE * shape[axis] // work))
    return (axis, block) if block < shape[axis] else (None, 0)


def _part(x: np.ndarray, axis: int, start: int, stop: int, summed: int = 0) -> np.ndarray:
    """What a block takes of an operand: all where it broadcasts along `axis`, or sums over it."""
    if axis == summed or x.ndim < -axis or (axis < -2 and x.shape[axis] == 1):
        return x
    return x[(..., slice(start, stop), *[slice(None)] * (-axis - 1))]


class _Limited:
    """Who is inside `one_thread_in_blas`, and what libraries are set back to when nobody is."""

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), set[object]()
        self.before: list[tuple[Any, int]] = []

    def enter(self, one: object, libraries: list[Any]) -> None:
        """`one` is inside from now on."""
        with self.lock:
            if not self.inside:
                self.before = _more_than_one(libraries)
            self.inside.add(one)
            if len(self.inside) == 1:
                _set_to_one(self.before)

    def leave(self, one: object) -> None:
        """`one` is not inside, which may be so already: after an interrupt it is told again."""
        with self.lock:
            self.inside.discard(one)
            if not self.inside:
                _set(self.before)


_limited = _Limited()


@contextmanager
def one_thread_in_blas() -> Iterator[None]:
    """BLAS libraries of this process compute with one thread inside the block, and as before after it.

    Most know one number for all threads: other work of this process has one thread, too, as long as a program runs.
    Those on OpenMP know one for each thread. An interrupt at any instant leaves none of them with one thread.
    """
    shared, own = _libraries()
    mine, one = _more_than_one(own), object()

    def leave() -> None:
        _limited.leave(one)
        _set(mine)

    try:
        _set_to_one(mine)
        _limited.enter(one, shared)
        yield
    finally:
        try:
            leave()
        except BaseException:  # it was interrupted
            leave()
            raise


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """The BLAS libraries that are loaded, those with one number of threads for all and those with one for each."""
    loaded = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in loaded if getattr(library, "threading_layer", "") == "openmp"]
    return [library for library in loaded if library not in own], own


def _more_than_one(libraries: list[Any]) -> list[tuple[Any, int]]:
    """The libraries that compute with several threads, and with how many."""
    return [(library, number) for library in libraries if (number := library.num_threads) != 1]


def _set_to_one(numbers: list[tuple[Any, int]]) -> None:
    _set([(library, 1) for library, _ in numbers])


def _set(numbers: list[tuple[Any, int]]) -> None:
    for library, number in numbers:
        if clear := getattr(library, "clear_controlling_thread", None):
            clear(force=True)  # or threadpoolctl ignores what any thread but the first one sets
        library.set_num_threads(number)


def _in_child() -> None:
    global _limited
    _set(_limited.before if _limited.inside else [])
    _limited = _Limited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)  # the thread that was inside is not in the child
