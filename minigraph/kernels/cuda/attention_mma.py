"""Attention on the tensor cores of sm_80 and later by mma.sync: float32 in three TF32 products, and 16-bit floats.

All layouts, masks, biases, windows, packed sequences, dropout; head dimensions up to 256 (float32: 128). float32
results are as near as those of float32 arithmetic: each operand is the sum of two TF32 numbers. Deterministic.
Kernels and their cost: attention_mma.cuh, attention_mma_forward.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...types import bfloat16, float16, float32, int64
from ..attention import HIDDEN_WHOLE
from . import attention_exact
from .attention_exact import ABSENT, Call, call_of, drops, is_general
from .binder import Binder, blocks_for, i32, i64
from .buffer import CUDA_TYPES, Buffer
from .compile import full_source, read_source

Slots = Mapping[str, Any]
WEIGHED = 2


class Tiles(NamedTuple):
    """How a kernel cuts its work: a warp owns 16 * `own` rows and walks over tiles of `other` rows.

    held     operands of the own rows stay in registers
    blocks   of a multiprocessor, at least
    """

    own: int
    warps: int
    other: int
    held: bool
    blocks: int

    @property
    def rows(self) -> int:
        return 16 * self.own * self.warps

    @property
    def threads(self) -> int:
        return 32 * self.warps


def widths(c: Call) -> tuple[int, int]:
    """The head dimensions as tiles have them."""
    return blocks_for(c.d, 32) * 32, blocks_for(c.dv, 32) * 32


def tiles_of(c: Call) -> Tiles:
    widest = max(widths(c))
    if c.dtype == float32:
        return Tiles(1, 4, 64 if widest <= 32 else 32, widest <= 64, 3 if widest <= 32 else 2 if widest <= 64 else 1)
    return Tiles(1, 4, 64, widest <= 128, 2 if widest <= 128 else 1)


def grad_tiles_of(c: Call) -> Tiles:
    widest = max(widths(c))
    if c.dtype == float32:
        return Tiles(1, 4, 32, widest <= 32, 2 if widest <= 64 else 1)
    return Tiles(1, 4, 32, widest <= 64, 2 if widest <= 64 else 1)


def source_of(files: tuple[str, ...], c: Call, t: Tiles, ins: Slots, attrs: Slots, **more: Any) -> str:
    bias, lengths = ins.get("Bias"), ins.get("CuSeqlensQ")
    name, piece = CUDA_TYPES[c.dtype], 16 // c.dtype.itemsize
    head, head_v = widths(c)
    defines = {
        "T": name, "C": "float", "PTX_T": f'"{name}"', "TERMS": 3 if c.dtype == float32 else 0,
        "BT": CUDA_TYPES[bias.dtype if bias is not None else c.dtype],
        "L": CUDA_TYPES[lengths.dtype if lengths is not None else int64], "GENERAL": int(is_general(ins, attrs)),
        "DROPS": int(drops(attrs)), "ALIGNED": int(c.d % piece == 0 and c.dv % piece == 0), "HEAD": head,
        "HEAD_V": head_v, "MT": t.own, "WARPS": t.warps, "THREADS": t.threads, "BN": t.other, "OWN_HELD": int(t.held),
        "LEAST": t.blocks, "PARTS": 2 if c.dtype == float32 else 1,
        "PARTS_OF_WEIGHED": WEIGHED if c.dtype == float32 else 1, "HIDDEN_WHOLE": HIDDEN_WHOLE, **more,
    }  # fmt: skip
    start = full_source("philox.cuh", tuple((k, str(v)) for k, v in defines.items()))
    return start + "".join(map(read_source, ("attention_inputs.cuh", "attention_mma.cuh", *files)))


def forward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    c, Out, sums = call_of(ins, attrs), outs["Out"], outs.get("LogSumExp")
    attention_exact.check_lengths(binder, c, ins, attrs)
    t, (head, head_v) = tiles_of(c), widths(c)
    tiles = blocks_for(c.queries, t.rows)
    blocks = tiles * c.batch * c.heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = part_sums = ABSENT
    if splits > 1:
        part = binder.scratch((splits, Out.size), float32)
        part_sums = binder.scratch((splits, 2, c.rows), float32)
    shared = c.dtype.itemsize * (t.rows * head + 2 * t.other * (head + head_v))
    facts = i64(splits), i64(Out.size), i64(c.rows)
    binder.launch_source(
        source_of(("attention_mma_forward.cu",), c, t, ins, attrs), "attention_mma_forward", (blocks, splits),
        t.threads, *attention_exact.inputs_of(c, ins, attrs), Out, ABSENT if sums is None else sums, part, part_sums,
        i64(tiles), *facts, shared=shared,
    )  # fmt: skip
    if splits > 1:
        attention_exact.join(binder, c, ins, attrs, (part, part_sums), (Out, ABSENT if sums is None else sums), facts)


def backward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    c = call_of(ins, attrs)
    wanted = {slot: outs.get(slot) for slot in ("Q_grad", "K_grad", "V_grad")}
    common = attention_exact.inputs_of(c, ins, attrs)
    numbers = binder.scratch((c.rows, 2), float32)
    t = grad_tiles_of(c)
    binder.launch_source(
        source_of(("attention_mma_backward.cu",), c, t, ins, attrs), "attention_mma_prepare",
        blocks_for(c.rows, t.warps), t.threads, *common, ins["Out"], ins["Out_grad"], ins["LogSumExp"], numbers,
        i64(c.rows),
    )  # fmt: skip
    common += ins["Out_grad"], numbers
    if wanted["Q_grad"] is not None:
        _query_grad(binder, c, ins, attrs, common, wanted["Q_grad"])
    if wanted["K_grad"] is not None or wanted["V_grad"] is not None:
        _key_grad(binder, c, ins, attrs, common, wanted["K_grad"], wanted["V_grad"])
    if outs.get("Bias_grad") is not None:
        attention_exact.bias_grad(binder, ins, attrs, outs["Bias_grad"])


def _query_grad(binder: Binder, c: Call, ins: Slots, attrs: Slots, common: tuple[Any, ...], to: Buffer) -> None:
    t = grad_tiles_of(c)
    tiles = blocks_for(c.queries, t.rows)
    blocks = tiles * c.batch * c.heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = binder.scratch((splits, to.size), float32) if splits > 1 else ABSENT
    source = source_of(("attention_mma_backward.cu",), c, t, ins, attrs, QUERY_GRAD=1)
    binder.launch_source(
        source, "attention_mma_query_grad", (blocks, splits), t.threads, *common, to, part, i64(tiles), i64(splits),
        i64(to.size), shared=c.dtype.itemsize * (t.rows + 2 * t.other) * sum(widths(c)),
    )  # fmt: skip
    if isinstance(part, Buffer):
        attention_exact.add_parts(binder, attention_exact.small_source(c, ins, attrs), part, to, to.size, splits)


def _key_grad(
    binder: Binder, c: Call, ins: Slots, attrs: Slots, common: tuple[Any, ...], to_k: Buffer | None,
    to_v: Buffer | None,
) -> None:  # fmt: skip
    t = grad_tiles_of(c)
    tiles = blocks_for(c.keys, t.rows)
    blocks = tiles * c.batch * c.kv_heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.queries, t.other) * (c.heads // c.kv_heads))
    sizes = ins["K"].size, ins["V"].size
    part = binder.scratch((splits, sum(sizes)), float32) if splits > 1 else ABSENT
    source = source_of(("attention_mma_backward.cu",), c, t, ins, attrs, KEY_GRAD=1, FOR_K=1, FOR_V=1)
    binder.launch_source(
        source, "attention_mma_key_grad", (blocks, splits), t.threads, *common, ABSENT if to_k is None else to_k,
        ABSENT if to_v is None else to_v, part, i64(tiles), i64(splits), *map(i64, sizes),
        shared=c.dtype.itemsize * (t.rows + 2 * t.other) * sum(widths(c)) + 16 * t.other,
    )  # fmt: skip
    if isinstance(part, Buffer):
        for to, start in ((to_k, 0), (to_v, sizes[0])):
            if to is not None:
                shown = part.view((part.size - start,), offset=4 * start)
                source = attention_exact.small_source(c, ins, attrs)
                attention_exact.add_parts(binder, source, shown, to, sum(sizes), splits)
