"""Attention on Hopper's tensor cores: 16-bit floats, head dimensions up to 128, plain, causal or in a window.

Forward as FlashAttention-3 divides it: tiles by the copy engine, products by wgmma, one warpgroup that loads
and two that compute. Backward in two kernels without atomics, so deterministic: one sums dQ over the keys,
one dK and dV over the queries of all heads that read them; both recompute the probabilities, 7 products in
place of 5. Values and keys that a query does not see are multiplied by 0 in the tiles at the edge, so NaN and
infinity there count, as in cuDNN and FlashAttention; what lies outside the arrays does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...types import bfloat16, float16
from .binder import Binder, Launch, blocks_for, i32, i64
from .buffer import CUDA_TYPES, Buffer
from .hopper import TensorMap, hopper_source, wgmma

ROWS, THREADS = 128, 384
UNBOUNDED = 1 << 29  # a window that reaches everywhere
WIDEST = 128  # head dimension


class Shape(NamedTuple):
    """Sizes of one call, and the strides of its arrays in elements: (batch, head, row)."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int

    @property
    def head(self) -> int:
        """The head dimension as tiles have it."""
        return blocks_for(self.width, 64) * 64


def reasons(ins: Mapping[str, Any], attrs: Mapping[str, Any], arch: str) -> list[str]:
    """Why these kernels cannot compute this call; empty if they can."""
    Q, V = ins["Q"], ins["V"]
    shape = shape_of(Q, ins["K"], attrs)
    found = []
    if not arch.startswith("sm_90"):
        found.append(f"wgmma needs sm_90, this is {arch}")
    if Q.dtype not in (float16, bfloat16):
        found.append(f"the tensor cores take 16-bit floats, Q is {Q.dtype}")
    if shape.width > WIDEST or shape.width % 8 or V.shape[-1] != shape.width:
        found.append(f"head dimensions {shape.width} and {V.shape[-1]} are not one multiple of 8 up to {WIDEST}")
    found += [f"{slot} is given" for slot in ("Bias", "Mask", "CuSeqlensQ", "CuSeqlensK") if ins.get(slot) is not None]
    if attrs["dropout"] > 0 and not attrs["is_test"]:
        found.append("probabilities are dropped")
    if scale_of(attrs, shape) <= 0:
        found.append("scale is not positive")
    if min(shape.batch, shape.heads, shape.queries, shape.keys, shape.width) == 0:
        found.append("a size is 0")
    if max(shape.queries, shape.keys) >= UNBOUNDED or max(shape.batch, shape.heads) >= 1 << 16:
        found.append("a size exceeds a grid's")
    return found


def shape_of(Q: Buffer, K: Buffer, attrs: Mapping[str, Any]) -> Shape:
    if Q.ndim == 3:
        return Shape(Q.shape[0], 1, 1, Q.shape[1], K.shape[1], Q.shape[2])
    s, h = (1, 2) if attrs["layout"] == "bshd" else (2, 1)
    return Shape(Q.shape[0], Q.shape[h], Q.shape[h] // max(K.shape[h], 1), Q.shape[s], K.shape[s], Q.shape[3])


def scale_of(attrs: Mapping[str, Any], shape: Shape) -> float:
    return attrs["scale"] if attrs["scale"] is not None else max(shape.width, 1) ** -0.5


def window_of(attrs: Mapping[str, Any], shape: Shape) -> tuple[np.int32, np.int32]:
    """(low, high): query i sees keys i + low to i + high."""
    shift = shape.keys - shape.queries if attrs["bottom_right"] else 0
    left, right = attrs["window"] if attrs["window"] is not None else (UNBOUNDED, UNBOUNDED)
    right = min(right, 0) if attrs["causal"] else right
    return i32(max(shift - left, -UNBOUNDED)), i32(min(shift + right, UNBOUNDED))


def strides_of(x: Buffer, layout: str) -> tuple[int, int, int]:
    """Elements from one batch, head and row of `x` to the next."""
    if x.ndim == 3:
        return x.shape[1] * x.shape[2], x.shape[2], x.shape[2]
    _, a, b, width = x.shape
    return (a * b * width, width, b * width) if layout == "bshd" else (a * b * width, b * width, width)


def _map(x: Buffer, layout: str, rows: int) -> TensorMap:
    batch, head, row = strides_of(x, layout)
    s, h = (1, 2) if layout == "bshd" or x.ndim == 3 else (2, 1)
    heads = 1 if x.ndim == 3 else x.shape[h]
    return TensorMap(x, (x.shape[-1], x.shape[s], heads, x.shape[0]), (row, head, batch), rows)


def _source(file: str, dtype: np.dtype, head: int, step: int, stages: int) -> str:
    name = CUDA_TYPES[dtype]
    instructions = [wgmma(step, name), wgmma(step, name, True), wgmma(head, name, True, True)]
    defines = [("T", name), ("PTX_T", f'"{name}"'), ("HEAD", str(head)), ("STEP", str(step)), ("STAGES", str(stages))]
    return hopper_source(instructions, defines, ["attention_hopper.cuh", file])


def _shared(own: int, head: int, step: int, stages: int) -> int:
    """Bytes of shared memory, aligned to 1024: `own` tiles of ROWS rows; each stage two tiles and two numbers a row."""
    return 1024 + own * ROWS * head * 2 + 2 * stages * step * head * 2 + stages * step * 8


def _strides(x: Buffer, layout: str) -> tuple[np.int64, ...]:
    return tuple(i64(n) for n in strides_of(x, layout))


def forward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out, and LogSumExp where it is wanted."""
    Q, K, V, Out, sums = ins["Q"], ins["K"], ins["V"], outs["Out"], outs.get("LogSumExp")
    shape, layout, step, stages = shape_of(Q, K, attrs), attrs["layout"], 128, 2
    args = (
        _map(Q, layout, ROWS), _map(K, layout, step), _map(V, layout, step), Out, sums if sums is not None else i64(0),
        *map(i32, (shape.queries, shape.keys, shape.heads, shape.groups, shape.width)),
        np.float32(scale_of(attrs, shape)), *window_of(attrs, shape), *_strides(Out, layout),
    )  # fmt: skip
    source = _source("attention_hopper_forward.cu", Q.dtype, shape.head, step, stages)
    grid = blocks_for(shape.queries, ROWS), shape.heads, shape.batch
    binder.calls.append(
        Launch(source, "attention_forward", grid, (THREADS, 1, 1), args, _shared(1, shape.head, step, stages))
    )


def backward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Q_grad, K_grad and V_grad; what is not wanted is computed into scratch, or not at all."""
    Q, K, V, Out, grad = ins["Q"], ins["K"], ins["V"], ins["Out"], ins["Out_grad"]
    shape, layout, step, stages = shape_of(Q, K, attrs), attrs["layout"], 64, 3
    padded = blocks_for(shape.queries, ROWS) * ROWS
    numbers = binder.scratch((shape.batch * shape.heads * padded, 2), np.dtype("float32"))
    source = _source("attention_hopper_backward.cu", Q.dtype, shape.head, step, stages)
    shared = _shared(2, shape.head, step, stages)
    sizes = tuple(map(i32, (shape.queries, padded, shape.keys, shape.heads, shape.groups, shape.width)))
    common = (*sizes, np.float32(scale_of(attrs, shape)), *window_of(attrs, shape))
    prepared = (
        Out, grad, ins["LogSumExp"], numbers, *map(i32, (shape.queries, padded, shape.heads, shape.width)),
        *_strides(Out, layout), *_strides(grad, layout),
    )  # fmt: skip
    grid = blocks_for(padded, 8), shape.heads, shape.batch
    binder.calls.append(Launch(source, "attention_prepare", grid, (256, 1, 1), prepared))
    if outs.get("Q_grad") is not None:
        args = (
            _map(Q, layout, ROWS), _map(grad, layout, ROWS), _map(K, layout, step), _map(V, layout, step), numbers,
            outs["Q_grad"], *common, *_strides(Q, layout),
        )  # fmt: skip
        grid = blocks_for(shape.queries, ROWS), shape.heads, shape.batch
        binder.calls.append(Launch(source, "attention_backward_query", grid, (THREADS, 1, 1), args, shared))
    if outs.get("K_grad") is not None or outs.get("V_grad") is not None:
        k_grad, v_grad = (
            outs[slot] if outs.get(slot) is not None else binder.scratch(x.shape, x.dtype)
            for slot, x in (("K_grad", K), ("V_grad", V))
        )
        args = (
            _map(K, layout, ROWS), _map(V, layout, ROWS), _map(Q, layout, step), _map(grad, layout, step), numbers,
            k_grad, v_grad, *common, *_strides(K, layout), *_strides(V, layout),
        )  # fmt: skip
        grid = blocks_for(shape.keys, ROWS), shape.heads // shape.groups, shape.batch
        binder.calls.append(Launch(source, "attention_backward_key", grid, (THREADS, 1, 1), args, shared))
