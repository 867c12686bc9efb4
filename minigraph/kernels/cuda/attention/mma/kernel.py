"""Attention on the tensor cores of sm_80 and later by mma.sync: float32 in three TF32 products, and 16-bit floats.

All layouts, masks, biases, windows, packed sequences, dropout. float32 results are as near as those of float32
arithmetic: each operand is the sum of two TF32 numbers; where TF32 is allowed by name, it is rounded to one. Where
blocks are few, several share the keys of one tile and their parts are joined in order: through memory, or in narrow
heads of float32 on sm_90 within a cluster, which needs none. Backward is one kernel for dQ and one for dK
and dV (two where heads are wide), 7 products (8) in place of 5, without atomics, so deterministic. Values that a query
does not see count 0 times in the tiles at the edge and behind masks, so NaN and infinity there show; what lies
outside the arrays and outside the sequences of a block's rows does not.
Kernels and their cost: tiles.cuh, forward.cu, backward.cu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.kernels.cpu.attention import HIDDEN_WHOLE, scale_of
from minigraph.kernels.cuda.attention.exact import kernel as attention_exact
from minigraph.kernels.cuda.attention.exact.kernel import (
    ABSENT,
    AttentionSizes,
    call_of,
    drops,
    inputs_of,
    strides_of,
    sums_grad,
)
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import bfloat16, float16, float32, int64

Slots = Mapping[str, Any]

KIB = 1024
SHARED = {80: 163 * KIB, 87: 163 * KIB, 90: 227 * KIB, 100: 227 * KIB, 103: 227 * KIB}  # bytes, by architecture
LEAST_SHARED = 99 * KIB  # of the others
CLUSTERS, CLUSTER_SIZES = 90, (1, 2, 3, 4, 6, 8)  # the least architecture that has them; blocks of one
LONG = 64  # steps through the columns, for which clusters are too small where tiles are few
LONGEST, WIDEST_ROW = 1 << 30, 1 << 23  # a sequence, the distance of two rows in elements; exclusive


class MmaTiling(NamedTuple):
    """How a kernel cuts its work: a warp owns 16 * `own` rows and walks over tiles of `other` rows.

    held     operands of the own rows stay in registers
    blocks   of a multiprocessor, at least
    """

    own: int
    other: int
    held: bool
    blocks: int
    warps: int = 4

    @property
    def rows(self) -> int:
        return 16 * self.own * self.warps

    @property
    def threads(self) -> int:
        return 32 * self.warps


class Cut(NamedTuple):
    """How the work of a kernel is given to blocks: tiles of own rows, each to `cluster` blocks or `splits` of them that
    share the rows it meets. The sums of a cluster meet in its shared memory, those of splits in memory."""

    tiles: MmaTiling
    blocks: int
    cluster: int = 1
    splits: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        return self.blocks * self.cluster, self.splits

    def inbox(self, *widths: int) -> int:
        """Bytes of shared memory of a block for sums of these widths that a cluster sends it."""
        rows = self.cluster * blocks_for(self.tiles.rows, self.cluster)
        return rows * sum(4 * width + 16 for width in widths) if self.cluster > 1 else 0


def cut_of(binder: Binder, choices: Sequence[MmaTiling], rows: int, heads: int, others: int, times: int = 1) -> Cut:
    """The cut of least time of `rows` own rows of each of `heads`; each meets `others` rows `times` over."""
    multiprocessors, timed = binder.device.multiprocessors, []
    clusters = CLUSTER_SIZES if _capability(binder.device.arch) >= CLUSTERS and len(choices) > 1 else (1,)
    for t in choices:
        blocks, steps = blocks_for(rows, t.rows) * heads, blocks_for(others, t.other) * times
        for size in (n for n in clusters if n <= steps):
            timed.append((_time(t, blocks, size, blocks_for(steps, size), multiprocessors), Cut(t, blocks, size)))
    cut = min(timed, key=lambda pair: pair[0])[1]
    steps = blocks_for(others, cut.tiles.other) * times
    if len(clusters) > 1 and (2 * max(clusters) * cut.blocks > multiprocessors or steps < LONG):
        return cut
    return cut._replace(cluster=1, splits=attention_exact.splits_of(binder, cut.blocks, steps))


def _time(t: MmaTiling, blocks: int, cluster: int, steps: int, multiprocessors: int) -> float:
    """About how long a launch takes, in what a step of 16 rows and 32 columns takes a busy multiprocessor.

    Blocks beside each other on a multiprocessor need the time of their work, but at least that of one alone. Clusters
    of more than two blocks do not spread evenly.
    """
    work, alone = t.warps * (0.9 * t.own + 0.3), 3.4 * t.own + 2.75

    def beside(count: int) -> float:
        return (alone**3 + (count * work) ** 3) ** (1 / 3) if count else 0

    uneven = 1.0 if cluster <= 2 or blocks * cluster <= multiprocessors else 1.2 if cluster % 4 else 1.6
    each = math.ceil(uneven * blocks * cluster / multiprocessors)
    whole, rest = divmod(each, t.blocks)
    return steps * t.other / 32 * (whole * beside(t.blocks) + beside(rest)) + each * (2 if cluster == 1 else 2.5)


def widths(c: AttentionSizes) -> tuple[int, int]:
    """The head dimensions as tiles have them."""
    return blocks_for(c.d, 32) * 32, blocks_for(c.dv, 32) * 32


def is_aligned(c: AttentionSizes) -> bool:
    """Whether rows of Q, K and V are whole pieces of 16 bytes; strides always are."""
    return c.d * c.dtype.itemsize % 16 == 0 and c.dv * c.dtype.itemsize % 16 == 0


def is_narrow(c: AttentionSizes, general: bool) -> bool:
    """Whether there are tiles of several sizes, whose blocks may share columns as a cluster."""
    return c.dtype == float32 and max(widths(c)) <= 32 and not general and is_aligned(c)


def forward_tiles(c: AttentionSizes, general: bool) -> tuple[MmaTiling, ...]:
    """What measured fastest of what fits into registers."""
    widest = max(widths(c))
    if is_narrow(c, general):
        return MmaTiling(2, 32, True, 4, 2), MmaTiling(1, 32, True, 4, 2)
    if c.dtype == float32 and widest <= 32:
        return (MmaTiling(1 if general else 2, 32, True, 2),)
    if c.dtype == float32:
        return (MmaTiling(1, 64 if widest <= 64 and not general else 32, False, 2 if widest <= 64 else 1),)
    return (MmaTiling(1, 64, widest <= 128 and not general, 2) if widest <= 128 else MmaTiling(1, 32, False, 1),)


def backward_tiles(c: AttentionSizes, general: bool, query: bool) -> tuple[MmaTiling, ...]:
    """Likewise, for dQ, or for dK and dV."""
    widest = max(widths(c))
    if is_narrow(c, general) and query:
        return MmaTiling(2, 32, False, 4, 2), MmaTiling(1, 32, False, 4, 2)
    if is_narrow(c, general):
        return MmaTiling(1, 32, False, 2), MmaTiling(1, 32, False, 4, 2)
    if c.dtype == float32:
        return (MmaTiling(1, 32, False, 2 if widest <= 64 else 1),)
    return (MmaTiling(1, 64, True, 2) if widest <= 64 else MmaTiling(1, 32, False, 2 if widest <= 128 else 1),)


def shared_bytes(c: AttentionSizes, t: MmaTiling, own: int) -> int:
    """Bytes of shared memory of a block: rows of `own` elements, two stages of two tiles."""
    return c.dtype.itemsize * (t.rows * own + 2 * t.other * sum(widths(c)))


def apart(c: AttentionSizes, general: bool) -> bool:
    """Whether dK and dV have kernels of their own: sums of both need more registers than there are."""
    return max(widths(c)) > (96 if c.dtype != float32 else 32 if general else 64)


def is_general(c: AttentionSizes, ins: Slots, attrs: Slots) -> bool:
    """Whether scores change by more than an interval and a positive factor."""
    return attention_exact.is_general(ins, attrs) or scale_of(attrs["scale"], c.d) <= 0


def _capability(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


def reasons(ins: Slots, attrs: Slots, arch: str) -> list[str]:
    """Why these kernels cannot compute this call; empty if they can."""
    c = call_of(ins, attrs)
    capability, widest = _capability(arch), max(c.d, c.dv)
    if c.dtype not in (float32, float16, bfloat16):
        return [f"the tensor cores take float32 and 16-bit floats, Q is {c.dtype}"]
    limits = [f"mma.sync needs sm_80, this is {arch}"] * (capability < 80)
    if 0 in (c.rows, c.keys, c.dv):
        return [*limits, "a size is 0"]
    most = 128 if c.dtype == float32 else 256
    if is_general(c, ins, attrs):
        most = 96 if c.dtype == float32 else 160
    if widest > most:
        limits.append(f"head dimension {widest} exceeds {most}, which is what fits into registers")
    needed, shared = backward_shared(c, backward_tiles(c, True, False)[0], True), SHARED.get(capability, LEAST_SHARED)
    if needed > shared:
        limits.append(f"backward needs {needed} bytes of shared memory, this device has {shared}")
    rows = max(c.heads * widest, *(strides_of(ins[slot], attrs["layout"])[2] for slot in "QKV"))
    if max(c.queries, c.keys) >= LONGEST or c.rows >= 2**31 or rows >= WIDEST_ROW:
        limits.append("a size exceeds 32 bits")
    return limits


def source_of(binder: Binder, file: str, c: AttentionSizes, cut: Cut, ins: Slots, attrs: Slots, **more: Any) -> str:
    t, bias, lengths = cut.tiles, ins.get("Bias"), ins.get("CuSeqlensQ")
    name, (head, head_v) = CUDA_TYPES[c.dtype], widths(c)
    defines = {
        "T": name, "C": "float", "PTX_T": f'"{name}"', "TERMS": 0 if c.dtype != float32 else 1 if binder.tf32 else 3,
        "BT": CUDA_TYPES[bias.dtype if bias is not None else c.dtype],
        "L": CUDA_TYPES[lengths.dtype if lengths is not None else int64], "GENERAL": int(is_general(c, ins, attrs)),
        "DROPS": int(drops(attrs)), "ALIGNED": int(is_aligned(c)), "HEAD": head,
        "HEAD_V": head_v, "FILLED_D": blocks_for(c.d, 16) * 16, "FILLED_V": blocks_for(c.dv, 16) * 16,
        "MT": t.own, "WARPS": t.warps, "THREADS": t.threads, "BN": t.other, "OWN_HELD": int(t.held),
        "LEAST": t.blocks, "CLUSTER": cut.cluster, "HIDDEN_WHOLE": HIDDEN_WHOLE, **attention_exact.modifiers_of(ins),
        "BLOCK": attention_exact.block_of(ins, attrs), **more,
    }  # fmt: skip
    start = full_source("record/philox.cuh", tuple((k, str(v)) for k, v in defines.items()))
    files = "attention/inputs.cuh", "tensor_cores/mma.cuh", "attention/mma/tiles.cuh", "attention/mma/rows.cuh", file
    return start + "".join(map(read_source, files))


def forward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    c, Out, sums = call_of(ins, attrs), outs["Out"], outs.get("LogSumExp")
    attention_exact.check_lengths(binder, c, ins, attrs)
    choices = forward_tiles(c, is_general(c, ins, attrs))
    cut = cut_of(binder, choices, c.queries, c.batch * c.heads, c.keys)
    t, splits, part, part_sums = cut.tiles, cut.splits, ABSENT, ABSENT
    if splits > 1:
        part = binder.scratch((splits, Out.size), float32)
        part_sums = binder.scratch((splits, 2, c.rows), float32)
    results, facts = (Out, ABSENT if sums is None else sums), (i64(splits), i64(Out.size), i64(c.rows))
    binder.launch_source(
        source_of(binder, "attention/mma/forward.cu", c, cut, ins, attrs), "attention_mma_forward", cut.grid, t.threads,
        *inputs_of(c, ins, attrs), *results, part, part_sums, i64(blocks_for(c.queries, t.rows)), *facts,
        shared=shared_bytes(c, t, widths(c)[0]) + cut.inbox(widths(c)[1]),
    )  # fmt: skip
    if splits > 1:
        attention_exact.join(binder, c, ins, attrs, (part, part_sums), results, facts)


def backward_shared(c: AttentionSizes, t: MmaTiling, general: bool) -> int:
    """Bytes of shared memory of a block, with the numbers of each row of both stages."""
    return shared_bytes(c, t, sum(widths(c))) + 2 * t.other * 4 * attention_exact.numbers_of_query(general)


def backward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    c, (q, k, v) = call_of(ins, attrs), (outs.get(slot) for slot in ("Q_grad", "K_grad", "V_grad"))
    general, common = is_general(c, ins, attrs), inputs_of(c, ins, attrs)
    if q is not None or k is not None or v is not None:
        numbers = binder.scratch((c.rows, attention_exact.numbers_of_query(general)), float32)
        t = MmaTiling(1, 32, False, 1)
        tiles = blocks_for(c.queries, t.rows)
        source = source_of(binder, "attention/mma/backward.cu", c, Cut(t, 0), ins, attrs, PREPARE=1)
        binder.launch_source(
            source, "attention_mma_prepare", tiles * c.batch * c.heads, t.threads, *common, ins["Out"],
            ins["Out_grad"], ins["LogSumExp"], sums_grad(ins), numbers, i64(tiles),
            shared=2 * t.rows * widths(c)[1] * c.dtype.itemsize,
        )  # fmt: skip
        common += ins["Out_grad"], numbers
    if q is not None:
        _query_grad(binder, c, ins, attrs, common, q)
    for to_k, to_v in ((k, None), (None, v)) if apart(c, general) else ((k, v),):
        if to_k is not None or to_v is not None:
            _key_grad(binder, c, ins, attrs, common, to_k, to_v)
    if outs.get("Bias_grad") is not None:
        attention_exact.bias_grad(binder, ins, attrs, outs["Bias_grad"])


def _query_grad(
    binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, common: tuple[Any, ...], to: Buffer
) -> None:  # fmt: skip
    general = is_general(c, ins, attrs)
    choices = backward_tiles(c, general, True)
    cut = cut_of(binder, choices, c.queries, c.batch * c.heads, c.keys)
    t, splits = cut.tiles, cut.splits
    part = binder.scratch((splits, to.size), float32) if splits > 1 else ABSENT
    binder.launch_source(
        source_of(binder, "attention/mma/backward.cu", c, cut, ins, attrs, QUERY_GRAD=1), "attention_mma_query_grad",
        cut.grid, t.threads, *common, to, part, i64(blocks_for(c.queries, t.rows)), i64(splits), i64(to.size),
        shared=backward_shared(c, t, general) + cut.inbox(widths(c)[0]),
    )  # fmt: skip
    if isinstance(part, Buffer):
        attention_exact.add_parts(binder, c, ins, attrs, part, to, to.size, splits)


def _key_grad(
    binder: Binder, c: AttentionSizes, ins: Slots, attrs: Slots, common: tuple[Any, ...], to_k: Buffer | None,
    to_v: Buffer | None,
) -> None:  # fmt: skip
    general = is_general(c, ins, attrs)
    choices = backward_tiles(c, general, False)
    cut = cut_of(binder, choices, c.keys, c.batch * c.kv_heads, c.queries, c.heads // c.kv_heads)
    t, splits = cut.tiles, cut.splits
    sizes = [0 if x is None else x.size for x in (to_k, to_v)]
    part = binder.scratch((splits, sum(sizes)), float32) if splits > 1 else ABSENT
    defines = {"KEY_GRAD": 1, "FOR_K": int(to_k is not None), "FOR_V": int(to_v is not None)}
    binder.launch_source(
        source_of(binder, "attention/mma/backward.cu", c, cut, ins, attrs, **defines), "attention_mma_key_grad",
        cut.grid, t.threads, *common, ABSENT if to_k is None else to_k, ABSENT if to_v is None else to_v, part,
        i64(blocks_for(c.keys, t.rows)), i64(splits), *map(i64, sizes),
        shared=backward_shared(c, t, general) + cut.inbox(*(w for w, x in zip(widths(c), sizes, strict=True) if x)),
    )  # fmt: skip
    if isinstance(part, Buffer):
        for to, start in ((to_k, 0), (to_v, sizes[0])):
            if to is not None:
                shown = part.view((part.size - start,), offset=4 * start)
                attention_exact.add_parts(binder, c, ins, attrs, shown, to, sum(sizes), splits)
