"""Products of little work on tensor cores, with all that happens around them in one kernel: small_product.cu.

float32 as TF32, where the user allows it. A step of an MLP of 256 rows has products of .4 to .5 GFLOP, whose tiles
are too few for all multiprocessors, and every kernel beside them costs another microsecond.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.compile import KEPT, read_source
from minigraph.types import float32

from .narrow_product import COLUMNS
from .product import Product, Shape

FIRST, MOST = 3 << 27, 3 << 28  # multiply-adds up to which it runs where nothing was measured, up to which it is tried
TENSOR_CORES, CLUSTERS = 80, 90  # the least architectures that have them; times were measured on the latter
NAME = "kernel for small products"
CHUNK = 4  # elements that are read at once
FILES = "tensor_cores/mma.cuh", "matmul/small_product.cu"


class SmallTiling(NamedTuple):
    """How a product is cut: tiles of `rows` x `columns`, `split` blocks that share the sum of a tile.

    stages   steps of 32 along the sum that are on their way to shared memory
    warps    of a block along rows and columns
    """

    rows: int = 64
    columns: int = 64
    split: int = 1
    stages: int = 4
    warps: tuple[int, int] = (2, 2)

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    def shared(self, sums: int) -> int:
        """Bytes: stages, what other blocks send, and `sums` sums of columns."""
        sent = 4 * self.rows * self.columns // self.split * (self.split - 1)
        of_columns = 4 * self.split * sums + 16 * self.threads if sums else 0
        return 128 * (self.rows + self.columns) * self.stages + sent + of_columns


def _capability(binder: Binder) -> int:
    return int("".join(filter(str.isdigit, binder.device.arch)))


def tiling_of(binder: Binder, shape: Shape) -> SmallTiling:
    """Tiles of 64 x 64; blocks share a sum as long as there are at most three of them for two multiprocessors."""
    m, n, k = shape
    tiles, split = blocks_for(m, 64) * blocks_for(n, 64), 1
    while _capability(binder) >= CLUSTERS and split < 4:
        if 2 * split * tiles > 3 * binder.device.multiprocessors // 2 or k < 256 * split:
            break
        split *= 2
    return SmallTiling(split=split)


def name(product: Product) -> str:
    return NAME


def offered(binder: Binder, product: Product) -> bool:
    """Small products of float32 that may round to TF32; those with a matrix of few columns have another kernel.

    Weight gradients of few rows have not: their sums are short, and both of their matrices have many columns.
    """
    _, n, k = product.shape
    wide = n > COLUMNS and (k > COLUMNS or product.trans_a)
    small = product.work <= MOST and wide and not product.epilogue.add
    return small and binder.tf32 and product.a.dtype == float32 and _capability(binder) >= TENSOR_CORES


def preferred(binder: Binder, product: Product) -> bool:
    """Where the library's tiles are too few for all multiprocessors."""
    m, n, _ = product.shape
    few = blocks_for(m, 128) * blocks_for(n, 128) < binder.device.multiprocessors
    return product.work <= FIRST and few and _capability(binder) >= CLUSTERS


def refusal(product: Product) -> str | None:
    """Why this kernel cannot compute the product, or None."""
    if (wrong := product.refused_size()) is not None:
        return wrong
    for name, buffer, row in product.stored_rows:
        if row % CHUNK:
            return f"rows of {name} have {row} elements, which is no multiple of {CHUNK}"
        if buffer.alignment % (4 * CHUNK):
            return f"{name} begins between multiples of {4 * CHUNK} bytes"
    return None


@lru_cache(maxsize=KEPT)
def _source(head: str) -> str:
    """The text of the kernel with these `#define`s; the same text each time, so that it is hashed once."""
    return "".join([read_source("record/prelude.cuh"), head, *map(read_source, FILES)])


def bind(binder: Binder, product: Product, tiling: SmallTiling | None = None) -> None:
    """Record the product with all of its epilogue but `add`."""
    m, n, k = product.shape
    around, out, trans_a, trans_b = product.epilogue, product.out, product.trans_a, product.trans_b
    tiling, mask, sums = tiling or tiling_of(binder, product.shape), around.mask, around.sums
    relu = around.activation == "relu"
    defines = {
        "A_BY_K": int(not trans_a), "B_BY_K": int(trans_b), "BM": tiling.rows, "BN": tiling.columns,
        "SPLIT": tiling.split, "STAGES": tiling.stages, "WARPS_M": tiling.warps[0], "WARPS_N": tiling.warps[1],
        "BIAS": int(around.bias is not None), "RELU": int(relu), "MASK": int(relu and mask is not None),
        "DRELU": int(around.slope == "relu"), "COLUMNS": 0 if sums is None else 2 if around.sums_of_a else 1,
        "KEEP": int(around.activation_input is not None), **around.texts(),
    }  # fmt: skip
    source = _source("".join(f"#define {key} {value}\n" for key, value in defines.items()))
    width = mask.shape[-1] if mask is not None else 0
    covered = max(n, 8 * width) if relu else n  # the mask's padding is written too
    tiles_m, tiles_n = blocks_for(m, tiling.rows), blocks_for(covered, tiling.columns)
    summed = 0 if sums is None else tiling.rows if around.sums_of_a else tiling.columns
    binder.launch_source(
        source, "product", tiles_m * tiles_n * tiling.split, tiling.threads, product.a, product.b, out,
        around.bias or product.a, around.activation_input or out, mask or product.a, sums or out,
        i32(m), i32(n), i32(k),
        i64(m if trans_a else k), i64(k if trans_b else n), i64(width), i32(tiles_m), shared=tiling.shared(summed),
    )  # fmt: skip
