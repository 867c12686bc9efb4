"""Sums of rows by integer index: what gradients of gather and embedding are. See add_rows.cu."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...types import bfloat16, float16, float32, int32, int64
from .binder import Binder, blocks_for, i64
from .buffer import CUDA_TYPES, Buffer
from .pointwise import compute_type, pack_size

THREADS = 256
DIGITS, DIGIT_BITS = 256, 8
SORT_BLOCKS = 528  # at most; four for each multiprocessor of an H200
TILE = 64  # sorted places whose rows are added ahead
NARROW = 2**32 - 1  # below it, rows and places are numbered in 32 bits
PACKS = 4  # accesses of one thread in one row, at most


class Sorted(NamedTuple):
    """Keys in order, the places where they stood, and for every row the first of its places; all of type `kind`."""

    kind: str
    keys: Buffer
    places: Buffer
    starts: Buffer


def bind_add_rows(
    binder: Binder, index: Buffer, rows: Buffer, out: Buffer, axis: int, low: int, padding: int = -1
) -> None:
    """out[..., v, ...] = the sum of rows[..., i, ...] over all i with index[i] == v, in the order of i.

    axis     of `out`, in whose place `rows` has the shape of `index`
    index    integers in [low, size along axis), negative ones count from the back
    padding  an index that adds nothing
    """
    if out.size == 0:
        return
    n = index.size
    if n == 0:
        return binder.zero(out)
    outer, size, width = math.prod(out.shape[:axis]), out.shape[axis], math.prod(out.shape[axis + 1 :])
    found = bind_sort(binder, index, size, low, padding)
    kind = float32 if out.dtype in (float16, bfloat16) else out.dtype
    sums = binder.scratch((outer, n // TILE, width), kind)
    sums2 = binder.scratch((outer, n // TILE**2, width), kind)
    pack = pack_size([rows, out], [width], [[1], [1]])
    accesses = width // pack
    lanes = min(32, 1 << (accesses - 1).bit_length())
    packs = min(PACKS, 1 << (blocks_for(accesses, lanes) - 1).bit_length())
    pieces = blocks_for(accesses, lanes * packs)
    groups = THREADS // lanes
    defines = {
        "T": CUDA_TYPES[out.dtype], "C": compute_type(out.dtype), "I": found.kind,
        "V": pack, "PACKS": packs, "LANES": lanes, "J": numbering(outer * max(size, n) * pieces),
    }  # fmt: skip
    sizes = i64(outer), i64(n), i64(size), i64(width), i64(pieces)
    for level, goal in ((1, sums), (2, sums2)):
        binder.launch(
            "add_rows.cu", "tile_sums", blocks_for(goal.size // width * pieces, groups), THREADS,
            found.keys, found.places, rows, sums, goal, *sizes, i64(level), defines=defines,
        )  # fmt: skip
    binder.launch(
        "add_rows.cu", "row_sums", blocks_for(outer * size * pieces, groups), THREADS,
        found.starts, found.places, rows, sums, sums2, out, *sizes, defines=defines,
    )  # fmt: skip


def numbering(items: int) -> str:
    """The type that numbers so many items, and those that the last block has beyond them."""
    return "u32" if items < 2**31 else "u64"


def bind_sort(binder: Binder, index: Buffer, size: int, low: int, padding: int) -> Sorted:
    """Sort `index` by value, equal ones by place; those out of range or `padding` come last as `size`."""
    n = index.size
    kind, dtype = ("u32", int32) if max(n, size) < NARROW else ("u64", int64)
    keys, places = [[binder.scratch((n,), dtype) for _ in range(2)] for _ in range(2)]
    per_block = blocks_for(max(blocks_for(n, SORT_BLOCKS), 4 * THREADS), THREADS) * THREADS
    blocks = blocks_for(n, per_block)
    counts, totals = binder.scratch((DIGITS, blocks), dtype), binder.scratch((DIGITS,), dtype)
    binder.launch(
        "add_rows.cu", "row_keys", blocks_for(n, THREADS), THREADS, index, keys[0], i64(n), i64(size), i64(low),
        i64(padding), binder.fault, i64(binder.step), defines={"INDEX": CUDA_TYPES[index.dtype], "I": kind},
    )  # fmt: skip
    defines = {"SORT": 1, "I": kind}
    for shift in range(0, size.bit_length(), DIGIT_BITS):
        run = i64(n), i64(per_block), i64(shift)
        binder.launch("add_rows.cu", "radix_count", blocks, THREADS, keys[0], counts, *run, defines=defines)
        binder.launch("add_rows.cu", "radix_scan", DIGITS, THREADS, counts, totals, i64(blocks), defines=defines)
        binder.launch(
            "add_rows.cu", "radix_place", blocks, THREADS, keys[0], places[0], counts, totals, keys[1], places[1],
            *run, i64(shift == 0), defines=defines,
        )  # fmt: skip
        keys, places = keys[::-1], places[::-1]
    starts = binder.scratch((size + 1,), dtype)
    binder.launch(
        "add_rows.cu", "row_starts", blocks_for(size + 1, THREADS), THREADS, keys[0], starts, i64(n), i64(size),
        defines=defines,
    )  # fmt: skip
    return Sorted(kind, keys[0], places[0], starts)
