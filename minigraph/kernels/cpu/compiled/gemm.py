"""Products of float32 matrices as machine code, for processors with vectors of 64 bytes.

Both operands are copied first, so that what a tile of the result reads lies in one piece, in the order in which it is
read: panels of a few rows of the one, of a few columns of the other. A panel of rows then stays in the first cache, and
the columns of a call in the second, while tiles are computed (Goto and van de Geijn, 2008).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import njit, types
from numba.extending import overload

from . import vectors
from .counted import LINE, counted
from .kept import kept
from .vectors import (
    BYTES,
    COLUMNS,
    LANES,
    ROWS,
    SIZE,
    add_tile,
    add_vector,
    copy,
    keep,
    number_at,
    positive_part,
    put,
    put_bits,
    transpose,
)

# of what is written into the machine code from there; numba looks at changes of this file alone
SOURCE = hashlib.sha256(str(vectors.__spec__.loader.get_source(vectors.__name__)).encode()).hexdigest()
DEPTH = 256  # products that a tile adds up before it is written: its operands then fit the first cache
INNER = 1024  # products that are added up before the rest: so many numbers of a row are copied at once
# A product c = a @ b and what follows on it, as numbers:
PRODUCT = (
    "inner",  # products that are added up, 1 at least
    "a", "a_row", "a_inner",  # address, bytes from a row to the next, from a number of a row to the next
    "b", "b_inner", "b_column",  # the same
    "c", "c_row",  # rows of c have no gaps
    "bias",  # address of numbers that are added to each row of c then; 0 for none
    "relu",  # not 0 where numbers below 0 become 0 then
    # address of bits, bytes from a row to the next, whole vectors of them; 0 for none. With relu each is written:
    # whether its number is above 0. Without, numbers whose bit is 0 become 0
    "mask", "mask_row",
)  # fmt: skip
TOGETHER = 8  # products of a panel that are copied at once: whole lines are written, and few rows read at a time


def measured_here() -> bool:
    """Whether this is a processor on which these products were found to be faster than BLAS: AMD's Zen 4."""
    return get_host_cpu_name() == "znver4" and get_host_cpu_features().get("avx512f", False)


def room(rows: int, columns: int, inner: int) -> int:
    """Bytes of memory that a piece of so many rows and columns needs."""
    inner = min(inner, INNER)
    wide = -(-columns // COLUMNS) * COLUMNS
    return (-(-rows // ROWS) * ROWS * inner + wide * (min(inner, DEPTH) + 1) + ROWS * COLUMNS) * SIZE + BYTES


@cache
def handed_out() -> Callable[..., int]:
    """work(products, pieces, turns, memory) -> the number of multiplications that it did.

    products  int64 [products, len(PRODUCT)], as PRODUCT says
    pieces    int64 [pieces, 5]: number of a product, its first row and how many, its first column and how many
    turns     int64: how many pieces have been begun, and at LINE how many multiplications are done
    memory    address of as many bytes as `room` says of each piece; of this thread alone
    """

    source = SOURCE

    def work(products, pieces, turns, memory):
        # machine code on disk is found by the values of such variables
        source  # noqa: B018  # pyright: ignore[reportUnusedExpression]
        own, before, copied = 0, -1, -1
        while True:
            turn = counted(turns, 0, 1)
            if turn >= len(pieces):
                return own
            which, i, m, j, n = pieces[turn]
            k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, bias, relu, mask, mask_row = products[which]
            fresh = which != before or i != copied or k > INNER
            a, b, c = a + i * a_row, b + j * b_column, c + i * c_row + j * SIZE
            bias, mask = bias + j * SIZE if bias != 0 else 0, mask + i * mask_row + j // 8 if mask != 0 else 0
            for start in range(0, k, INNER):
                _multiply(
                    m, n, min(INNER, k - start), a + start * a_inner, a_row, a_inner, b + start * b_inner, b_inner,
                    b_column, c, c_row, start, memory, fresh, start + INNER >= k, bias, relu, mask, mask_row,
                )  # fmt: skip
            before, copied = which, i
            own += m * n * k
            counted(turns, LINE, m * n * k)

    words, rows = types.int64[::1], types.int64[:, ::1]
    return kept(njit, types.int64(rows, rows, words, types.int64), nogil=True)(work)


def _multiply(
    m, n, k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, more, memory, fresh, last, bias, relu, mask, mask_row
):  # fmt: skip
    """c = a @ b, and what follows on it.

    m, n, k  rows, columns, products that are added up, 1 at least; `more` of these are in c already
    fresh    whether `memory` does not hold the rows of `a` from a call before, with the same m and k and any n
    last     whether these are the last products
    """


@overload(_multiply)
def _(
    m, n, k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, more, memory, fresh, last, bias, relu, mask, mask_row
):  # fmt: skip
    def multiply(
        m, n, k, a, a_row, a_inner, b, b_inner, b_column, c, c_row, more, memory, fresh, last, bias, relu, mask,
        mask_row,
    ):  # fmt: skip
        high, wide = (m + ROWS - 1) // ROWS * ROWS, (n + COLUMNS - 1) // COLUMNS * COLUMNS
        rows = (memory + BYTES - 1) // BYTES * BYTES
        columns = rows + high * k * SIZE
        edge = columns + wide * min(k, DEPTH) * SIZE
        padded = edge + ROWS * COLUMNS * SIZE
        if bias != 0 and last:
            _move(bias, wide * SIZE, padded, wide * SIZE, 1, n, 1, wide)
        for start in range(0, k, DEPTH):
            depth = min(DEPTH, k - start)
            if fresh:
                _pack(rows, a + start * a_inner, a_row, a_inner, m, depth, ROWS)
            _pack(columns, b + start * b_inner, b_column, b_inner, n, depth, COLUMNS)
            for i in range(0, m, ROWS):
                for j in range(0, n, COLUMNS):
                    place, across, down = c + i * c_row + j * SIZE, min(COLUMNS, n - j), min(ROWS, m - i)
                    inside = across == COLUMNS and down == ROWS
                    to, step = (place, c_row) if inside else (edge, COLUMNS * SIZE)
                    if not inside and more + start != 0:
                        _move(place, c_row, edge, step, down, across, ROWS, COLUMNS)
                    add_tile(rows + i * depth * SIZE, columns + j * depth * SIZE, to, step, depth, more + start)
                    if last and start + depth == k:
                        added = padded + j * SIZE if bias != 0 else 0
                        bits = mask + i * mask_row + j // 8 if mask != 0 else 0
                        _follow(to, step, down, added, relu, bits, mask_row)
                    if not inside:
                        _move(edge, step, place, c_row, down, across, down, across)
            rows += high * depth * SIZE

    return multiply


def _move(source, row, to, step, rows, columns, high, wide):
    """Write rows of numbers, and zeros beyond them up to `high` rows and `wide` columns."""


@overload(_move)
def _(source, row, to, step, rows, columns, high, wide):
    def move(source, row, to, step, rows, columns, high, wide):
        for i in range(high):
            for j in range(wide):
                inside = i < rows and j < columns
                put(number_at(source + i * row + j * SIZE) if inside else np.float32(0), to + i * step + j * SIZE)

    return move


def _follow(at, step, rows, bias, relu, bits, bits_row):
    """What follows on the sums of a tile, as PRODUCT says it; `bias` and `bits` are those of the tile."""


@overload(_follow)
def _(at, step, rows, bias, relu, bits, bits_row):
    def follow(at, step, rows, bias, relu, bits, bits_row):
        if bias == 0 and relu == 0 and bits == 0:
            return
        for i in range(rows):
            for j in range(0, COLUMNS, LANES):
                numbers, some = at + i * step + j * SIZE, bits + i * bits_row + j // 8
                if bias != 0:
                    add_vector(numbers, bias + j * SIZE)
                if relu != 0:
                    above = positive_part(numbers)
                    if bits != 0:
                        put_bits(above, some)
                elif bits != 0:
                    keep(numbers, some)

    return follow


def _pack(to, source, row, inner, rows, depth, width):
    """Write rows as panels of `width`, a literal: for each product the numbers of all rows of a panel, zeros where the
    last one has fewer.

    row, inner  bytes from a row of the source to the next, from a number of a row to the next
    """


@overload(_pack, prefer_literal=True)
def _(to, source, row, inner, rows, depth, width):
    many = width.literal_value
    square = min(many, LANES)  # rows that are transposed at once
    step = max(BYTES, many * SIZE)

    def pack(to, source, row, inner, rows, depth, width):
        whole, ended, panel = rows // many * many, 0, depth * SIZE  # `ended` k are done for all of the whole panels
        if row == SIZE:
            ended = depth
            for begin in range(0, depth, TOGETHER):
                for i in range(0, whole, many):
                    for k in range(begin, min(begin + TOGETHER, depth)):
                        copy(to + i * panel + k * many * SIZE, source + k * inner + i * SIZE, many)
        elif inner == SIZE:
            ended = depth // LANES * LANES
            for i in range(0, whole, square):
                place = to + i // many * many * panel + i % many * SIZE
                for k in range(0, ended, LANES):
                    transpose(place + k * many * SIZE, step, source + i * row + k * SIZE, row, square)
        for i in range(0, rows, many):
            for k in range(ended if i < whole else 0, depth):
                for r in range(many):
                    number = number_at(source + (i + r) * row + k * inner) if i + r < rows else np.float32(0)
                    put(number, to + i * panel + (k * many + r) * SIZE)

    return pack
