"""What runs along an axis: bind functions of ops/rows/scan.py. See scan.cu."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from .cumsum import bind_scan

THREADS = 256
ROWS = THREADS // 32  # of a block

Slots = Mapping[str, Any]


def _sizes(x: Buffer, axis: int) -> tuple[int, int, int]:
    axis %= x.ndim
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def cumprod(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Products of the elements up to each one."""
    x = ins["X"]
    if x.size:
        bind_scan(binder, "PROD", x, _sizes(x, attrs["axis"]), outs["Out"], attrs["exclusive"], attrs["reverse"])


def _scan(binder: Binder, kind: str, x: Buffer, b: Buffer, outs: Slots, attrs: Slots, best: str = "") -> None:
    """Launch scan.cu for `kind`; `best` says of which a and b the first one stays."""
    if not x.size:
        return
    out, places = outs.get("Out"), outs.get("Indices")
    outer, m, inner = _sizes(x, attrs["axis"])
    defines = {
        "KIND": kind, "T": CUDA_TYPES[x.dtype], "C": compute_type(x.dtype), "BEST": best,
        "REVERSE": int(attrs.get("reverse", False)), "LAGGED": int(attrs.get("lagged", False)),
        "HAS_OUT": int(out is not None), "HAS_PLACES": int(places is not None),
    }  # fmt: skip
    args = x, b, out or np.uint64(0), places or np.uint64(0)
    if inner == 1:
        blocks, args = blocks_for(outer, ROWS), (*args, i64(outer), i64(m))
        binder.launch("rows/scan.cu", "rows", blocks, THREADS, *args, defines={**defines, "ROWS": 1})
    else:
        blocks, args = blocks_for(outer * inner, THREADS), (*args, i64(outer * inner), i64(m), i64(inner))
        binder.launch("rows/scan.cu", "columns", blocks, THREADS, *args, defines=defines)


def linear_recurrence(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out[i] = A[i] * Out[i - 1] + B[i]"""
    _scan(binder, "RECURRENCE", ins["A"], ins["B"], outs, attrs)


def logcumsumexp(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """The logarithm of the sums of e^X up to each element."""
    _scan(binder, "LOGSUMEXP", ins["X"], ins["X"], outs, attrs)


def cummax(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """The largest element up to each one, and its place."""
    _scan(binder, "EXTREMUM", ins["X"], ins["X"], outs, attrs, "a > b")


def cummin(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """The smallest element up to each one, and its place."""
    _scan(binder, "EXTREMUM", ins["X"], ins["X"], outs, attrs, "a < b")
