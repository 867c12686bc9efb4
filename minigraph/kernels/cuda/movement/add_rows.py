"""Sums of rows by integer index: what gradients of gather and embedding are.

Where most rows of the result get few items, places lie in bins (bin_rows.py), else they are sorted (add_rows.cu).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type, pack_size
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import bfloat16, float16, float32, int32, int64, uint8

from .bin_rows import bind_bins, suits
from .movement import WORDS, lanes_for

THREADS = 256
SORTERS = 1024  # threads of a block that sorts
SORT_BLOCKS = 128  # at most: each block reads the counts of all
DIGITS, DIGIT_BITS = 256, 8
NARROW = 2**32 - 1  # below it, rows and places are numbered in 32 bits
TILE, RUN = 64, 8  # sorted items that a block has, and a group of its threads
WIDE = 8  # elements of an access whose sums leave registers for fewer rows under way
FILLERS = 2  # blocks on each multiprocessor that write zeros
LONG_BLOCKS, LONG_PARTS = 128, 64  # that look for long stretches, and share their parts of rows


class Sorted(NamedTuple):
    """Pairs of key and place in order, of type `kind`."""

    kind: str
    items: Buffer


def bind_look(binder: Binder, index: Buffer, low: int, size: int) -> None:
    """Report integers outside [low, size), where no other kernel reads them."""
    binder.launch(
        "movement/index.cu", "look_at", blocks_for(index.size, THREADS), THREADS, index, i64(index.size), i64(low),
        i64(size),
        *binder.report(f"out of range [{low}, {size})"), defines={"LOOK": 1, "INDEX": CUDA_TYPES[index.dtype]},
    )  # fmt: skip


def bind_add_rows(
    binder: Binder, index: Buffer, rows: Buffer, out: Buffer, axis: int, low: int, padding: int = -1
) -> None:
    """out[..., v, ...] = the sum of rows[..., i, ...] over all i with index[i] == v, the same bits in every run.

    axis     of `out`, in whose place `rows` has the shape of `index`
    index    integers in [low, size along axis), negative ones count from the back
    padding  an index that adds nothing
    """
    n = index.size
    if n == 0:
        return binder.zero(out)
    if out.size == 0:
        return bind_look(binder, index, low, out.shape[axis])
    if suits(n, rows, out, axis):
        table = out.view((out.shape[axis], math.prod(out.shape[axis + 1 :])))
        return bind_bins(binder, index, rows, table, low, padding)
    outer, size, width = math.prod(out.shape[:axis]), out.shape[axis], math.prod(out.shape[axis + 1 :])
    pack = pack_size([rows, out], [width], [[1], [1]])
    bins = bind_sort(binder, index, out.view((outer, size, width)), pack, low, padding)
    kind = float32 if out.dtype in (float16, bfloat16) else out.dtype
    tiles = binder.scratch((outer, n // TILE, width), kind)
    lanes = lanes_for(width // pack)
    pieces = blocks_for(width, lanes * pack)
    parts = blocks_for(outer * pieces, THREADS // lanes * RUN // TILE)  # what blocks take at once, of a tile
    defines = {
        "T": CUDA_TYPES[out.dtype], "C": compute_type(out.dtype), "I": bins.kind, "V": pack, "LANES": lanes,
        "RUN": RUN, "AHEAD": 4 if pack == WIDE else 8, "BLOCKS": 3 if bins.kind == "u64" else 5 if pack == WIDE else 4,
    }  # fmt: skip
    sizes = i64(outer), i64(n), i64(size), i64(width), i64(pieces)
    binder.launch(
        "movement/add_rows.cu", "row_sums", blocks_for(n, TILE) * parts, THREADS, bins.items, rows, tiles, out, *sizes,
        np.uint32(parts), defines=defines,
    )  # fmt: skip
    binder.launch(
        "movement/add_rows.cu", "long_sums", (min(n // TILE, LONG_BLOCKS), min(outer * pieces, LONG_PARTS)), THREADS,
        bins.items, rows, tiles, out, *sizes, defines=defines,
    )  # fmt: skip


def bind_sort(binder: Binder, index: Buffer, out: Buffer, pack: int, low: int, padding: int) -> Sorted:
    """Sort `index` by value, equal ones by place; those out of range or `padding` come last as `size`.

    Rows of out[outer, size, width] to which no index leads become zero; `pack` elements are moved at once.
    """
    n, (outer, size, width) = index.size, out.shape
    kind, dtype = ("u32", int32) if max(n, size) < NARROW else ("u64", int64)
    keys, used = binder.scratch((n,), dtype), binder.scratch((size,), uint8)
    items = [binder.scratch((n, 2), dtype) for _ in range(2)]
    block_shift = (max(blocks_for(n, SORT_BLOCKS), SORTERS) - 1).bit_length()
    blocks = blocks_for(n, 1 << block_shift)
    shifts = range(0, size.bit_length(), DIGIT_BITS)
    counts = [binder.scratch((len(shifts), blocks, DIGITS), dtype)]
    each = blocks * DIGITS * dtype.itemsize
    counts += [counts[0].view((blocks, DIGITS), offset=i * each) for i in range(len(shifts))]
    if len(shifts) == 1:
        binder.zero(out)  # few rows; marks would come too late
    defines = {"SORT": 1, "SORTERS": SORTERS, "I": kind}
    binder.launch(
        "movement/add_rows.cu", "radix_count", blocks, SORTERS, index, keys, counts[0], used, i64(n), i64(size),
        i64(low),
        i64(padding), i64(block_shift), i64(len(shifts)), *binder.report(f"out of range [{low}, {size})"),
        defines=defines | {"INDEX": CUDA_TYPES[index.dtype]},
    )  # fmt: skip
    accesses = width // pack
    defines |= {"W": WORDS[pack * out.dtype.itemsize], "SHARERS": lanes_for(accesses)}
    for i, shift in enumerate(shifts):
        last = shift == shifts[-1]
        fillers = FILLERS * binder.device.multiprocessors if last and i else 0
        binder.launch(
            "movement/add_rows.cu", "radix_place", blocks + fillers, SORTERS, keys, items[0], counts[i + 1],
            counts[i + 1 if last else i + 2], items[1], used, out, i64(outer), i64(size), i64(accesses), i64(n),
            i64(block_shift), i64(shift), i64(last), np.uint32(blocks), defines=defines,
        )  # fmt: skip
        items = items[::-1]
    return Sorted(kind, items[0])
