"""Sums of squares on a GPU, of one array and of lists: what gradient clipping and layer-wise steps need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.tensors import Tensors, chosen_mode, launch_over, tensor_source
from minigraph.types import float32, float64

NORM_CHUNK = 16384  # elements of a block
TOTAL_THREADS = 1024

Slots = Mapping[str, Any]


def norm_types(tensors: Tensors) -> dict[str, Any]:
    """T and D, the types of the first and the last column, and C, in which T is computed."""
    first, last = (column[0].dtype for column in (tensors.columns[0], tensors.columns[-1]))
    return {"T": CUDA_TYPES[first], "D": CUDA_TYPES[last], "C": compute_type(first)}


def squares(binder: Binder, tensors: Tensors, mode: str) -> tuple[Buffer, np.ndarray]:
    """(sums of squares of each block and column, the first block of each tensor and the number of all)"""
    blocks = tensors.blocks(NORM_CHUNK)
    mode = chosen_mode(binder, len(tensors.sizes), len(tensors.columns)) if mode in ("auto", "paged") else mode
    starts = np.concatenate(([0], np.cumsum(blocks))).astype(np.int64)
    sums = binder.scratch((max(1, int(starts[-1])), len(tensors.columns)), float64)
    defines = {**norm_types(tensors), "L": "float", "R": "float"}
    launch_over(binder, "optimizer/norms.cu", "squares", tensors, mode, NORM_CHUNK, sums, defines=defines)
    return sums, starts


def squared_l2_norm(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the sum of X^2, added in double."""
    _total(binder, [ins["X"]], outs["Out"], "struct4k")


def foreach_squared_l2_norm(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the sum of X^2 over all arrays, added in double."""
    _total(binder, ins["X"], outs["Out"], binder.multi_tensor)


def _total(binder: Binder, arrays: list[Buffer], out: Buffer, mode: str) -> None:
    tensors = Tensors([arrays], [a.size for a in arrays])
    sums, starts = squares(binder, tensors, mode)
    defines = {**norm_types(tensors), "L": "float", "R": "float", "COLUMNS": 1, "CHUNK": NORM_CHUNK}
    source = tensor_source("optimizer/norms.cu", {**defines, "WAY": 1, "WIDTH": 1})
    binder.launch_source(source, "total", 1, TOTAL_THREADS, sums, i64(int(starts[-1])), out)


def foreach_norm_ratio(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = ||X|| / ||Y|| of each pair, 1 where one of them is 0, as float64."""
    pairs = Tensors([ins["X"], ins["Y"]], [x.size for x in ins["X"]])
    sums, starts = squares(binder, pairs, binder.multi_tensor)
    one, table = binder.table([], np.ones(1, float32), starts)[1:]
    ratios = binder.scratch((len(ins["X"]),), float64)
    defines = {**norm_types(pairs), "L": "float", "R": "double", "COLUMNS": 2, "CHUNK": NORM_CHUNK}
    source = tensor_source("optimizer/norms.cu", {**defines, "WAY": 1, "WIDTH": 1})
    binder.launch_source(source, "ratios", len(ins["X"]), 256, sums, table, one, ratios)
    for i, out in enumerate(outs["Out"]):
        binder.copy(out, ratios.view(out.shape, float64, 8 * i))
