"""Exact attention for every call: sums of products in the type computed in, float32 or float64, no tensor cores.

All layouts, head dimensions, masks, biases, windows, packed sequences, dropout; deterministic. Kernels and
their cost: forward.cu, backward.cu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.cpu.attention import HIDDEN_WHOLE
from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import float32, float64, int64

THREADS, ACROSS, DOWN = 128, 16, 8
WORDS = 64  # registers of a thread for what it adds up
MOST = 512  # head dimension
STATIC = 4 * 1024  # bytes of shared memory beside a tiling's: intervals of rows, sums over rows
ABSENT = np.uint64(0)

Slots = Mapping[str, Any]


class AttentionSizes(NamedTuple):
    """Sizes of one call: those of Q, K, V as [batch, heads, queries or keys, d or dv]."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    bshd: bool
    dtype: np.dtype

    @property
    def computed(self) -> np.dtype:
        return float64 if self.dtype == float64 else float32

    @property
    def rows(self) -> int:
        return self.batch * self.heads * self.queries


def call_of(ins: Slots, attrs: Slots) -> AttentionSizes:
    """The sizes of a call."""
    Q, K, V = ins["Q"], ins["K"], ins["V"]
    if Q.ndim == 3:
        b, s, d = Q.shape
        return AttentionSizes(b, 1, 1, s, K.shape[1], d, V.shape[2], False, Q.dtype)
    seq, head = (1, 2) if attrs["layout"] == "bshd" else (2, 1)
    return AttentionSizes(
        Q.shape[0], Q.shape[head], K.shape[head], Q.shape[seq], K.shape[seq], Q.shape[3], V.shape[3],
        attrs["layout"] == "bshd", Q.dtype,
    )  # fmt: skip


def reasons(ins: Slots, attrs: Slots, arch: str) -> list[str]:
    """Why these kernels cannot compute this call; empty if they can."""
    c = call_of(ins, attrs)
    limits = [f"head dimension {n} exceeds {MOST}" for n in (c.d, c.dv) if n > MOST]
    rows = max(c.queries, c.keys) * c.batch * c.heads
    return limits + [f"{rows} rows are more than 2^31"] * (rows >= 2**31)


class ExactTiling(NamedTuple):
    """How a kernel cuts its work: RM rows of a thread, RN columns, pieces of the head dimension."""

    rows: int
    columns: int
    chunk: int
    chunks_d: int
    chunks_v: int
    number: int  # bytes of one number that is computed

    @property
    def own(self) -> int:
        """Rows of a block."""
        return DOWN * self.rows

    @property
    def other(self) -> int:
        return ACROSS * self.columns

    def shared(self, *chunks: int) -> int:
        """Bytes of shared memory: own rows of so many chunks each, the stage, and p."""
        pad = 16 // self.number
        own = sum(self.own * (n * self.chunk + pad) for n in chunks)
        return self.number * (own + self.other * (self.chunk + pad) + self.own * (self.other + pad))


def tiles_of(
    c: AttentionSizes, general: bool, accumulated: Sequence[int], scores: int, room: int | None = None
) -> ExactTiling:
    """Tiles with which what is added up (head dimensions) and `scores` arrays of scores stay in registers.

    room   bytes of shared memory that own rows of both head dimensions must fit into
    """
    size, words = c.computed.itemsize, c.computed.itemsize // 4
    widest = max(c.d, c.dv)
    chunk = next(n for n in (16, 32, 64) if n >= min(widest, 64 // words))
    rows, columns = (4 if general else 8) // words, 4 // words
    per_row = words * sum(blocks_for(n, chunk) * chunk // ACROSS for n in accumulated)
    while rows > 1 and (rows * per_row > WORDS or (scores > 1 and words * rows * (columns * scores + 1) > 96)):
        rows //= 2
    made = ExactTiling(rows, columns, chunk, blocks_for(c.d, chunk), blocks_for(c.dv, chunk), size)
    while room is not None and made.rows > 1 and made.shared(made.chunks_d, made.chunks_v) > room - STATIC:
        made = made._replace(rows=made.rows // 2)
    return made


def _source(file: str, c: AttentionSizes, t: ExactTiling, ins: Slots, attrs: Slots, **more: Any) -> str:
    bias, lengths = ins.get("Bias"), ins.get("CuSeqlensQ")
    together = math.gcd(c.d, c.dv)
    defines = {
        "T": CUDA_TYPES[c.dtype], "C": compute_type(c.dtype), "ST": CUDA_TYPES[c.computed],
        "BT": CUDA_TYPES[bias.dtype if bias is not None else c.dtype],
        "L": CUDA_TYPES[lengths.dtype if lengths is not None else int64], "GENERAL": int(is_general(ins, attrs)),
        "VEC": next(n for n in (4, 2, 1) if together % n == 0 and n * c.dtype.itemsize <= 16), "RM": t.rows,
        "RN": t.columns, "CHUNK": t.chunk, "CHUNKS_D": t.chunks_d, "CHUNKS_V": t.chunks_v, "LEAST": 2,
        "HIDDEN_WHOLE": HIDDEN_WHOLE, **modifiers_of(ins), "BLOCK": block_of(ins, attrs), **more,
    }  # fmt: skip
    head = full_source("record/philox.cuh", tuple((k, str(v)) for k, v in defines.items()))
    return head + read_source("attention/inputs.cuh") + read_source("attention/exact/tiles.cuh") + read_source(file)


def is_general(ins: Slots, attrs: Slots) -> bool:
    """Whether scores change by more than an interval."""
    return ins.get("Bias") is not None or ins.get("Mask") is not None or drops(attrs)


def modifiers_of(ins: Slots) -> dict[str, int]:
    """Which of them there are, for the compiler."""
    return {"BIASED": int(ins.get("Bias") is not None), "MASKED": int(ins.get("Mask") is not None)}


def drops(attrs: Slots) -> bool:
    """Whether probabilities are dropped."""
    return attrs["dropout"] > 0 and not attrs["is_test"]


def score_strides(x: Buffer | None, rank: int) -> tuple[int, ...]:
    """Elements from one batch, head, query, key to the next; 0 where `x` broadcasts."""
    if x is None:
        return 0, 0, 0, 0
    strides, step = [], 1
    for size in reversed(score_sizes(x, rank)):
        strides.append(0 if size == 1 else step)
        step *= size
    return tuple(reversed(strides))


def score_sizes(x: Buffer, rank: int) -> tuple[int, ...]:
    """The sizes of a Bias or Mask along all four axes of the scores."""
    sizes = (1,) * (rank - x.ndim) + tuple(x.shape)
    return (sizes[0], 1, *sizes[1:]) if rank == 3 else sizes


def head_step(blocks: Buffer) -> int:
    """Elements from one head's table of blocks to the next; 0 where all heads have one."""
    return 0 if blocks.ndim == 2 or blocks.shape[0] == 1 else blocks.shape[1] * blocks.shape[2]


def block_of(ins: Slots, attrs: Slots) -> int:
    """Queries and keys of a block of the table; 0 without one."""
    return 0 if ins.get("Blocks") is None else attrs["block_size"]


def strides_of(x: Buffer, layout: str) -> tuple[int, int, int]:
    """Elements from one batch, head and row of `x` to the next."""
    if x.ndim == 3:
        return x.strides[0], x.strides[1], x.strides[1]
    batch, a, b, _ = x.strides
    return (batch, b, a) if layout == "bshd" else (batch, a, b)


def inputs_of(c: AttentionSizes, ins: Slots, attrs: Slots) -> tuple[Any, ...]:
    """The arguments INPUTS of attention/inputs.cuh."""
    rank, window, p = ins["Q"].ndim, attrs["window"] or (-1, -1), attrs["dropout"]
    after = 0 if attrs["causal"] else window[1]
    lengths = ins.get("CuSeqlensQ")
    slots = ("Bias", "Mask", "CuSeqlensQ", "CuSeqlensK", "Key")
    given = [ABSENT if (x := ins.get(slot)) is None else x for slot in slots]
    numbers = (
        c.heads, c.heads // max(c.kv_heads, 1), c.queries, c.keys, c.d, c.dv, int(c.bshd),
        *(n for slot in "QKV" for n in strides_of(ins[slot], attrs["layout"])),
        lengths.size - 1 if lengths is not None else 0, window[0], after, int(attrs["bottom_right"]),
        *score_strides(ins.get("Bias"), rank), *score_strides(ins.get("Mask"), rank),
    )  # fmt: skip
    table = () if (blocks := ins.get("Blocks")) is None else (blocks, i64(head_step(blocks)))
    small = 7  # of these numbers are ints
    scale = attrs["scale"] if attrs["scale"] is not None else 1 / math.sqrt(c.d)
    dropped = drops(attrs)
    return (
        ins["Q"], ins["K"], ins["V"], *given, *map(i32, numbers[:small]),
        *map(i64, numbers[small:]), np.float64(scale), np.float64(attrs["masked_score"]),
        np.uint64(round(p * 2**32) if dropped else 0), np.float64(1 / (1 - p) if dropped else 1),
        *table,
    )  # fmt: skip


def splits_of(binder: Binder, blocks: int, steps: int) -> int:
    """How many blocks share the work of one where there are too few to fill the device."""
    wanted = 2 * binder.device.multiprocessors
    if blocks == 0 or 2 * blocks > wanted or steps < 2:
        return 1
    return min(blocks_for(wanted, blocks), steps // 2 if steps > 3 else 1, 16)


def forward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    c, Out, sums = call_of(ins, attrs), outs["Out"], outs.get("LogSumExp")
    check_lengths(binder, c, ins, attrs)
    if c.rows == 0:
        return
    t = tiles_of(c, is_general(ins, attrs), [c.dv], 1)
    tiles = blocks_for(c.queries, t.own)
    blocks = tiles * c.batch * c.heads
    splits = splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = part_sums = ABSENT
    if splits > 1:
        part = binder.scratch((splits, Out.size), c.computed)
        part_sums = binder.scratch((splits, 2, c.rows), c.computed)
    source, results = _source("attention/exact/forward.cu", c, t, ins, attrs), (Out, ABSENT if sums is None else sums)
    facts = i64(splits), i64(Out.size), i64(c.rows)
    binder.launch_source(
        source, "attention_forward", (blocks, splits), THREADS, *inputs_of(c, ins, attrs), *results, part, part_sums,
        i64(tiles), *facts, shared=t.shared(t.chunks_d),
    )  # fmt: skip
    if splits > 1:
        join(binder, c, ins, attrs, (part, part_sums), results, facts)


def join(
    binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, parts: tuple[Any, ...], results: tuple[Any, ...],
    facts: tuple[np.int64, ...],
) -> None:  # fmt: skip
    """Out and LogSumExp from those of the splits."""
    source = _source("attention/exact/forward.cu", c, tiles_of(c, is_general(ins, attrs), [c.dv], 1), ins, attrs)
    sizes = i32(c.heads), i32(c.queries), i32(c.dv), i32(int(c.bshd))
    grid, masked = blocks_for(c.rows, THREADS // 32), i64(int(ins.get("Mask") is not None))
    masked_score = np.float64(attrs["masked_score"])
    binder.launch_source(
        source, "join", grid, THREADS, *parts, *results, *sizes, masked, masked_score, *facts
    )  # fmt: skip


def sight(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Seen and Kept of attention_sight."""
    given, unread = {**ins, "V": ins["K"]}, {"scale": 1.0, "masked_score": 0.0}
    c, seen, kept = call_of(given, attrs), outs["Seen"], outs.get("Kept")
    t = tiles_of(c, True, [c.dv], 1)
    source = _source("attention/sight.cu", c, t, given, attrs)
    factors = ABSENT if kept is None or kept.size == 0 else kept
    elements = seen.size if kept is None else max(seen.size, kept.size)
    if elements == 0:
        return
    binder.launch_source(
        source, "attention_sight", blocks_for(elements, THREADS), THREADS, *inputs_of(c, given, {**attrs, **unread}),
        seen, factors, i64(seen.shape[0] if seen.ndim == 3 else 1), i64(elements),
    )  # fmt: skip


def check_lengths(binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots) -> None:
    lengths = ins.get("CuSeqlensQ")
    if lengths is None:
        return
    source = _source("attention/exact/forward.cu", c, tiles_of(c, is_general(ins, attrs), [c.dv], 1), ins, attrs)
    grid = min(blocks_for(lengths.size, THREADS), binder.device.multiprocessors)
    binder.launch_source(
        source, "check_lengths", grid, THREADS, lengths, ins["CuSeqlensK"], i64(lengths.size - 1), i64(c.queries),
        i64(c.keys), *binder.report(f"no cumulative length of {c.queries} and {c.keys} positions: 0, n0, n0 + n1, ..."),
    )  # fmt: skip


def backward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    c = call_of(ins, attrs)
    wanted = {slot: outs.get(slot) for slot in ("Q_grad", "K_grad", "V_grad", "Bias_grad")}
    if c.rows == 0 or c.keys == 0:
        for gradient in wanted.values():
            if gradient is not None:
                binder.zero(gradient)
        return
    tail = _row_products(binder, c, ins, attrs)
    if wanted["Q_grad"] is not None:
        _query_grad(binder, c, ins, attrs, tail, wanted["Q_grad"])
    if wanted["K_grad"] is not None or wanted["V_grad"] is not None:
        _key_grad(binder, c, ins, attrs, tail, wanted["K_grad"], wanted["V_grad"])
    if wanted["Bias_grad"] is not None:
        _bias_grad(binder, c, ins, attrs, tail, wanted["Bias_grad"])


def bias_grad(binder: Binder, ins: Slots, attrs: Slots, to: Buffer) -> None:
    """Bias_grad alone."""
    c = call_of(ins, attrs)
    _bias_grad(binder, c, ins, attrs, _row_products(binder, c, ins, attrs), to)


def numbers_of_query(general: bool) -> int:
    """How many numbers Numbers of attention/inputs.cuh has room for."""
    return 4 if general else 2


def sums_grad(ins: Slots) -> Any:
    """The gradient of LogSumExp, absent where there is none."""
    return ABSENT if (given := ins.get("LogSumExp_grad")) is None else given


def _small_source(c: AttentionSizes, ins: Slots, attrs: Slots) -> str:
    """The source of backward with what does not depend on tiles: row_products, add_parts."""
    return _source("attention/exact/backward.cu", c, tiles_of(c, is_general(ins, attrs), [c.dv], 1), ins, attrs)


def _row_products(binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots) -> tuple[Buffer, Buffer]:
    """Out_grad, and what backward knows of each query."""
    grad, general = ins["Out_grad"], is_general(ins, attrs)
    numbers = binder.scratch((c.rows, numbers_of_query(general)), c.computed)
    grid, source = blocks_for(c.rows, THREADS // 32), _small_source(c, ins, attrs)
    binder.launch_source(
        source, "row_products", grid, THREADS, *inputs_of(c, ins, attrs), ins["Out"], grad, ins["LogSumExp"],
        sums_grad(ins), numbers, i64(c.rows),
    )  # fmt: skip
    return grad, numbers


def _query_grad(binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, tail: tuple[Any, ...], to: Buffer) -> None:
    t = tiles_of(c, is_general(ins, attrs), [c.d], 2, binder.device.shared)
    tiles = blocks_for(c.queries, t.own)
    blocks = tiles * c.batch * c.heads
    splits = splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = binder.scratch((splits, to.size), c.computed) if splits > 1 else ABSENT
    source = _source("attention/exact/backward.cu", c, t, ins, attrs, QUERY_GRAD=1)
    binder.launch_source(
        source, "query_grad", (blocks, splits), THREADS, *inputs_of(c, ins, attrs), *tail, to, part, i64(tiles),
        i64(splits), i64(to.size), shared=t.shared(t.chunks_d, t.chunks_v),
    )  # fmt: skip
    if isinstance(part, Buffer):
        add_parts(binder, c, ins, attrs, part, to, to.size, splits)


def _key_grad(
    binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, tail: tuple[Any, ...], to_k: Buffer | None,
    to_v: Buffer | None,
) -> None:
    t = tiles_of(c, is_general(ins, attrs), [c.d, c.dv], 2, binder.device.shared)
    tiles = blocks_for(c.keys, t.own)
    blocks = tiles * c.batch * c.kv_heads
    splits = splits_of(binder, blocks, blocks_for(c.queries, t.other) * (c.heads // c.kv_heads))
    sizes = ins["K"].size, ins["V"].size
    part = binder.scratch((splits, sum(sizes)), c.computed) if splits > 1 else ABSENT
    source = _source("attention/exact/backward.cu", c, t, ins, attrs, KEY_GRAD=1)
    binder.launch_source(
        source, "key_grad", (blocks, splits), THREADS, *inputs_of(c, ins, attrs), *tail,
        ABSENT if to_k is None else to_k, ABSENT if to_v is None else to_v, part, i64(tiles), i64(splits),
        *map(i64, sizes), shared=t.shared(t.chunks_d, t.chunks_v),
    )  # fmt: skip
    if isinstance(part, Buffer):
        for to, start in ((to_k, 0), (to_v, sizes[0])):
            if to is not None:
                shown = part.view((part.size - start,), offset=start * c.computed.itemsize)
                add_parts(binder, c, ins, attrs, shown, to, sum(sizes), splits)


def add_parts(
    binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, part: Buffer, to: Buffer, stride: int, splits: int
) -> None:  # fmt: skip
    """The sum of the splits' parts, in order."""
    args, source = (part, to, i64(to.size), i64(stride), i64(splits)), _small_source(c, ins, attrs)
    binder.launch_source(source, "add_parts", blocks_for(to.size, THREADS), THREADS, *args)


def _bias_grad(binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, tail: tuple[Any, ...], to: Buffer) -> None:
    t = tiles_of(c, True, [], 3, binder.device.shared)
    batch, heads, rows, columns = score_sizes(ins["Bias"], ins["Q"].ndim)
    row_tiles = 1 if rows == 1 else blocks_for(rows, t.own)
    column_tiles = 1 if columns == 1 else blocks_for(columns, t.other)
    source = _source("attention/exact/backward.cu", c, t, ins, attrs, BIAS_GRAD=1)
    binder.launch_source(
        source, "bias_grad", batch * heads * row_tiles * column_tiles, THREADS, *inputs_of(c, ins, attrs), *tail, to,
        *map(i32, (c.batch, batch, heads, rows, columns, row_tiles, column_tiles)),
        shared=t.shared(t.chunks_d, t.chunks_v),
    )  # fmt: skip
