"""Attention on Hopper's tensor cores: 16-bit floats, head dimensions up to 128, plain, causal or in a window.

As FlashAttention-3 divides it: tiles by the copy engine, products by wgmma, one warpgroup that loads and
others that compute. Backward sums dK and dV in registers and dQ in float32 in global memory, where blocks add
in a fixed order: results have the same bits in every run. Values and keys that a query does not see are
multiplied by 0 in the tiles at the edge, so NaN and infinity there count, as in cuDNN and FlashAttention; what
lies outside the arrays does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...types import bfloat16, float16
from .binder import Binder, blocks_for, i32, i64
from .buffer import CUDA_TYPES, Buffer
from .hopper import TensorMap, hopper_source, wgmma

ROWS, THREADS = 128, 384  # of a block of the backward kernel
STAGES, Q_STAGES = 2, 3  # tiles in flight
MOST_TOGETHER = 8  # heads whose blocks take turns: their arrays lie in the cache together
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


def _source(
    files: Sequence[str], dtype: np.dtype, head: int, step: int, groups: int, **stages: int
) -> str:  # fmt: skip
    name = CUDA_TYPES[dtype]
    instructions = [wgmma(step, name), wgmma(head, name, True, True), wgmma(64, name, False, True)]
    numbers = {"HEAD": head, "STEP": step, "GROUPS": groups, **stages}
    defines = [("T", name), ("PTX_T", f'"{name}"'), *((k, str(n)) for k, n in numbers.items())]
    return hopper_source(instructions, defines, ["attention_hopper.cuh", *files])


def _strides(x: Buffer, layout: str) -> tuple[np.int64, ...]:
    return tuple(i64(n) for n in strides_of(x, layout))


def forward_tiles(shape: Shape, attrs: Mapping[str, Any]) -> tuple[int, int]:
    """(warpgroups that compute 64 queries each, keys in a tile): the fastest of those measured on an H200."""
    if shape.head == 64:
        return 3, 128
    low, high = window_of(attrs, shape)
    return 2, 128 if min(-low, high) < UNBOUNDED and shape.keys <= 8192 else 176


def forward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out, and LogSumExp where it is wanted."""
    Q, K, V, Out, sums = ins["Q"], ins["K"], ins["V"], outs["Out"], outs.get("LogSumExp")
    shape, layout = shape_of(Q, K, attrs), attrs["layout"]
    groups, step = forward_tiles(shape, attrs)
    rows = 64 * groups
    args = (
        _map(Q, layout, rows), _map(K, layout, step), _map(V, layout, step), Out, sums if sums is not None else i64(0),
        *map(i32, (shape.queries, shape.keys, shape.heads, shape.groups, shape.width)),
        np.float32(scale_of(attrs, shape)), *window_of(attrs, shape), *_strides(Out, layout),
    )  # fmt: skip
    source = _source(["attention_hopper_forward.cu"], Q.dtype, shape.head, step, groups, STAGES=STAGES)
    grid = blocks_for(shape.queries, rows), shape.heads, shape.batch
    shared = 1024 + 2 * shape.head * (rows + 2 * STAGES * step)
    binder.launch_source(source, "attention_forward", grid, 128 + 128 * groups, *args, shared=shared)


def backward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Q_grad, K_grad and V_grad; what is not wanted is computed into scratch, or not at all."""
    Q, K, V, Out, grad = ins["Q"], ins["K"], ins["V"], ins["Out"], ins["Out_grad"]
    shape, layout = shape_of(Q, K, attrs), attrs["layout"]
    step = 8192 // shape.head  # a tile of dQ has so many rows
    tiles = blocks_for(shape.queries, step)
    padded, lines, key_heads = tiles * step, shape.batch * shape.heads, shape.heads // shape.groups
    numbers = binder.scratch((lines * padded, 2), np.dtype("float32"))
    sums = binder.scratch((lines * padded, shape.head), np.dtype("float32"))
    turns = binder.scratch((1 + lines * tiles,), np.dtype("int32"))
    files = ["attention_hopper_order.cuh", "attention_hopper_backward.cu"]
    source = _source(files, Q.dtype, shape.head, step, 2, Q_STAGES=Q_STAGES, DOUT_STAGES=STAGES)
    prepared = (
        Out, grad, ins["LogSumExp"], numbers, turns, *map(i32, (shape.queries, padded, shape.heads, shape.width)),
        *_strides(Out, layout), *_strides(grad, layout),
    )  # fmt: skip
    grid = padded * shape.head // 8 // 256, shape.heads, shape.batch
    binder.launch_source(source, "attention_prepare", grid, 256, *prepared)
    k_grad, v_grad = (
        outs[slot] if outs.get(slot) is not None else binder.scratch(x.shape, x.dtype)
        for slot, x in (("K_grad", K), ("V_grad", V))
    )
    scale = np.float32(scale_of(attrs, shape))
    together = min(blocks_for(4 * binder.device.multiprocessors, tiles), MOST_TOGETHER)
    args = (
        _map(K, layout, ROWS), _map(V, layout, ROWS), _map(Q, layout, step), _map(grad, layout, step), numbers, sums,
        turns, k_grad, v_grad,
        *map(i32, (shape.queries, padded, shape.keys, shape.heads, shape.groups, shape.width)), scale,
        *window_of(attrs, shape), i32(shape.batch * key_heads), i32(together), *_strides(K, layout),
        *_strides(V, layout),
    )  # fmt: skip
    blocks = blocks_for(shape.keys, ROWS) * key_heads * shape.batch
    # K and V; stages of Q with their numbers, and of dOut; dS of two steps; dQ; barriers
    stages = step * (2 * shape.head * (Q_STAGES + STAGES) + 8 * Q_STAGES)
    shared = 4 * ROWS * shape.head + stages + 4 * step * ROWS + 4 * step * shape.head + 256
    binder.launch_source(source, "attention_backward", blocks, THREADS, *args, shared=shared)
    if outs.get("Q_grad") is not None:
        sizes = *map(i32, (shape.queries, shape.heads, shape.width)), scale
        args = sums, turns, outs["Q_grad"], *sizes, *_strides(Q, layout)
        binder.launch_source(source, "attention_finish", (tiles, shape.heads, shape.batch), 256, *args)
