"""Products of float32 as TF32 on Hopper's wgmma, with all that happens around them in one kernel: hopper_tf32.cu.

Where the user allows TF32. Of the layouts of a linear layer, cuBLASLt has kernels for wgmma only where k is
contiguous in both operands, the input's gradient; this one has all of them.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from minigraph.kernels.cuda.record.binder import Binder, Device, blocks_for, i32, i64
from minigraph.kernels.cuda.record.symbolic import decision
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap, hopper_source, wgmma
from minigraph.types import float32

from .product import Product, Shape

NAME = "kernel for TF32 on Hopper"
LEAST, FIRST = 1 << 29, 9 << 27  # multiply-adds from which it is tried, from which it runs where nothing was measured
WIDE, STEP = 256, 32  # columns of a block, k of a step
ROWS = 192, 160, 128, 96, 64  # of a block
MOST_PARTS, LEAST_STEPS = 16, 4  # blocks that share a sum, steps of each
THREADS = 384
PAIRS = 32  # columns that B stored [n, k] must be a multiple of
FILES = ("matmul/hopper_tf32.cu",)


class Tf32Tiling(NamedTuple):
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


def tiling_of(binder: Binder, shape: Shape, trans_a: bool, whole: bool, slope: bool = False) -> Tf32Tiling:
    """The tiling that should take least time, by what an H200 took for 8192 x 768 x 768.

    whole   sums are not shared by blocks
    slope   of what is read besides, where B is stored as it is: too few registers are left for the most rows
    """
    return _tiling_on(binder.device, shape, trans_a, whole, slope)


@decision(free=("split",))
def _tiling_on(device: Device, shape: Shape, trans_a: bool, whole: bool, slope: bool) -> Tf32Tiling:
    m, n, k = shape
    steps, across = blocks_for(k, STEP), blocks_for(n, WIDE)

    def microseconds(way: tuple[int, int]) -> float:
        rows, split = way
        step = 0.35 + 0.0038 * rows if trans_a else 0.2 + 0.004 * rows
        waves = blocks_for(-(-m // rows) * across * split, device.multiprocessors)
        joined = 2 + split * m * n * 8e-7 if split > 1 else 0
        return waves * (-(-steps // split) * step + 3 + 0.025 * rows) + joined

    parts = range(1, 2 if whole else min(MOST_PARTS, max(steps // LEAST_STEPS, 1)) + 1)
    rows, split = min(itertools.product(ROWS[1:] if slope else ROWS, parts), key=microseconds)
    return Tf32Tiling(rows, split, min((device.shared - 1024) // _stage(rows), 5))


def name(product: Product) -> str:
    return NAME


def offered(binder: Binder, product: Product) -> bool:
    """Products of float32 that may round to TF32, large enough for it."""
    hopper = binder.device.arch.startswith("sm_90")
    return hopper and binder.tf32 and product.a.dtype == float32 and product.work >= LEAST


def preferred(binder: Binder, product: Product) -> bool:
    """From `FIRST` on.

    Where k is contiguous in both operands and nothing is done beside the product, the library is as fast in one
    wave of blocks and faster in several, as at 8192 x 3072 x 768 (NT in bench/results/studies/tf32_kernels.json).
    """
    m, n, _ = product.shape
    if product.work < FIRST or product.trans_a or not (product.trans_b and product.epilogue.empty):
        return product.work >= FIRST
    rows = tiling_of(binder, product.shape, False, True).rows
    return blocks_for(m, rows) * blocks_for(n, WIDE) <= binder.device.multiprocessors


def refusal(product: Product) -> str | None:
    """Why this kernel cannot compute the product, or None."""
    if (wrong := product.refused_size()) is not None:
        return wrong
    m, n, _ = product.shape
    for name, buffer, row in product.stored_rows:
        if row % 4:
            return f"rows of {name} have {row} elements, which is no multiple of 4"
        if buffer.alignment % 16:
            return f"{name} begins between multiples of 16 bytes"
    if product.trans_b and n % PAIRS:
        return f"B is stored as its transpose and has {n} columns, which is no multiple of {PAIRS}"
    if product.epilogue.sums is not None and (product.epilogue.sums_of_a or product.trans_b):
        return "sums are wanted of another operand than B, stored as it is"
    if blocks_for(m, min(ROWS)) >= 1 << 16:
        return f"{m} rows are too many"
    return None


def bind(binder: Binder, product: Product, tiling: Tf32Tiling | None = None) -> None:
    """Record the product with all of its epilogue; sums are those of B. `add` and a slope exclude each other."""
    m, n, k = product.shape
    out, around = product.out, product.epilogue
    slope_of_input = around.slope != "none" and around.mask is None
    whole = around.add or around.bias is not None or around.activation != "none" or around.slope != "none"
    slope_from_registers = slope_of_input and not product.trans_b
    tiling = tiling or tiling_of(binder, product.shape, product.trans_a, whole, slope_from_registers)
    source = _source(product, tiling, slope_of_input)
    held = out if around.add else around.kept if slope_of_input else None
    beside = [] if held is None else [TensorMap(held, (n, m, 1, 1), (n, n, n), tiling.rows)]
    sums, mask = around.sums, around.mask
    parts = out if tiling.split == 1 else binder.scratch((tiling.split, m * n), out.dtype)
    part_sums = sums if tiling.split == 1 or sums is None else binder.scratch((tiling.split, n), out.dtype)
    binder.launch_source(
        source, "product", (blocks_for(n, WIDE), blocks_for(m, tiling.rows), tiling.split), THREADS,
        *_operand_maps(product, tiling), *beside, parts, around.bias or parts, around.activation_input or parts,
        mask or parts, part_sums or parts, i32(m), i32(n), i32(k), i64(mask.shape[-1] if mask is not None else 0),
        shared=tiling.shared,
    )  # fmt: skip
    if tiling.split > 1:
        elements = m * n + (n if sums is not None else 0)
        binder.launch_source(
            source, "join", blocks_for(elements, 4 * 256), 256, parts, part_sums or parts, out, sums or out,
            i64(m * n), i32(n), i32(tiling.split),
        )  # fmt: skip


def _source(product: Product, tiling: Tf32Tiling, slope_of_input: bool) -> str:
    """The kernel's text for one tiling and epilogue."""
    around, trans_a, trans_b = product.epilogue, product.trans_a, product.trans_b
    relu = around.activation == "relu"
    registers = 240 if not trans_a else 224 if trans_b else 232  # threads of the three warpgroups have 504
    defines = {
        "A_BY_K": int(not trans_a), "B_BY_K": int(trans_b), "ROWS": tiling.rows,
        "PARTS": int(tiling.split > 1), "STAGES": tiling.stages, "REGISTERS": registers,
        "LOADER_REGISTERS": 504 - 2 * registers, "ADD": int(around.add), "HELD": int(around.add or slope_of_input),
        "BIAS": int(around.bias is not None), "RELU": int(relu), "MASK": int(relu and around.mask is not None),
        "DRELU": int(around.slope == "relu"), "COLUMNS": int(around.sums is not None),
        "KEEP": int(around.activation_input is not None and not slope_of_input), **around.texts(),
    }  # fmt: skip
    instruction = wgmma(tiling.rows, "tf32", a_in_registers=not trans_b)
    return hopper_source((instruction,), tuple((key, str(value)) for key, value in defines.items()), FILES)


def _operand_maps(product: Product, tiling: Tf32Tiling) -> tuple[TensorMap, TensorMap]:
    """How the copy engine reads tiles of A and of B, as they are stored."""
    (m, n, k), a, b = product.shape, product.a, product.b
    a_map = (
        TensorMap(a, (m, k, 1, 1), (m, m, m), STEP, exact=False) if product.trans_a
        else TensorMap(a, (k, m, 1, 1), (k, k, k), tiling.rows, exact=False)
    )  # fmt: skip
    b_map = (
        TensorMap(b, (k, 8, 4, n // PAIRS), (4 * k, k, PAIRS * k), (8, 2, 4), exact=False) if product.trans_b
        else TensorMap(b, (n, k, 1, 1), (n, n, n), STEP, exact=product.epilogue.sums is not None)
    )  # fmt: skip
    return a_map, b_map
