"""Products of float32 as TF32 on Hopper's wgmma, with all that happens around them in one kernel: hopper_tf32.cu.

Where the user allows TF32. Of the layouts of a linear layer, cuBLASLt has kernels for wgmma only where k is
contiguous in both operands, the input's gradient; this one has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap, hopper_source, wgmma
from minigraph.types import float32

NAME = "kernel for TF32 on Hopper"
LEAST, FIRST = 1 << 29, 9 << 27  # multiply-adds from which it is tried, from which it runs where nothing was measured
WIDE, STEP = 256, 32  # columns of a block, k of a step
ROWS = 192, 160, 128, 96, 64  # of a block
MOST_PARTS, LEAST_STEPS = 16, 4  # blocks that share a sum, steps of each
THREADS = 384
PAIRS = 32  # columns that B stored [n, k] must be a multiple of
FILES = ("matmul/hopper_tf32.cu",)

Shape = tuple[int, int, int]


class Form(NamedTuple):
    """How a product is cut: blocks of `rows` x 256, `split` of them share a sum.

    stages   steps of 32 along the sum that are on their way to shared memory
    """

    rows: int = 192
    split: int = 1
    stages: int = 4

    @property
    def shared(self) -> int:
        """Bytes of stages with their barriers, and room to align them."""
        return 1024 + self.stages * _stage(self.rows)


def _stage(rows: int) -> int:
    return 128 * (rows + WIDE) + 24


def form_of(binder: Binder, shape: Shape, trans_a: bool, whole: bool, slope: bool = False) -> Form:
    """The form that should take least time, by what an H200 took for 8192 x 768 x 768.

    whole   sums are not shared by blocks
    slope   of what is read besides, where B is stored as it is: too few registers are left for the most rows
    """
    m, n, k = shape
    steps = blocks_for(k, STEP)

    def microseconds(form: Form) -> float:
        blocks = blocks_for(m, form.rows) * blocks_for(n, WIDE) * form.split
        step = 0.35 + 0.0038 * form.rows if trans_a else 0.2 + 0.004 * form.rows
        waves = blocks_for(blocks, binder.device.multiprocessors)
        joined = 2 + form.split * m * n * 8e-7 if form.split > 1 else 0
        return waves * (blocks_for(steps, form.split) * step + 3 + 0.025 * form.rows) + joined

    parts = range(1, 2 if whole else min(MOST_PARTS, max(steps // LEAST_STEPS, 1)) + 1)
    room = binder.device.shared - 1024
    rows = ROWS[1:] if slope else ROWS
    return min((Form(r, split, min(room // _stage(r), 5)) for r in rows for split in parts), key=microseconds)


def with_kernel(
    variants: dict[str, Callable[[], None]], binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape,
    trans_a: bool, trans_b: bool, **around: Any,
) -> dict[str, Callable[[], None]]:  # fmt: skip
    """The variants and this kernel, where the product is large enough for it.

    It comes first from `FIRST` on. Where k is contiguous in both operands and nothing is done beside the product,
    the library is as fast in one wave of blocks and faster in several: 115 against 132 us for 8192 x 3072 x 768.

    around   what `bind` does beside the product
    """
    m, n, k = shape
    if not binder.tf32 or a.dtype != float32 or not binder.device.arch.startswith("sm_90") or m * n * k < LEAST:
        return variants
    rows = form_of(binder, shape, trans_a, True).rows
    several = blocks_for(m, rows) * blocks_for(n, WIDE) > binder.device.multiprocessors
    first = m * n * k >= FIRST and (trans_a or not trans_b or any(around.values()) or not several)
    why = refusal(a, b, out, shape, trans_a, trans_b, of_a=around.pop("of_a", False), sums=around.get("sums"))
    if why is not None:
        if first:
            binder.note(f"the {NAME} is left out: {why}")
        return variants
    own = {NAME: partial(bind, binder, a, b, out, shape, trans_a, trans_b, **around)}
    return own | variants if first else variants | own


def refusal(
    a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool, of_a: bool = False,
    sums: Buffer | None = None,
) -> str | None:  # fmt: skip
    """Why this kernel cannot compute out = op(a) @ op(b) of float32, or None."""
    m, n, k = shape
    if min(shape) == 0 or max(shape) >= 1 << 30 or blocks_for(m, min(ROWS)) >= 1 << 16:
        return f"{m} x {n} x {k} is empty or too large"
    for name, buffer, row in (("A", a, m if trans_a else k), ("B", b, k if trans_b else n), ("the result", out, n)):
        if row % 4:
            return f"rows of {name} have {row} elements, which is no multiple of 4"
        if buffer.alignment % 16:
            return f"{name} begins between multiples of 16 bytes"
    if trans_b and n % PAIRS:
        return f"B is stored as its transpose and has {n} columns, which is no multiple of {PAIRS}"
    if sums is not None and (of_a or trans_b):
        return "sums are wanted of another operand than B, stored as it is"
    return None


def bind(
    binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool,
    bias: Buffer | None = None, relu: bool = False, bits: Buffer | None = None, where: Buffer | None = None,
    gelu: str = "", slope: str = "", aux: Buffer | None = None, sums: Buffer | None = None, add: bool = False,
    form: Form | None = None,
) -> None:  # fmt: skip
    """out = op(a) @ op(b), `shape` is (m, n, k); then in this order, each where given:

    add          + what out holds; not with `slope`
    slope        times the value of an expression of X, which `aux` holds
    bias         + bias
    relu, bits   max(., 0), and the bit mask of what is positive is written
    where        0 where the bit of this mask is not set
    gelu         the value of an expression of X; `aux` is X
    sums         beside it: sums over k of b, which is stored [k, n]
    """
    m, n, k = shape
    mask = bits or where
    whole = add or bias is not None or relu or mask is not None or bool(gelu or slope)
    form = form or form_of(binder, shape, trans_a, whole, bool(slope) and not trans_b)
    registers = 240 if not trans_a else 224 if trans_b else 232  # threads of the three warpgroups have 504
    defines = {
        "A_BY_K": int(not trans_a), "B_BY_K": int(trans_b), "ROWS": form.rows,
        "SPLIT": form.split, "STAGES": form.stages, "REGISTERS": registers,
        "LOADER_REGISTERS": 504 - 2 * registers, "ADD": int(add), "HELD": int(add or bool(slope)),
        "BIAS": int(bias is not None), "RELU": int(relu), "MASK": int(bits is not None),
        "DRELU": int(where is not None), "COLUMNS": int(sums is not None), "KEEP": int(aux is not None and not slope),
    }  # fmt: skip
    defines |= {name: f"({text})" for name, text in (("GELU", gelu), ("SLOPE", slope)) if text}
    instruction = wgmma(form.rows, "tf32", a_in_registers=not trans_b)
    source = hopper_source([instruction], [(key, str(value)) for key, value in defines.items()], FILES)
    a_map = (
        TensorMap(a, (m, k, 1, 1), (m, m, m), STEP, exact=False) if trans_a
        else TensorMap(a, (k, m, 1, 1), (k, k, k), form.rows, exact=False)
    )  # fmt: skip
    b_map = (
        TensorMap(b, (k, 8, 4, n // PAIRS), (4 * k, k, PAIRS * k), (8, 2, 4), exact=False) if trans_b
        else TensorMap(b, (n, k, 1, 1), (n, n, n), STEP, exact=sums is not None)
    )  # fmt: skip
    held = out if add else aux if slope else None
    beside = [] if held is None else [TensorMap(held, (n, m, 1, 1), (n, n, n), form.rows)]
    parts = out if form.split == 1 else binder.scratch((form.split, m * n), out.dtype)
    part_sums = sums if form.split == 1 or sums is None else binder.scratch((form.split, n), out.dtype)
    binder.launch_source(
        source, "product", (blocks_for(n, WIDE), blocks_for(m, form.rows), form.split), THREADS, a_map, b_map, *beside,
        parts, bias or parts, aux or parts, mask or parts, part_sums or parts, i32(m), i32(n), i32(k),
        i64(mask.shape[-1] if mask is not None else 0), shared=form.shared,
    )  # fmt: skip
    if form.split > 1:
        elements = m * n + (n if sums is not None else 0)
        binder.launch_source(
            source, "join", blocks_for(elements, 4 * 256), 256, parts, part_sums or parts, out, sums or out,
            i64(m * n), i32(n),
        )  # fmt: skip
