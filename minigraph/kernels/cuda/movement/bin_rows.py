"""Sums of rows by integer index where most of them get few items: places in bins, not sorted. See bin_rows.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import PACK_BYTES, compute_type, pack_size
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import bfloat16, float16, float32, int32

BIN = 16  # places in a bin
FEW = 4  # items for each key: more, and many keys would be crowded
MOST = 2**17  # items: the table of crowded keys and tiles grows with their square
ROWS = 2**20  # of the result: bins of more would take much memory
LEAST_BYTES = 512  # of a row: a warp's access
WARPS, PACKS = 4, 2  # of a block; accesses of a thread per row
KEYS, DEPTH = 4, 4  # bins of a warp; rows that it has under way
RESIDENT = 8  # blocks of a multiprocessor
HELPERS = 2  # likewise, without bins, for keys with more items than a bin holds
TILE, CHUNK, GROUP = 512, 128, 32  # items that a block sorts at a time; places of a unit; units that are added up first
STATE, UNIT = 12, 8  # words of what blocks tell each other, and of a unit


def suits(n: int, rows: Buffer, out: Buffer, axis: int) -> bool:
    """Whether bins serve n items: few for each row of `out`, and rows of many whole packs."""
    width, size = math.prod(out.shape[axis + 1 :]), out.shape[axis]
    whole = pack_size([rows, out], [width], [[1], [1]]) * out.dtype.itemsize == PACK_BYTES
    rows_alone = whole and out.size == size * width and width * out.dtype.itemsize >= LEAST_BYTES
    return rows_alone and n <= min(FEW * size, MOST) and size <= ROWS


def bind_bins(binder: Binder, index: Buffer, rows: Buffer, out: Buffer, low: int, padding: int) -> None:
    """out[v, :] = the sum of rows[i, :] over all i with index[i] == v; see bind_add_rows."""
    n, (size, width) = index.size, out.shape
    kind = float32 if out.dtype in (float16, bfloat16) else out.dtype
    pack = PACK_BYTES // out.dtype.itemsize
    packs = min(PACKS, blocks_for(width // pack, 32))
    pieces = blocks_for(width // pack, 32 * packs)
    tiles, most = blocks_for(n, TILE), n // (BIN + 1) + 1  # crowded keys at most
    slots = 2 * (n // CHUNK) + 1  # units at most, of keys with more than one
    zeros = binder.scratch((STATE + size + 2 * slots * pieces,), int32)
    state, counts = zeros.view((STATE,)), zeros.view((size,), offset=4 * STATE)
    done = zeros.view((2 * slots * pieces,), offset=4 * (STATE + size))
    bins, numbers = binder.scratch((size, BIN), int32), binder.scratch((size,), int32)
    crowded, before = binder.scratch((most,), int32), binder.scratch((most, tiles), int32)
    ranks, places = binder.scratch((n,), int32), binder.scratch((n,), int32)
    units, parts = binder.scratch((n // CHUNK + most, UNIT), int32), binder.scratch((slots, width), kind)
    binder.zero(zeros)
    warps = blocks_for(size, KEYS) * pieces
    defines: dict[str, Any] = {
        "INDEX": CUDA_TYPES[index.dtype], "T": CUDA_TYPES[out.dtype], "C": compute_type(out.dtype), "V": pack,
        "BIN": BIN, "KEYS": KEYS, "PACKS": packs, "DEPTH": DEPTH, "WARPS": WARPS, "RESIDENT": RESIDENT, "TILE": TILE,
        "CHUNK": CHUNK, "GROUP": GROUP,
    }  # fmt: skip
    source = full_source("tensor_cores/mma.cuh", [(k, str(v)) for k, v in defines.items()])
    source += "".join(map(read_source, ("movement/rows_ahead.cuh", "movement/crowds.cuh", "movement/bin_rows.cu")))
    binder.launch_source(
        source, "put_into_bins", blocks_for(n, 256), 256, index, state, counts, bins, crowded, numbers, i64(n),
        i64(size), i64(low), i64(padding), *binder.report(f"out of range [{low}, {size})"),
    )  # fmt: skip
    multiprocessors = binder.device.multiprocessors
    helpers, sorters = min(2 * tiles, HELPERS * multiprocessors), min(tiles, multiprocessors)
    shared = WARPS * packs * 32 * max(DEPTH * PACK_BYTES, pack * kind.itemsize)
    binder.launch_source(
        source, "bin_sums", helpers + blocks_for(warps, WARPS), 32 * WARPS, index, state, counts, bins, crowded,
        numbers, before, ranks, places, units, done, parts, rows, out, i64(n), i64(size), i64(width), i64(low),
        i64(padding), *map(np.uint32, (pieces, tiles, sorters, helpers, RESIDENT * multiprocessors, slots)),
        shared=shared,
    )  # fmt: skip
