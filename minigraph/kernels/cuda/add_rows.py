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
SORT_BLOCKS = 128  # at most: each block reads the counts of all
TILE = 64  # sorted places whose rows are added ahead
NARROW = 2**32 - 1  # below it, rows and places are numbered in 32 bits
PACKS = 2  # accesses of one thread in one row, at most


class Sorted(NamedTuple):
    """Keys in order and the places where they stood, of type `kind`."""

    kind: str
    keys: Buffer
    places: Buffer


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
        "V": pack, "PACKS": packs, "LANES": lanes, "BLOCKS": 3 if pack > 4 else 4,
        "J": numbering(outer * max(size, n) * pieces),
    }  # fmt: skip
    sizes = i64(outer), i64(n), i64(size), i64(width), i64(pieces)
    starts = binder.scratch((size + 1,), found.places.dtype)
    beside = blocks_for(size + 1, THREADS)
    for level, goal in ((1, sums), (2, sums2)):
        blocks = blocks_for(goal.size // width * pieces, groups) + (beside if level == 1 else 0)
        binder.launch(
            "add_rows.cu", "tile_sums", blocks, THREADS,
            found.keys, found.places, rows, sums, goal, starts, *sizes, i64(level), defines=defines,
        )  # fmt: skip
    binder.launch(
        "add_rows.cu", "row_sums", blocks_for(outer * size * pieces, groups), THREADS,
        starts, found.places, rows, sums, sums2, out, *sizes, defines=defines,
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
    shifts = range(0, size.bit_length(), DIGIT_BITS)
    counts = [binder.scratch((len(shifts), blocks, DIGITS), dtype)]
    each = blocks * DIGITS * dtype.itemsize
    counts += [counts[0].view((blocks, DIGITS), offset=i * each) for i in range(len(shifts))]
    defines = {"SORT": 1, "I": kind}
    binder.launch(
        "add_rows.cu", "radix_count", blocks, THREADS, index, keys[0], counts[0], i64(n), i64(size), i64(low),
        i64(padding), i64(per_block), i64(len(shifts)), binder.fault, i64(binder.step),
        defines=defines | {"INDEX": CUDA_TYPES[index.dtype]},
    )  # fmt: skip
    for i, shift in enumerate(shifts):
        last = shift == shifts[-1]
        binder.launch(
            "add_rows.cu", "radix_place", blocks, THREADS, keys[0], places[0], counts[i + 1],
            counts[i + 1 if last else i + 2], keys[1], places[1], i64(n), i64(per_block), i64(shift), i64(last),
            defines=defines,
        )  # fmt: skip
        keys, places = keys[::-1], places[::-1]
    return Sorted(kind, keys[0], places[0])
