"""Attention on the tensor cores of sm_80 and later by mma.sync: float32 in three TF32 products, and 16-bit floats.

All layouts, masks, biases, windows, packed sequences, dropout. float32 results are as near as those of float32
arithmetic: each operand is the sum of two TF32 numbers; where TF32 is allowed by name, it is rounded to one. Where
blocks are few, keys are split among them and the parts joined in order. Backward is one kernel for dQ and one for dK
and dV (two where heads are wide), 7 products (8) in place of 5, without atomics, so deterministic. Values that a query
does not see count 0 times in the tiles at the edge and behind masks, so NaN and infinity there show; what lies
outside the arrays and outside the sequences of a block's rows does not.
Kernels and their cost: attention_mma.cuh, attention_mma_forward.cu, attention_mma_backward.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...types import bfloat16, float16, float32, int64
from ..attention import HIDDEN_WHOLE, scale_of
from . import attention_exact
from .attention_exact import ABSENT, Call, call_of, drops, inputs_of
from .binder import Binder, blocks_for, i64
from .buffer import CUDA_TYPES, Buffer
from .compile import full_source, read_source

Slots = Mapping[str, Any]

KIB = 1024
SHARED = {80: 163 * KIB, 87: 163 * KIB, 90: 227 * KIB, 100: 227 * KIB, 103: 227 * KIB}  # bytes, by architecture
LEAST_SHARED = 99 * KIB  # of the others
LONGEST, WIDEST_ROW = 1 << 30, 1 << 23  # a sequence, the distance of two rows in elements; exclusive


class Tiles(NamedTuple):
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


def widths(c: Call) -> tuple[int, int]:
    """The head dimensions as tiles have them."""
    return blocks_for(c.d, 32) * 32, blocks_for(c.dv, 32) * 32


def forward_tiles(c: Call, general: bool) -> Tiles:
    """What measured fastest of what fits into registers."""
    widest = max(widths(c))
    if c.dtype == float32 and widest <= 32:
        return Tiles(1 if general else 2, 32, True, 2)
    if c.dtype == float32:
        return Tiles(1, 64 if widest <= 64 and not general else 32, False, 2 if widest <= 64 else 1)
    return Tiles(1, 64, widest <= 128 and not general, 2) if widest <= 128 else Tiles(1, 32, False, 1)


def is_aligned(c: Call) -> bool:
    """Whether rows of Q, K and V are whole pieces of 16 bytes."""
    return c.d * c.dtype.itemsize % 16 == 0 and c.dv * c.dtype.itemsize % 16 == 0


def backward_tiles(c: Call, general: bool, query: bool) -> Tiles:
    """Likewise, for dQ, or for dK and dV."""
    widest = max(widths(c))
    if c.dtype == float32:
        narrow = widest <= 32 and not general and is_aligned(c)
        return Tiles(2 if query and narrow else 1, 32, False, 2 if widest <= 64 else 1)
    return Tiles(1, 64, True, 2) if widest <= 64 else Tiles(1, 32, False, 2 if widest <= 128 else 1)


def shared_bytes(c: Call, t: Tiles, own: int) -> int:
    """Bytes of shared memory of a block: rows of `own` elements, two stages of two tiles."""
    return c.dtype.itemsize * (t.rows * own + 2 * t.other * sum(widths(c)))


def apart(c: Call, general: bool) -> bool:
    """Whether dK and dV have kernels of their own: sums of both need more registers than there are."""
    return max(widths(c)) > (96 if c.dtype != float32 else 32 if general else 64)


def is_general(c: Call, ins: Slots, attrs: Slots) -> bool:
    """Whether scores change by more than an interval and a positive factor."""
    return attention_exact.is_general(ins, attrs) or scale_of(attrs["scale"], c.d) <= 0


def reasons(ins: Slots, attrs: Slots, arch: str) -> list[str]:
    """Why these kernels cannot compute this call; empty if they can."""
    c = call_of(ins, attrs)
    capability, widest = int("".join(filter(str.isdigit, arch))), max(c.d, c.dv)
    if c.dtype not in (float32, float16, bfloat16):
        return [f"the tensor cores take float32 and 16-bit floats, Q is {c.dtype}"]
    found = [f"mma.sync needs sm_80, this is {arch}"] * (capability < 80)
    if 0 in (c.rows, c.keys, c.dv):
        return [*found, "a size is 0"]
    most = 128 if c.dtype == float32 else 256
    if is_general(c, ins, attrs):
        most = 96 if c.dtype == float32 else 160
    if widest > most:
        found.append(f"head dimension {widest} exceeds {most}, which is what fits into registers")
    needed, shared = backward_shared(c, backward_tiles(c, True, False)), SHARED.get(capability, LEAST_SHARED)
    if needed > shared:
        found.append(f"backward needs {needed} bytes of shared memory, this device has {shared}")
    if max(c.queries, c.keys) >= LONGEST or c.rows >= 2**31 or c.heads * widest >= WIDEST_ROW:
        found.append("a size exceeds 32 bits")
    return found


def source_of(binder: Binder, file: str, c: Call, t: Tiles, ins: Slots, attrs: Slots, **more: Any) -> str:
    bias, lengths = ins.get("Bias"), ins.get("CuSeqlensQ")
    name, (head, head_v) = CUDA_TYPES[c.dtype], widths(c)
    defines = {
        "T": name, "C": "float", "PTX_T": f'"{name}"', "TERMS": 0 if c.dtype != float32 else 1 if binder.tf32 else 3,
        "BT": CUDA_TYPES[bias.dtype if bias is not None else c.dtype],
        "L": CUDA_TYPES[lengths.dtype if lengths is not None else int64], "GENERAL": int(is_general(c, ins, attrs)),
        "DROPS": int(drops(attrs)), "ALIGNED": int(is_aligned(c)), "HEAD": head,
        "HEAD_V": head_v, "FILLED_D": blocks_for(c.d, 16) * 16, "FILLED_V": blocks_for(c.dv, 16) * 16,
        "MT": t.own, "WARPS": t.warps, "THREADS": t.threads, "BN": t.other, "OWN_HELD": int(t.held),
        "LEAST": t.blocks, "HIDDEN_WHOLE": HIDDEN_WHOLE, **more,
    }  # fmt: skip
    start = full_source("philox.cuh", tuple((k, str(v)) for k, v in defines.items()))
    files = "attention_inputs.cuh", "tensor_cores.cuh", "attention_mma.cuh", "attention_mma_rows.cuh", file
    return start + "".join(map(read_source, files))


def forward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out, and LogSumExp where it is wanted."""
    c, Out, sums = call_of(ins, attrs), outs["Out"], outs.get("LogSumExp")
    attention_exact.check_lengths(binder, c, ins, attrs)
    t = forward_tiles(c, is_general(c, ins, attrs))
    tiles = blocks_for(c.queries, t.rows)
    blocks = tiles * c.batch * c.heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = part_sums = ABSENT
    if splits > 1:
        part = binder.scratch((splits, Out.size), float32)
        part_sums = binder.scratch((splits, 2, c.rows), float32)
    results, facts = (Out, ABSENT if sums is None else sums), (i64(splits), i64(Out.size), i64(c.rows))
    source = source_of(binder, "attention_mma_forward.cu", c, t, ins, attrs)
    binder.launch_source(
        source, "attention_mma_forward", (blocks, splits), t.threads, *inputs_of(c, ins, attrs), *results, part,
        part_sums, i64(tiles), *facts, shared=shared_bytes(c, t, widths(c)[0]),
    )  # fmt: skip
    if splits > 1:
        attention_exact.join(binder, c, ins, attrs, (part, part_sums), results, facts)


def backward_shared(c: Call, t: Tiles) -> int:
    """Bytes of shared memory of a block, with two numbers for each row of the stages."""
    return shared_bytes(c, t, sum(widths(c))) + 16 * t.other


def backward(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Those of the gradients that are wanted."""
    c, (q, k, v) = call_of(ins, attrs), (outs.get(slot) for slot in ("Q_grad", "K_grad", "V_grad"))
    general, common = is_general(c, ins, attrs), inputs_of(c, ins, attrs)
    if q is not None or k is not None or v is not None:
        numbers = binder.scratch((c.rows, 2), float32)
        file = "attention_mma_backward.cu"
        both = {"KEY_GRAD": 1, "FOR_K": int(k is not None), "FOR_V": int(v is not None)}
        kernels = [{"QUERY_GRAD": 1}] * (q is not None)
        if apart(c, general):
            kernels += [{**both, "FOR_V": 0}] * (k is not None) + [{**both, "FOR_K": 0}] * (v is not None)
        elif k is not None or v is not None:
            kernels.append(both)
        cuts = [backward_tiles(c, general, "QUERY_GRAD" in defines) for defines in kernels]
        sources = [
            source_of(binder, file, c, cut, ins, attrs, **defines) for cut, defines in zip(cuts, kernels, strict=True)
        ]
        blocks, threads, grad = blocks_for(c.rows, cuts[-1].warps), cuts[-1].threads, ins["Out_grad"]
        scaled = binder.scratch(grad.shape, grad.dtype) if ins.get("Bias") is not None else None
        binder.launch_source(
            sources[-1], "attention_mma_prepare", blocks, threads, *common, ins["Out"], grad, ins["LogSumExp"], numbers,
            ABSENT if scaled is None else scaled, i64(c.rows),
        )  # fmt: skip
        common += grad if scaled is None else scaled, numbers
        if q is not None:
            _query_grad(binder, c, ins, attrs, sources[0], common, q)
        for source, defines in list(zip(sources, kernels, strict=True))[q is not None :]:
            wanted = k if defines["FOR_K"] else None, v if defines["FOR_V"] else None
            _key_grad(binder, c, ins, attrs, source, common, *wanted)
    if outs.get("Bias_grad") is not None:
        attention_exact.bias_grad(binder, ins, attrs, outs["Bias_grad"])


def _query_grad(
    binder: Binder, c: Call, ins: Slots, attrs: Slots, source: str, common: tuple[Any, ...], to: Buffer
) -> None:  # fmt: skip
    t = backward_tiles(c, is_general(c, ins, attrs), True)
    tiles = blocks_for(c.queries, t.rows)
    blocks = tiles * c.batch * c.heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.keys, t.other))
    part = binder.scratch((splits, to.size), float32) if splits > 1 else ABSENT
    binder.launch_source(
        source, "attention_mma_query_grad", (blocks, splits), t.threads, *common, to, part, i64(tiles), i64(splits),
        i64(to.size), shared=backward_shared(c, t),
    )  # fmt: skip
    if isinstance(part, Buffer):
        attention_exact.add_parts(binder, c, ins, attrs, part, to, to.size, splits)


def _key_grad(
    binder: Binder, c: Call, ins: Slots, attrs: Slots, source: str, common: tuple[Any, ...], to_k: Buffer | None,
    to_v: Buffer | None,
) -> None:  # fmt: skip
    t = backward_tiles(c, is_general(c, ins, attrs), False)
    tiles = blocks_for(c.keys, t.rows)
    blocks = tiles * c.batch * c.kv_heads
    splits = attention_exact.splits_of(binder, blocks, blocks_for(c.queries, t.other) * (c.heads // c.kv_heads))
    sizes = [0 if x is None else x.size for x in (to_k, to_v)]
    part = binder.scratch((splits, sum(sizes)), float32) if splits > 1 else ABSENT
    binder.launch_source(
        source, "attention_mma_key_grad", (blocks, splits), t.threads, *common, ABSENT if to_k is None else to_k,
        ABSENT if to_v is None else to_v, part, i64(tiles), i64(splits), *map(i64, sizes), shared=backward_shared(c, t),
    )  # fmt: skip
    if isinstance(part, Buffer):
        for to, start in ((to_k, 0), (to_v, sizes[0])):
            if to is not None:
                shown = part.view((part.size - start,), offset=4 * start)
                attention_exact.add_parts(binder, c, ins, attrs, shown, to, sum(sizes), splits)
