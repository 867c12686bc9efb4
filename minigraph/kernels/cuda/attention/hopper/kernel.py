"""Attention on Hopper's tensor cores: 16-bit floats, head dimensions up to 256, plain, causal or in a window.

As FlashAttention-3 divides it: tiles by the copy engine, products by wgmma, one warpgroup that loads and
others that compute. Forward's blocks stay and work through a list each (pieces.py). Backward sums
dK and dV in registers and dQ in float32 in global memory, where blocks add in a fixed order: results have the
same bits in every run. Heads wider than 128 have three kernels instead, 8 products in place of 5, and sums in
registers only.
Values and keys that a query does not see are multiplied by 0 in the tiles at the edge, so NaN and infinity there
count, as in cuDNN and FlashAttention; what lies outside the arrays does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.cuda.attention.exact.kernel import strides_of, sums_grad
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap, hopper_source, wgmma
from minigraph.types import bfloat16, float16

from .pieces import pieces

ROWS, THREADS = 128, 384  # of a block of the backward kernel
STAGES, Q_STAGES = 2, 3  # tiles in flight
LEAST_TOGETHER = 8  # heads whose blocks take turns, as far as there is work for all of the device
UNBOUNDED = 1 << 29  # a window that reaches everywhere
WIDEST = 256  # head dimension
WALKED_BYTES = 16 << 20  # what the blocks of heads that run together read again and again: it stays in the cache


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
    limits = []
    if not arch.startswith("sm_90"):
        limits.append(f"wgmma needs sm_90, this is {arch}")
    if Q.dtype not in (float16, bfloat16):
        limits.append(f"the tensor cores take 16-bit floats, Q is {Q.dtype}")
    if shape.width > WIDEST or shape.width % 8 or V.shape[-1] != shape.width:
        limits.append(f"head dimensions {shape.width} and {V.shape[-1]} are not one multiple of 8 up to {WIDEST}")
    others = "Bias", "Mask", "CuSeqlensQ", "CuSeqlensK", "Blocks"
    limits += [f"{slot} is given" for slot in others if ins.get(slot) is not None]
    if attrs["dropout"] > 0 and not attrs["is_test"]:
        limits.append("probabilities are dropped")
    if scale_of(attrs, shape) <= 0:
        limits.append("scale is not positive")
    if min(shape.batch, shape.heads, shape.queries, shape.keys, shape.width) == 0:
        limits.append("a size is 0")
    if max(shape.queries, shape.keys) >= UNBOUNDED or max(shape.batch, shape.heads) >= 1 << 16:
        limits.append("a size exceeds a grid's")
    return limits


def shape_of(Q: Buffer, K: Buffer, attrs: Mapping[str, Any]) -> Shape:
    if Q.ndim == 3:
        return Shape(Q.shape[0], 1, 1, Q.shape[1], K.shape[1], Q.shape[2])
    s, h = (1, 2) if attrs["layout"] == "bshd" else (2, 1)
    return Shape(Q.shape[0], Q.shape[h], Q.shape[h] // max(K.shape[h], 1), Q.shape[s], K.shape[s], Q.shape[3])


def scale_of(attrs: Mapping[str, Any], shape: Shape) -> float:
    return attrs["scale"] if attrs["scale"] is not None else max(shape.width, 1) ** -0.5


def window_of(attrs: Mapping[str, Any], shape: Shape) -> tuple[int, int]:
    """(low, high): query i sees keys i + low to i + high."""
    shift = shape.keys - shape.queries if attrs["bottom_right"] else 0
    left, right = attrs["window"] if attrs["window"] is not None else (UNBOUNDED, UNBOUNDED)
    right = min(right, 0) if attrs["causal"] else right
    return max(shift - left, -UNBOUNDED), min(shift + right, UNBOUNDED)


def _map(x: Buffer, layout: str, rows: int) -> TensorMap:
    batch, head, row = strides_of(x, layout)
    s, h = (1, 2) if layout == "bshd" or x.ndim == 3 else (2, 1)
    heads = 1 if x.ndim == 3 else x.shape[h]
    return TensorMap(x, (x.shape[-1], x.shape[s], heads, x.shape[0]), (row, head, batch), rows)


def _source(
    files: Sequence[str], dtype: np.dtype, head: int, step: int, groups: int, **more: Any
) -> str:  # fmt: skip
    name = CUDA_TYPES[dtype]
    instructions = (
        wgmma(step, name, steps=4), wgmma(head, name, True, True, steps=step // 16),
        wgmma(64, name, False, True, steps=4),
    )  # fmt: skip
    numbers = {"HEAD": head, "STEP": step, "GROUPS": groups, **more}
    defines = ("T", name), ("PTX_T", f'"{name}"'), *((k, str(n)) for k, n in numbers.items())
    return hopper_source(instructions, defines, ("attention/hopper/tiles.cuh", *files))


def _strides(x: Buffer, layout: str) -> tuple[np.int64, ...]:
    return tuple(i64(n) for n in strides_of(x, layout))


def forward_tiles(shape: Shape, banded: bool) -> tuple[int, int]:
    """(warpgroups that compute 64 queries each, keys in a tile): the fastest of those measured on an H200."""
    if shape.head == 128:
        return 2, 128 if banded and shape.keys < 4096 else 160
    if shape.head == 192:
        return 2, 80 if banded else 112  # 96 with a band spills registers under NVRTC 13.5
    measured = shape.head == 64 and shape.queries >= 256
    if measured and _units(shape, banded, 3, 128) > 1.2 * _units(shape, banded, 2, 128):
        return 2, 128  # the last of the larger tiles would be half empty
    return {64: (3, 128), 256: (2, 80)}[shape.head]


def _units(shape: Shape, banded: bool, groups: int, step: int) -> int:
    """Rows times tiles of keys that blocks of so many warpgroups compute for a head; a band is taken for causal."""
    rows, count = 64 * groups, blocks_for(shape.keys, step)
    last = (min(count, blocks_for(first + rows, step)) if banded else count for first in range(0, shape.queries, rows))
    return rows * sum(last)


def pairs(shape: Shape, groups: int, banded: bool) -> bool:
    """Whether two blocks with tiles of queries beside each other load keys and values for both.

    Half as much comes from the cache then, which tells where heads are wide; but both see what one of them sees.
    """
    return shape.head == 128 and not banded and blocks_for(shape.queries, 64 * groups) % 2 == 0


def heads_together(shape: Shape, rows: int) -> int:
    """How many heads' blocks run side by side, each walking over `rows` rows of two arrays."""
    return max(1, WALKED_BYTES // (4 * rows * shape.head))


def forward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out, and LogSumExp where it is wanted."""
    Q, K, V, Out, sums = ins["Q"], ins["K"], ins["V"], outs["Out"], outs.get("LogSumExp")
    shape, layout = shape_of(Q, K, attrs), attrs["layout"]
    low, high = window_of(attrs, shape)
    banded = min(-low, high) < UNBOUNDED
    groups, step = forward_tiles(shape, banded)
    pair = 2 if pairs(shape, groups, banded) else 1
    rows, count = 64 * groups * pair, blocks_for(shape.keys, step)
    first = np.arange(blocks_for(shape.queries, rows)) * rows
    begin = np.maximum(0, first + low) // step
    end = np.minimum(count, (first + rows - 1 + high) // step + 1)
    nothing = begin >= end  # is seen: a tile behind the last key, which holds zeros and is hidden
    spans = np.where(nothing, count, begin).tolist(), np.where(nothing, count + 1, end).tolist()
    lines, processors = shape.batch * shape.heads, binder.device.multiprocessors
    together = min(heads_together(shape, shape.keys) * shape.groups, lines)
    worth = max(4, (shape.head // 64) ** 2)  # what parts cost, as measured: wide ones go slowly through memory
    made = pieces(tuple(zip(*spans, strict=True)), lines, together, max(1, processors // pair), worth)
    places = made.parts * pair * groups  # of what a warpgroup hands in
    parts = binder.scratch((places, 128 * (shape.head // 2 + 4)), np.dtype("float32")) if places else i64(0)
    # how many parts of a tile a warp's rows are there of; 0 again when they all were
    _, order, arrived = binder.table([], made.order, np.zeros(max(4 * places, 1), np.int32))
    args = (
        _map(Q, layout, 64 * groups), _map(K, layout, step // pair), _map(V, layout, step // pair), Out,
        sums if sums is not None else i64(0), order, parts, arrived,
        *map(i32, (len(first), shape.queries, shape.keys, shape.heads, shape.groups, shape.width)),
        np.float32(scale_of(attrs, shape)), i32(low), i32(high), *_strides(Out, layout),
    )  # fmt: skip
    q_stages = 2 if shape.head <= 128 else 1  # as far as there is room
    source = _source(
        ["attention/hopper/forward.cu"], Q.dtype, shape.head, step, groups, STAGES=STAGES, Q_STAGES=q_stages, PAIR=pair,
        BANDED=int(banded),
    )  # fmt: skip
    shared = 1024 + 2 * shape.head * (64 * groups * q_stages + 2 * STAGES * step)
    blocks = made.order.shape[1] * pair
    binder.launch_source(source, "attention_forward", blocks, 128 + 128 * groups, *args, shared=shared)


def lines_together(tiles: int, groups: int, multiprocessors: int) -> int:
    """How many heads of K take tickets in turn, each read by `groups` heads with so many tiles of queries.

    The more they are, the fewer blocks of one head run at a time and wait for each other; but what they read and add
    to should stay in the cache. A tile takes 64 KiB, so 4 for a multiprocessor are 33 MiB on an H200.
    """
    most = 4 * multiprocessors
    return max(most // (tiles * groups), min(blocks_for(most, tiles), LEAST_TOGETHER))


def goes_around(lines: int, blocks: int, tiles: int, multiprocessors: int) -> bool:
    """Whether blocks of a head, which see all queries, start at tiles of their own: where all blocks run at once.

    Measured to pay where a head needs half of the device at most.
    """
    return 1 < blocks <= min(tiles, multiprocessors // 2) and lines * blocks <= multiprocessors


def backward(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Q_grad, K_grad and V_grad; what is not wanted is computed into scratch, or not at all."""
    Q, K, V, Out, grad = ins["Q"], ins["K"], ins["V"], ins["Out"], ins["Out_grad"]
    shape, layout = shape_of(Q, K, attrs), attrs["layout"]
    if shape.head > 128:
        return _wide_backward(binder, ins, outs, attrs)
    step = 8192 // shape.head  # a tile of dQ has so many rows
    tiles = blocks_for(shape.queries, step)
    padded, lines, key_heads = tiles * step, shape.batch * shape.heads, shape.heads // shape.groups
    numbers = binder.scratch((lines * padded, 2), np.dtype("float32"))
    sums = binder.scratch((lines * padded, shape.head), np.dtype("float32"))
    turns = binder.scratch((1 + lines * tiles,), np.dtype("int32"))
    blocks, key_lines, processors = blocks_for(shape.keys, ROWS), shape.batch * key_heads, binder.device.multiprocessors
    low, high = window_of(attrs, shape)
    around = min(-low, high) >= UNBOUNDED and goes_around(key_lines, blocks, tiles, processors)
    stays = shape.head == 64 and not around  # wider heads leave too few registers
    files = [f"attention/hopper/{name}" for name in ("order.cuh", "backward.cu", "backward_blocks.cu")]
    source = _source(
        files, Q.dtype, shape.head, step, 2, Q_STAGES=Q_STAGES, DOUT_STAGES=STAGES, AROUND=int(around),
        STAYS=int(stays),
    )  # fmt: skip
    prepared = (
        Out, grad, ins["LogSumExp"], sums_grad(ins), numbers, turns,
        *map(i32, (shape.queries, padded, shape.heads, shape.width)), *_strides(Out, layout), *_strides(grad, layout),
    )  # fmt: skip
    grid = padded * shape.head // 8 // 256 * shape.heads, shape.batch
    binder.launch_source(source, "attention_prepare", grid, 256, *prepared)
    k_grad, v_grad = (
        outs[slot] if outs.get(slot) is not None else binder.scratch(x.shape, x.dtype)
        for slot, x in (("K_grad", K), ("V_grad", V))
    )
    scale = np.float32(scale_of(attrs, shape))
    together = 1 if around else lines_together(tiles, shape.groups, processors)
    args = (
        _map(K, layout, ROWS), _map(V, layout, ROWS), _map(Q, layout, step), _map(grad, layout, step), numbers, sums,
        turns, k_grad, v_grad,
        *map(i32, (shape.queries, padded, shape.keys, shape.heads, shape.groups, shape.width)), scale,
        *map(i32, (low, high, key_lines, together)), *_strides(k_grad, layout), *_strides(v_grad, layout),
    )  # fmt: skip
    # K and V; stages of Q with their numbers, and of dOut; dS of two steps; dQ; barriers
    stages = step * (2 * shape.head * (Q_STAGES + STAGES) + 8 * Q_STAGES)
    shared = 4 * ROWS * shape.head + stages + 4 * step * ROWS + 4 * step * shape.head + 256
    grid = min(blocks * key_lines, processors) if stays else blocks * key_lines
    binder.launch_source(source, "attention_backward", grid, THREADS, *args, shared=shared, together=around)
    if outs.get("Q_grad") is not None:
        sizes = *map(i32, (shape.queries, shape.heads, shape.width)), scale
        args = sums, turns, outs["Q_grad"], *sizes, *_strides(outs["Q_grad"], layout)
        binder.launch_source(source, "attention_finish", (tiles, shape.heads, shape.batch), 256, *args)


class Gradient(NamedTuple):
    """A kernel of wide heads: its tile of columns, and how many tiles of both walked arrays are in flight."""

    step: int
    late: int
    other: int


GRADIENTS = {  # the fastest of those measured on an H200
    256: {"QUERY": Gradient(32, 3, 3), "KEY": Gradient(32, 3, 3), "VALUE": Gradient(64, 3, 2)},
    192: {"QUERY": Gradient(64, 3, 2), "KEY": Gradient(64, 3, 2), "VALUE": Gradient(80, 3, 2)},
}


def _wide_backward(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:  # fmt: skip
    """backward() of heads wider than 128; what is not wanted is not computed."""
    Q, K, V, Out, grad = ins["Q"], ins["K"], ins["V"], ins["Out"], ins["Out_grad"]
    shape, layout = shape_of(Q, K, attrs), attrs["layout"]
    low, high = window_of(attrs, shape)
    lines, key_lines = shape.batch * shape.heads, shape.batch * shape.heads // shape.groups
    padded = blocks_for(shape.queries, ROWS) * ROWS + ROWS  # tiles of all kernels end before
    numbers = binder.scratch((2, lines, padded), np.dtype("float32"))
    walks = {  # own rows and those of the slopes; walked rows that weights add up, the others; sizes, window
        "QUERY": (Q, grad, K, V, shape.queries, shape.keys, lines, low, high),
        "KEY": (K, V, Q, grad, shape.keys, shape.queries, key_lines, -high, -low),
        "VALUE": (K, K, grad, Q, shape.keys, shape.queries, key_lines, -high, -low),
    }
    prepared = False
    for (kind, walk), slot in zip(walks.items(), ("Q_grad", "K_grad", "V_grad"), strict=True):
        to = outs.get(slot)
        if to is None:
            continue
        own, slopes, late, other, count, walked, own_lines, least, most = walk
        cut = GRADIENTS[shape.head][kind]
        source = _source(
            ["attention/hopper/backward_wide.cu"], Q.dtype, shape.head, cut.step, 2, KIND=kind, LATE=cut.late,
            OTHER=cut.other,
        )  # fmt: skip
        if not prepared:
            args = (
                Out, grad, ins["LogSumExp"], sums_grad(ins), numbers,
                *map(i32, (shape.queries, padded, shape.heads, shape.width)),
                *_strides(Out, layout), *_strides(grad, layout),
            )  # fmt: skip
            binder.launch_source(source, "attention_wide_prepare", (padded // 8, shape.heads, shape.batch), 256, *args)
            prepared = True
        blocks = blocks_for(count, ROWS)
        together = min(heads_together(shape, walked), own_lines)
        args = (
            _map(own, layout, ROWS), _map(slopes, layout, ROWS), _map(late, layout, cut.step),
            _map(other, layout, cut.step), numbers, to,
            *map(i32, (count, walked, padded, shape.heads, shape.groups, shape.width)),
            np.float32(scale_of(attrs, shape)), *map(i32, (least, most, blocks, own_lines, together)),
            *_strides(to, layout),
        )  # fmt: skip
        tiles = ROWS * (1 if kind == "VALUE" else 2) + (cut.late + cut.other) * cut.step
        shared = 2 * shape.head * tiles + 8 * cut.late * cut.step * (kind != "QUERY") + 256
        binder.launch_source(source, "attention_wide_backward", blocks * own_lines, THREADS, *args, shared=shared)
