"""Sorting along an axis and searching in sorted rows: bind functions of ops/rows/sort.py. See sort.cu."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES
from minigraph.types import int32, int64

THREADS = 256
TILE = 1024  # elements that a block sorts in shared memory
NARROW = 2**31  # below it, places are numbered in 32 bits

Slots = Mapping[str, Any]


def argsort(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X sorted, Indices = where its elements were: tiles are sorted, then merged two by two."""
    x, out, indices = ins["X"], outs.get("Out"), outs.get("Indices")
    if x.size == 0:
        return
    axis = attrs["axis"] % x.ndim
    m, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    rows = x.size // m
    narrow = m < NARROW
    orders = [binder.scratch((rows, m), int32 if narrow else int64) for _ in range(2)]
    defines = {
        "SORT": 1, "T": CUDA_TYPES[x.dtype], "C": compute_type(x.dtype), "I": "u32" if narrow else "u64", "TILE": TILE,
        "DESCENDING": int(attrs["descending"]), "HAS_OUT": int(out is not None),
        "HAS_INDICES": int(indices is not None),
    }  # fmt: skip
    sizes = i64(m), i64(inner)
    tiles = blocks_for(m, TILE)
    args = x, orders[0], *sizes, i64(tiles)
    binder.launch("rows/sort.cu", "sort_tiles", rows * tiles, THREADS, *args, defines=defines)
    width = TILE
    while width < m:
        binder.launch(
            "rows/sort.cu", "merge", blocks_for(x.size, THREADS), THREADS, x, *orders, i64(x.size), *sizes, i64(width),
            defines=defines,
        )  # fmt: skip
        orders.reverse()
        width *= 2
    binder.launch(
        "rows/sort.cu", "bring", blocks_for(x.size, THREADS), THREADS, x, orders[0], out or np.uint64(0),
        indices or np.uint64(0), i64(x.size), *sizes, defines=defines,
    )  # fmt: skip


def searchsorted(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = how many elements of a sorted row lie before each X."""
    rows, x, out = ins["Sorted"], ins["X"], outs["Out"]
    each = x.size if rows.ndim == 1 else x.shape[-1]
    binder.launch(
        "rows/sort.cu", "search", blocks_for(x.size, THREADS), THREADS, rows, x, out, i64(x.size),
        i64(rows.shape[-1]), i64(max(each, 1)),
        defines={
            "SEARCH": 1, "T": CUDA_TYPES[x.dtype], "C": compute_type(x.dtype), "DESCENDING": 0,
            "RIGHT": int(attrs["right"]),
        },
    )  # fmt: skip
