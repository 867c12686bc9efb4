"""Large products of 16-bit floats on Hopper, with what happens around them in one kernel: hopper_product.cu.

On an H200, 8192 x 4096 x 4096 in bfloat16, with gelu in its tanh form and what backward needs: .376 ms where
cuBLASLt's epilogue takes .407, under a long load .415 and .459; with gelu's slope .377 and .402, .412 and .446.
A product alone takes what cuBLASLt takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap, hopper_source, wgmma
from minigraph.types import bfloat16, float16

NAME = "kernel for large products"
TILE = 256  # columns, and rows of the two blocks that load together
STEP, BOX = 64, 64  # of the sum; rows of a box whose rows run along m or n
THREADS = 384
STAGE_BYTES, PIECE_BYTES = 48 << 10, 8 << 10
ALIGNED = 16  # bytes: of addresses and rows
LEAST = 1 << 35  # multiply-adds from which it is tried
SLICES, SPREAD = (16, 8), 3
FILES = "matmul/hopper_product.cuh", "matmul/hopper_product.cu"

Shape = tuple[int, int, int]
Variants = dict[str, Callable[[], None]]


class Form(NamedTuple):
    """How a product is worked off.

    slices   in which a finished tile is: not more than a tile has steps
    spread   steps of the next tile for each of them: the copy engine takes a slice away before another needs its room
    stages   steps along the sum that are on their way to shared memory
    slots    pieces of 64 rows of each warpgroup's result that are on their way out
    group    tiles across a band: what runs at one time shares rows and columns
    """

    slices: int
    spread: int = 1
    stages: int = 4
    slots: int = 2
    group: int = 8

    @property
    def shared(self) -> int:
        """Bytes: room to align, stages, slots, a bias for each warpgroup, barriers."""
        return 1024 + STAGE_BYTES * self.stages + 2 * PIECE_BYTES * self.slots + 1024 + 16 * (self.stages + self.slots)


def with_kernel(
    variants: Variants, binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool,
    **around: Any,
) -> Variants:  # fmt: skip
    """The variants and this kernel, which comes first where it was measured to be faster.

    around   what `bind` does beside the product; other things are left to other kernels
    """
    m, n, k = shape
    if a.dtype not in (float16, bfloat16) or not binder.device.arch.startswith("sm_90") or m * n * k < LEAST:
        return variants
    wanted = {name: what for name, what in around.items() if what}
    if not wanted.keys() <= {"bias", "gelu", "slope", "aux"}:
        return variants
    why = refusal(a, b, out, shape, trans_a, trans_b, **wanted)
    if why is not None:
        _say(binder, f"the {NAME} is left out: {why}")
        return variants
    own: Variants = {NAME: partial(bind, binder, a, b, out, shape, trans_a, trans_b, **wanted)}
    if not comes_first(binder, shape, wanted):
        return variants | own
    if not binder.autotune:
        _say(binder, f"by the {NAME}, measured to be faster for such as {m} x {n} x {k}")
    return own | variants


def _say(binder: Binder, text: str) -> None:
    if (binder.step, text) not in binder.notes:  # a variant may be a product as well
        binder.note(text)


def comes_first(binder: Binder, shape: Shape, around: Mapping[str, Any]) -> bool:
    """Whether it was measured to be faster: with gelu's tanh form or its slope, where its tiles fill a GPU."""
    m, n, k = shape
    tiles = blocks_for(m, TILE // 2) * blocks_for(n, TILE)
    fills = tiles >= binder.device.multiprocessors and k > STEP * (SLICES[0] - 1)
    return fills and _has_tanh(around.get("gelu", ""), around.get("slope", ""))


def _has_tanh(gelu: str, slope: str) -> bool:
    return "gelu_inner" in gelu or "gelu_tanh_slope" in slope


def refusal(
    a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool, bias: Buffer | None = None,
    aux: Buffer | None = None, **around: Any,
) -> str | None:  # fmt: skip
    """Why this kernel cannot compute out = op(a) @ op(b) with what is done around it, or None."""
    m, n, k = shape
    if min(shape) == 0 or max(shape) >= 1 << 30:
        return f"{m} x {n} x {k} is empty or too large"
    operands = {"A": a, "B": b, "the result": out, "the bias": bias, "what is kept": aux}
    for name, buffer in operands.items():
        if buffer is not None and buffer.dtype != a.dtype:
            return f"{name} is {buffer.dtype}, A is {a.dtype}"
        if buffer is not None and buffer.alignment % ALIGNED:
            return f"{name} begins between multiples of {ALIGNED} bytes"
    if k <= STEP * (SLICES[-1] - 1):
        return f"a sum of {k} is over before the tile before it is written"
    for name, row in (("A", m if trans_a else k), ("B", k if trans_b else n), ("the result", n)):
        if row * a.dtype.itemsize % ALIGNED:
            return f"rows of {name} have {row * a.dtype.itemsize} bytes, which is no multiple of {ALIGNED}"
    return None


def form_of(shape: Shape) -> Form:
    """The one with most slices, spread as far as was measured to help."""
    steps = blocks_for(shape[2], STEP)
    slices = next(s for s in SLICES if steps >= s)
    return Form(slices, min(SPREAD, steps // slices))


def bind(
    binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool,
    bias: Buffer | None = None, gelu: str = "", slope: str = "", aux: Buffer | None = None, form: Form | None = None,
) -> None:  # fmt: skip
    """out = op(a) @ op(b), `shape` is (m, n, k); then in this order, each where given:

    bias    + bias
    gelu    the value of an expression of X; `aux` is X
    slope   times the value of an expression of X, which `aux` holds; the product is rounded before
    """
    m, n, k = shape
    form = form or form_of(shape)
    dtype = "bf16" if a.dtype == bfloat16 else "f16"
    defines = {
        "T": CUDA_TYPES[a.dtype], "PTX_T": f'"{dtype}"', "A_BY_K": int(not trans_a), "B_BY_K": int(trans_b),
        "MULTIPLY": "wgmma_ss" + "_at" * trans_a + "_bt" * (not trans_b), "SLICES": form.slices, "STAGES": form.stages,
        "SLOTS": form.slots, "GROUP": form.group, "BIAS": int(bias is not None),
        "KEEP": int(bool(gelu) and aux is not None),
        "TANH": int(_has_tanh(gelu, slope)),  # which has a shorter way
    }  # fmt: skip
    defines |= {name: f"({text})" for name, text in (("GELU", gelu), ("SLOPE", slope)) if text}
    instruction = wgmma(TILE, dtype, b_by_rows=not trans_b, a_by_columns=trans_a)
    source = hopper_source([instruction], [(key, str(value)) for key, value in defines.items()], FILES)
    tiles_m, tiles_n = blocks_for(m, TILE), blocks_for(n, TILE)
    rounds = blocks_for(tiles_m * tiles_n, binder.device.multiprocessors // 2)
    from_a = _map(a, m, k, BOX) if trans_a else _map(a, k, m, TILE // 2)
    from_b = _map(b, k, n, TILE // 2) if trans_b else _map(b, n, k, BOX)
    to = _map(out, n, m, BOX)
    binder.launch_source(
        source, "product", 2 * blocks_for(tiles_m * tiles_n, rounds), THREADS, from_a, from_b, to,
        _map(aux, n, m, BOX) if aux else to, bias or a, i32(n), i32(blocks_for(k, STEP)), i32(form.spread),
        i32(tiles_m), i32(tiles_n), shared=form.shared,
    )  # fmt: skip


def _map(buffer: Buffer, columns: int, rows: int, box: int) -> TensorMap:
    return TensorMap(buffer, (columns, rows, 1, 1), (columns, rows * columns, rows * columns), box)
