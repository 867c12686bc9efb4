"""Matrix products as machine code for processors with vectors of 64 bytes.

Both operands are copied first, so that what a tile of the result reads lies in one piece, in the order in which it is
read: panels of a few rows of the one, of a few columns of the other. A panel of rows then stays in the first cache, and
the columns of a call in the second, while tiles are computed (Goto and van de Geijn, 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import njit, types
from numba.extending import overload
from numba.np.numpy_support import from_dtype

from .kept import kept
from .vectors import BYTES, ROWS, VECTORS, add_tile, copy, number_at, put, transpose

TOGETHER = 8  # panels that are written at the same time: as many lines as a set of the first cache has
DEPTH = 256  # products that a tile adds up before it is written: its operands fill a part of the first cache


def measured_here() -> bool:
    """Whether this is a processor on which these products were found to be faster than BLAS: AMD's Zen 4."""
    return get_host_cpu_name() == "znver4" and get_host_cpu_features().get("avx512f", False)


def room(rows: int, columns: int, inner: int, dtype: np.dtype) -> int:
    """Bytes of memory that `multiply` needs."""
    wide = VECTORS * BYTES // dtype.itemsize
    numbers = _up(rows, ROWS) * inner + _up(columns, wide) * min(inner, DEPTH) + ROWS * wide
    return numbers * dtype.itemsize + BYTES


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


@cache
def multiply(dtype: np.dtype) -> Callable[..., None]:
    """multiply(zero, m, n, k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, more, memory, fresh): c = a @ b.

    zero          0 of the type of all numbers
    m, n, k       rows, columns, products that are added up, 1 at least
    a, b, c       addresses; a_row is from a row of `a` to the next in bytes, and so on; rows of c have no gaps
    more          whether c is added to
    memory        address of as many bytes as `room` says
    fresh         0 where `memory` holds the rows of `a` from a call before, of the same m, k and any n
    """
    size = dtype.itemsize
    wide = VECTORS * BYTES // size

    def multiply(zero, m, n, k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, more, memory, fresh):
        high, across = (m + ROWS - 1) // ROWS * ROWS, (n + wide - 1) // wide * wide
        rows = (memory + BYTES - 1) // BYTES * BYTES
        columns = rows + high * k * size
        edge = columns + across * min(k, DEPTH) * size
        for start in range(0, k, DEPTH):
            depth = min(DEPTH, k - start)
            if fresh != 0:
                _pack(zero, rows, depth * ROWS * size, a + start * a_inner, a_row, a_inner, m, depth, ROWS)
            _pack(zero, columns, depth * wide * size, b + start * b_inner, b_column, b_inner, n, depth, wide)
            for i in range(0, m, ROWS):
                for j in range(0, n, wide):
                    place, inside = c + i * c_row + j * size, i + ROWS <= m and j + wide <= n
                    to, step, added = (place, c_row, more + start) if inside else (edge, wide * size, 0)
                    add_tile(zero, rows + i * depth * size, columns + j * depth * size, to, step, depth, added)
                    if not inside:
                        for y in range(min(ROWS, m - i)):
                            for x in range(min(wide, n - j)):
                                number, at = number_at(zero, edge + (y * wide + x) * size), place + y * c_row + x * size
                                put(zero, number_at(zero, at) + number if more + start != 0 else number, at)
            rows += high * depth * size

    word = types.int64
    return kept(njit, types.none(from_dtype(dtype), *[word] * 14), nogil=True)(multiply)


def _pack(zero, to, panel, source, row, inner, rows, depth, high):
    """Write rows as panels of `high`, a literal: for each product the numbers of all rows of a panel, zeros where the
    last one has fewer.

    panel       bytes from a panel to the next
    row, inner  bytes from a row of the source to the next, from a number of a row to the next
    """


@overload(_pack, prefer_literal=True)
def _(zero, to, panel, source, row, inner, rows, depth, high):
    size, width, lanes = zero.bitwidth // 8, high.literal_value, BYTES * 8 // zero.bitwidth
    square = min(width, lanes)  # rows that are transposed at once
    step = BYTES if width <= lanes else width * size

    def pack(zero, to, panel, source, row, inner, rows, depth, high):
        whole, ended = rows // width * width, 0  # what is done for all of the whole panels
        if row == size:
            ended = depth
            for begin in range(0, whole, TOGETHER * width):
                for k in range(depth):
                    for i in range(begin, min(begin + TOGETHER * width, whole), width):
                        at = to + i // width * panel + k * width * size
                        copy(zero, at, source + k * inner + i * size, width)
        elif inner == size:
            ended = depth // lanes * lanes
            for i in range(0, whole, square):
                place = to + i // width * panel + i % width * size
                for k in range(0, ended, lanes):
                    transpose(zero, place + k * width * size, step, source + i * row + k * size, row, square)
        for i in range(0, rows, width):
            for k in range(ended if i < whole else 0, depth):
                for r in range(width):
                    at = source + (i + r) * row + k * inner
                    number = number_at(zero, at) if i + r < rows else zero
                    put(zero, number, to + i // width * panel + (k * width + r) * size)

    return pack
