"""Norms of whole tensors on a GPU, of one and of lists: two launches however many tensors there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.tensors import (
    THREADS,
    Tensors,
    chosen_mode,
    launch_over,
    tensor_source,
)
from minigraph.types import float64

CHUNK = 16384  # elements of a block

Slots = Mapping[str, Any]


def p_norm(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the norm of X."""
    _norms(binder, [ins["X"]], [outs["Out"]], attrs["porder"])


def foreach_p_norm(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = the norms of all X."""
    _norms(binder, ins["X"], outs["Out"], attrs["porder"])


def _norms(binder: Binder, xs: list[Buffer], outs: list[Buffer], porder: float) -> None:
    """Partial results of blocks, added up in double; then those of each tensor."""
    full = [i for i, x in enumerate(xs) if x.size]
    blocks = np.array([-(-x.size // CHUNK) for x in xs], np.int64)
    starts = np.concatenate(([0], np.cumsum(blocks)))
    sums = binder.scratch((max(1, int(starts[-1])),), float64)
    defines: dict[str, Any] = {
        "T": CUDA_TYPES[xs[0].dtype], "R": CUDA_TYPES[outs[0].dtype], "ORDER": 0 if porder == math.inf else int(porder),
    }  # fmt: skip
    if full:
        tensors = Tensors([[xs[i] for i in full]], [xs[i].size for i in full])
        mode = chosen_mode(binder, len(full), 1)
        launch_over(binder, "elementwise/p_norm.cu", "parts", tensors, mode, CHUNK, sums, defines=defines)
    source = tensor_source("elementwise/p_norm.cu", {**defines, "COLUMNS": 1, "CHUNK": CHUNK, "WAY": 1, "WIDTH": 1})
    places, first = binder.table(list(outs), starts.astype(np.int64))
    binder.launch_source(source, "norms", len(xs), THREADS, sums, places, first)
