"""Memory that kernels need beside operands and results: rows of a last layer at a time, workspaces of products.

Plans take their sizes from here, and passes that weigh the memory of a plan.
"""

from __future__ import annotations

from typing import NamedTuple

CHUNK_ROWS, CHUNK_BYTES = 4096, 1 << 29  # of scores that exist at a time
FREE_BYTES = 1 << 30  # and of those that cost no memory
WORKSPACE = 1 << 20, 32 << 20  # bytes that a GPU's library has beside one product: at the least, at the most
SPLITS = 16  # parts of a sum that a product of few tiles may keep, in 4 bytes for each element
TILE = 128  # rows of a tile of large products: chunks are multiples of it where they can be


class Beside(NamedTuple):
    """Bytes that an operator needs beside its operands and results.

    own      on any device
    library  and those that a GPU's library may have besides, at the most: some cards and products need none
    apart    (output slot, input slot) of which a GPU need not have both at once, as several kernels run: one such pair
    """

    own: int = 0
    library: int = 0
    apart: tuple[tuple[str, str], ...] = ()


def workspace(size: int) -> int:
    """Bytes for a product of so many elements: a large one has no use for more than that, its sums are not split."""
    least, most = WORKSPACE
    return min(max(least, SPLITS * 4 * size), most)


def chunk_rows(rows: int, classes: int, itemsize: int, chunk_bytes: int) -> int:
    """Rows of a chunk: scores of at most `chunk_bytes` bytes (but one row at least), chunks of about one size."""
    most = max(1, chunk_bytes // max(1, classes * itemsize))
    if most >= rows:
        return max(1, rows)
    unit = TILE if most >= TILE else 1
    most -= most % unit
    chunks = -(-rows // most)
    return min(most, -(-rows // (chunks * unit)) * unit)


class Chunking(NamedTuple):
    """What bounds a chunk: bytes of its scores, or exactly so many rows (but for the last); one or none is given."""

    nbytes: int | None = None
    rows: int | None = None

    def step(self, rows: int, classes: int, itemsize: int, free: int = 0) -> int:
        """Rows of a chunk; `free` of them cost no memory."""
        if self.rows is not None:
            return max(1, min(rows, self.rows))
        if self.nbytes is not None:
            return chunk_rows(rows, classes, itemsize, self.nbytes)
        row = classes * itemsize
        most = max(min(CHUNK_ROWS * row, CHUNK_BYTES), min(free * row, FREE_BYTES))
        return chunk_rows(rows, classes, itemsize, most)


def rows_at_once(
    rows: int, inner: int, classes: int, itemsize: int, how: Chunking, bias: bool
) -> tuple[int, int]:  # fmt: skip
    """(rows of a chunk, bytes of scores and weight gradient) where a gradient of `itemsize` bytes takes least memory.

    All rows at once need no sums: the product rounds what it has added up. Chunks of 16 bits need float32 sums beside
    their scores, and when these are gone beside the rounded gradient, so scores of `inner` rows cost nothing. Rows
    that the user gives are taken in any case.
    """
    step = how.step(rows, classes, itemsize, inner if itemsize == 2 else 0)
    row, gradient = classes * itemsize, inner * classes * itemsize
    whole = rows * row + gradient
    if step >= rows or itemsize > 2:
        return step, min(step, rows) * row + gradient
    chunked = (inner + (-(-rows // step) if bias else 0)) * classes * 4 + max(step * row, gradient)
    return (rows, whole) if whole < chunked and how.rows is None else (step, chunked)


def chunk_of(
    rows: int, inner: int, classes: int, itemsize: int, how: Chunking, rounded: bool, bias: bool
) -> tuple[int, int]:  # fmt: skip
    """(rows of a chunk, bytes beside the results), where the weight's gradient is `rounded` from the sums or not."""
    if rounded:
        step, nbytes = rows_at_once(rows, inner, classes, itemsize, how, bias)
        return step, nbytes - inner * classes * itemsize
    step = how.step(rows, classes, itemsize)
    return step, min(step, rows) * classes * itemsize
