"""Running sums along an axis, and the gradient of products, which is made of running products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.elementwise.reduce import (
    THREADS,
    UNROLL,
    Shape,
    accumulator,
    bind_pieces,
    bind_reduce,
    kept_shape,
    power_of_two,
    stages,
)
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import normalize_axes

WIDEST = 4  # elements that a thread takes at a time


def bind_scan(binder: Binder, kind: str, x: Buffer, sizes: Shape, out: Buffer, exclusive: bool, reverse: bool) -> None:
    """out = running results of `kind` along the middle axis of x[outer, m, inner]."""
    outer, _, inner = sizes
    pieces, cut = bind_pieces(binder, kind, x, sizes)
    if pieces is None:
        _scan(binder, kind, x.dtype, x, sizes, out, sizes[1], 1, None, exclusive, reverse)
        return
    start = binder.scratch(pieces.shape, pieces.dtype)
    across = (outer, cut.splits, inner)
    _scan(binder, kind, x.dtype, pieces, across, start, cut.splits, 1, None, True, reverse)
    _scan(binder, kind, x.dtype, x, sizes, out, cut.piece, cut.splits, start, exclusive, reverse)


def _scan(
    binder: Binder, kind: str, dtype: np.dtype, x: Buffer, sizes: Shape, out: Buffer, piece: int, splits: int,
    start: Buffer | None, exclusive: bool, reverse: bool,
) -> None:  # fmt: skip
    outer, m, inner = sizes
    row = m if inner == 1 else inner
    width = WIDEST
    while row % width or any(b.alignment % (width * b.dtype.itemsize) for b in (x, out)):
        width //= 2
    defines = {
        "T": CUDA_TYPES[x.dtype], "U": CUDA_TYPES[out.dtype], "A": CUDA_TYPES[accumulator(kind, dtype)],
        "KIND": kind, "IDENTITY": int(kind == "PROD"), "EXCLUSIVE": int(exclusive), "REVERSE": int(reverse),
    }  # fmt: skip
    args = x, out, start or x, i64(outer), i64(m)
    if inner == 1:
        lanes = min(32, power_of_two(blocks_for(m, WIDEST))) if m <= 32 * WIDEST else THREADS
        defines |= {"LANES": lanes, "WIDTH": WIDEST, "PACKED": int(width == WIDEST)}
        blocks = blocks_for(outer, THREADS // lanes) * splits
        binder.launch("rows/cumsum.cu", "rows", blocks, THREADS, *args, i64(piece), i32(splits), defines=defines)
    else:
        defines |= {"WIDTH": width, "UNROLL": UNROLL}
        blocks = blocks_for(outer * splits * (inner // width), THREADS)
        args = *args, i64(inner), i64(piece), i32(splits)
        binder.launch("rows/cumsum.cu", "columns", blocks, THREADS, *args, defines=defines)


def _bind_sums(binder: Binder, x: Buffer, out: Buffer, attrs: Mapping[str, Any], reverse: bool) -> None:
    if x.size == 0:
        return
    axis = attrs["axis"]
    if axis is None:
        sizes = (1, x.size, 1)
    else:
        axis %= out.ndim
        sizes = (math.prod(out.shape[:axis]), out.shape[axis], math.prod(out.shape[axis + 1 :]))
    bind_scan(binder, "SUM", x, sizes, out, attrs["exclusive"], reverse)


def cumsum(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Sums of the elements up to each one."""
    _bind_sums(binder, ins["X"], outs["Out"], attrs, attrs["reverse"])


def cumsum_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out_grad summed from the other end."""
    _bind_sums(binder, ins["Out_grad"], outs["X_grad"], attrs, not attrs["reverse"])


def reduce_prod_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad = Out_grad * the product of the other elements: that of those before times that of those behind.

    Several runs of reduced axes are a product of products; the gradient goes back through each.
    """
    X, X_grad, grad = ins["X"], outs["X_grad"], ins["Out_grad"]
    if X.size == 0:
        return
    axes = normalize_axes(attrs["axis"], X.ndim)
    passes = stages(X.shape, axes)
    if not passes:
        shapes = {"D": kept_shape(X.shape, axes)}
        return bind_pointwise(binder, {"X_grad": X_grad}, {"D": grad}, {"X_grad": "D"}, shapes=shapes)
    kept = accumulator("PROD", X.dtype)
    factors = [X]
    for outer, m, inner in passes[:-1]:
        product = binder.scratch((outer * inner,), kept)
        source = factors[-1].view((outer, m, inner))
        bind_reduce(binder, "PROD", source, [1], product)
        factors.append(product)
    for (outer, m, inner), factor in zip(reversed(passes), reversed(factors), strict=True):
        before, after = binder.scratch((outer, m, inner), kept), binder.scratch((outer, m, inner), kept)
        bind_scan(binder, "PROD", factor, (outer, m, inner), before, exclusive=True, reverse=False)
        bind_scan(binder, "PROD", factor, (outer, m, inner), after, exclusive=True, reverse=True)
        goal = X_grad.view((outer, m, inner)) if factor is X else binder.scratch((outer, m, inner), kept)
        bind_pointwise(
            binder, {"X_grad": goal}, {"before": before, "after": after, "D": grad},
            {"X_grad": "D * (before * after)"}, shapes={"D": (outer, 1, inner)},
        )  # fmt: skip
        grad = goal
