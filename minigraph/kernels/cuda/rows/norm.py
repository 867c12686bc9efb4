"""Layer normalisation, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise, compute_type
from minigraph.kernels.cuda.elementwise.reduce import accumulator
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import float64

from .rows import PACK_BYTES, STATIC_SHARED, UNROLL, lanes_of_row

FORWARD_REGISTERS = {2: 32, 4: 16, 8: 16}  # elements of a row in a thread, 4 bytes each
BACKWARD_REGISTERS = {False: 8, True: 16}  # likewise, by whether rows come through shared memory
STREAM_THREADS = 512


def layer_norm(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Y, Mean and Variance; reads X once where a row fits a block's registers or shared memory."""
    X, Scale, Bias = ins["X"], ins.get("Scale"), ins.get("Bias")
    Y, Mean, Variance = (outs.get(slot) for slot in ("Y", "Mean", "Variance"))
    rows, n = _sizes(X, attrs)
    if X.size == 0:
        for statistic in (Mean, Variance):  # of no elements
            if statistic is not None:
                bind_pointwise(binder, {"Out": statistic}, {}, {"Out": "not_a_number<C>()"})
        return
    buffers = [b for b in (X, Scale, Bias, Y) if b is not None]
    width = _width(n, X, buffers)
    packs = n // width
    facts = _facts(X, Scale, Bias, width) | {
        "FORWARD": 1, "M": CUDA_TYPES[(Mean or Variance or X).dtype], "HAS_MEAN": _has(Mean),
        "HAS_VARIANCE": _has(Variance), "WRITES": _has(Y),
    }  # fmt: skip
    args = X, Scale or X, Bias or X, Y or X, Mean or X, Variance or X, i64(rows), i64(n), np.float64(attrs["epsilon"])
    most = FORWARD_REGISTERS[X.dtype.itemsize] // (width * _words(X))
    lanes = lanes_of_row(packs, most)
    if lanes:
        threads = max(lanes, 128)
        facts |= {"LANES": lanes, "PACKS": blocks_for(packs, lanes), "THREADS": threads, "BLOCKS": 1024 // threads}
        binder.launch("rows/norm.cu", "forward", blocks_for(rows, threads // lanes), threads, *args, defines=facts)
    else:
        kept = min(packs, (binder.device.shared - STATIC_SHARED) // (width * X.dtype.itemsize))
        facts |= {"THREADS": STREAM_THREADS, "SHELF": kept, "BLOCKS": 1, "UNROLL": UNROLL}
        shared = kept * width * X.dtype.itemsize
        binder.launch("rows/norm.cu", "forward", rows, STREAM_THREADS, *args, defines=facts, shared=shared)


def layer_norm_again(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Y from X and its statistics, where it is not part of a fused body: element by element."""
    X, given = ins["X"], {slot: b for slot in ("X", "Mean", "Variance", "Scale", "Bias") if (b := ins.get(slot))}
    rows, n = _sizes(X, attrs)
    seen = {"X": (rows, n), "Mean": (rows, 1), "Variance": (rows, 1)}
    value = "(X - Mean) * (C(1) / sqrt(Variance + C(epsilon)))" + " * Scale" * ("Scale" in given)
    bind_pointwise(
        binder, {"Y": outs["Y"].view((rows, n))}, given, {"Y": value + " + Bias" * ("Bias" in given)},
        {"epsilon": attrs["epsilon"]}, seen,
    )  # fmt: skip


def layer_norm_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad by rows; Scale_grad and Bias_grad by columns, in the same launch where a row fits registers."""
    X, Y_grad, Scale = ins["X"], ins["Y_grad"], ins.get("Scale")
    X_grad, sums = outs.get("X_grad"), [outs.get("Scale_grad"), outs.get("Bias_grad")]
    rows, n = _sizes(X, attrs)
    if X.size == 0:
        for out in sums:
            if out is not None:
                binder.zero(out)
        return
    statistics = [ins.get("Mean_grad"), ins.get("Variance_grad")]
    width = _width(n, X, [b for b in (X, Y_grad, Scale, X_grad) if b is not None])
    packs, columns = n // width, any(out is not None for out in sums)
    facts = _facts(X, Scale, None, width) | {
        "BACKWARD": 1, "M": CUDA_TYPES[ins["Mean"].dtype], "HAS_MEAN": _has(statistics[0]),
        "HAS_VARIANCE": _has(statistics[1]), "WRITES": _has(X_grad), "COLUMNS": int(columns),
    }  # fmt: skip
    args = X, Y_grad, ins["Mean"], ins["Variance"], Scale or X, statistics[0] or X, statistics[1] or X
    epsilon = np.float64(attrs["epsilon"])
    ahead = X.dtype.itemsize == 2 and width * X.dtype.itemsize == PACK_BYTES
    resident = 512 if ahead or X.dtype == float64 else 1024  # threads that have the registers
    most = BACKWARD_REGISTERS[ahead] // (width * _words(X)) or 1
    lanes = lanes_of_row(packs, most, resident, least=64 if ahead else 128)
    multiprocessors = binder.device.multiprocessors
    if lanes:
        threads = max(lanes, 256)
        blocks = min(blocks_for(rows, threads // lanes), resident // threads * multiprocessors)
        partial = [binder.scratch((blocks, n), accumulator("SUM", X.dtype)) for _ in sums] if columns else [X, X]
        facts |= {"LANES": lanes, "PACKS": blocks_for(packs, lanes), "THREADS": threads, "BLOCKS": resident // threads,
                  "AHEAD": int(ahead)}  # fmt: skip
        shared = 4 * facts["PACKS"] * threads * PACK_BYTES if ahead else 0
        args = *args, X_grad or X, *partial, i64(rows), i64(n), epsilon
        binder.launch("rows/norm.cu", "backward", blocks, threads, *args, defines=facts, shared=shared)
    else:
        partial = _bind_streamed(binder, args, X_grad, (rows, n, packs), columns, facts, epsilon)
    if columns:
        _bind_totals(binder, partial, sums, X)


def _bind_streamed(
    binder: Binder, args: tuple[Any, ...], X_grad: Buffer | None, sizes: tuple[int, int, int], columns: bool,
    facts: Mapping[str, Any], epsilon: np.float64,
) -> list[Buffer]:  # fmt: skip
    """Backward of rows that no registers hold; returns the partial sums over rows.

    sizes    rows, elements of each, packs of each
    columns  whether sums over rows are wanted
    """
    rows, n, packs = sizes
    facts = {**facts, "THREADS": STREAM_THREADS, "BLOCKS": 1}
    if X_grad is not None:
        rest = X_grad, i64(n), epsilon
        binder.launch("rows/norm.cu", "backward", rows, STREAM_THREADS, *args, *rest, defines=facts)
    if not columns:
        return []
    tiles = blocks_for(packs, STREAM_THREADS)
    piece = max(8, blocks_for(rows, blocks_for(4 * binder.device.multiprocessors, tiles)))
    splits = blocks_for(rows, min(max(piece, blocks_for(rows, 2**16 - 1)), rows))
    piece = blocks_for(rows, splits)
    partial = [binder.scratch((splits, n), accumulator("SUM", args[0].dtype)) for _ in range(2)]
    rest = *partial, i64(rows), i64(n), i64(piece), epsilon
    binder.launch("rows/norm.cu", "column_sums", (tiles, splits), STREAM_THREADS, *args, *rest, defines=facts)
    return partial


def _bind_totals(binder: Binder, partial: Sequence[Buffer], sums: Sequence[Buffer | None], X: Buffer) -> None:
    """Gradients of Scale and Bias from their partial sums."""
    given = [out or X for out in sums]
    facts: dict[str, Any] = {"TOTAL": 1, "C": compute_type(X.dtype)}
    for name, out, b in zip(("SCALE", "BIAS"), sums, given, strict=True):
        facts |= {f"{name}_TYPE": CUDA_TYPES[b.dtype], f"HAS_{name}_GRAD": _has(out)}
    parts, n = partial[0].shape
    args = *partial, *given, i64(parts), i64(n)
    binder.launch("rows/norm.cu", "total", (blocks_for(n, 32), 2), 1024, *args, defines=facts)


def _sizes(X: Buffer, attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Rows, and elements that are normalised together."""
    axis = attrs["begin_norm_axis"] % X.ndim
    return math.prod(X.shape[:axis]), math.prod(X.shape[axis:])


def _width(n: int, X: Buffer, buffers: list[Buffer]) -> int:
    """Elements of a pack: 16 bytes of X, or as many as divide a row and lie on boundaries."""
    width = PACK_BYTES // X.dtype.itemsize
    while n % width or any(b.alignment % (width * b.dtype.itemsize) for b in buffers):
        width //= 2
    return width


def _facts(X: Buffer, Scale: Buffer | None, Bias: Buffer | None, width: int) -> dict[str, Any]:
    """Types and pack size, as macros."""
    facts = {"T": CUDA_TYPES[X.dtype], "C": compute_type(X.dtype), "WIDTH": width}
    for name, b in (("SCALE", Scale), ("BIAS", Bias)):
        facts |= {f"{name}_TYPE": CUDA_TYPES[(b or X).dtype], f"HAS_{name}": _has(b)}
    return facts


def _words(X: Buffer) -> int:
    """Registers of 4 bytes that an element fills."""
    return 2 if X.dtype == float64 else 1


def _has(buffer: Buffer | None) -> int:
    return int(buffer is not None)
