"""Products of little work on tensor cores, with all that happens around them in one kernel: small_product.cu.

float32 as TF32, where the user allows it. A step of an MLP of 256 rows has products of .4 to .5 GFLOP, whose tiles
are too few for all multiprocessors, and every kernel beside them costs another microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.types import float32

from . import hopper_tf32
from .narrow_product import COLUMNS

FIRST, MOST = 3 << 27, 3 << 28  # multiply-adds up to which it runs where nothing was measured, up to which it is tried
TENSOR_CORES, CLUSTERS = 80, 90  # the least architectures that have them; times were measured on the latter
NAME = "kernel for small products"
CHUNK = 4  # elements that are read at once
FILES = "tensor_cores/mma.cuh", "matmul/small_product.cu"

Shape = tuple[int, int, int]


class Form(NamedTuple):
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


def form_of(binder: Binder, shape: Shape) -> Form:
    """Tiles of 64 x 64; blocks share a sum as long as there are at most three of them for two multiprocessors."""
    m, n, k = shape
    tiles, split = blocks_for(m, 64) * blocks_for(n, 64), 1
    while _capability(binder) >= CLUSTERS and split < 4:
        if 2 * split * tiles > 3 * binder.device.multiprocessors // 2 or k < 256 * split:
            break
        split *= 2
    return Form(split=split)


def with_kernel(
    variants: dict[str, Callable[[], None]], binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape,
    trans_a: bool, trans_b: bool, **around: Any,
) -> dict[str, Callable[[], None]]:  # fmt: skip
    """The variants and this kernel; it comes first where the product is small and the library's tiles are too few.

    Large products meet the one of hopper_tf32.py.

    around   what `bind` does beside the product, or `add`, which only large ones do
    """
    m, n, k = shape
    variants = hopper_tf32.with_kernel(variants, binder, a, b, out, shape, trans_a, trans_b, **around)
    if around.pop("add", False) or not binder.tf32 or a.dtype != float32 or m * n * k > MOST or min(n, k) <= COLUMNS:
        return variants
    if _capability(binder) < TENSOR_CORES:
        return variants
    few = blocks_for(m, 128) * blocks_for(n, 128) < binder.device.multiprocessors
    first = m * n * k <= FIRST and few and _capability(binder) >= CLUSTERS
    why = refusal(a, b, out, shape, trans_a, trans_b)
    if why is not None:
        if first:
            binder.note(f"the kernel for small products is left out: {why}")
        return variants
    own = {NAME: partial(bind, binder, a, b, out, shape, trans_a, trans_b, **around)}
    return own | variants if first else variants | own


def refusal(a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool) -> str | None:
    """Why this kernel cannot compute out = op(a) @ op(b) of float32, or None."""
    m, n, k = shape
    if min(shape) == 0 or max(shape) >= 1 << 30:
        return f"{m} x {n} x {k} is empty or too large"
    for name, buffer, row in (("A", a, m if trans_a else k), ("B", b, k if trans_b else n), ("the result", out, n)):
        if row % CHUNK:
            return f"rows of {name} have {row} elements, which is no multiple of {CHUNK}"
        if buffer.alignment % (4 * CHUNK):
            return f"{name} begins between multiples of {4 * CHUNK} bytes"
    return None


def bind(
    binder: Binder, a: Buffer, b: Buffer, out: Buffer, shape: Shape, trans_a: bool, trans_b: bool,
    bias: Buffer | None = None, relu: bool = False, bits: Buffer | None = None, where: Buffer | None = None,
    gelu: str = "", slope: str = "", aux: Buffer | None = None, sums: Buffer | None = None, of_a: bool = False,
    form: Form | None = None,
) -> None:  # fmt: skip
    """out = op(a) @ op(b), `shape` is (m, n, k); then in this order, each where given:

    bias         + bias
    relu, bits   max(., 0), and the bit mask of what is positive is written
    where        0 where the bit of this mask is not set
    gelu         the value of an expression of X; `aux` is X
    slope        times the value of an expression of X, which `aux` holds
    sums         beside it: sums over k of b, or of a where `of_a`; that operand is stored [k, .]
    """
    m, n, k = shape
    form, mask = form or form_of(binder, shape), bits or where
    defines = {
        "A_BY_K": int(not trans_a), "B_BY_K": int(trans_b), "BM": form.rows, "BN": form.columns, "SPLIT": form.split,
        "STAGES": form.stages, "WARPS_M": form.warps[0], "WARPS_N": form.warps[1],
        "BIAS": int(bias is not None), "RELU": int(relu), "MASK": int(bits is not None),
        "DRELU": int(where is not None), "COLUMNS": 0 if sums is None else 2 if of_a else 1,
        "KEEP": int(aux is not None),
    }  # fmt: skip
    defines |= {name: f"({text})" for name, text in (("GELU", gelu), ("SLOPE", slope)) if text}
    head = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    source = "".join([read_source("record/prelude.cuh"), head, *map(read_source, FILES)])
    width = mask.shape[-1] if mask is not None else 0
    covered = max(n, 8 * width) if bits is not None else n  # the mask's padding is written too
    tiles_m, tiles_n = blocks_for(m, form.rows), blocks_for(covered, form.columns)
    summed = 0 if sums is None else form.rows if of_a else form.columns
    binder.launch_source(
        source, "product", tiles_m * tiles_n * form.split, form.threads, a, b, out, bias or a, aux or out, mask or a,
        sums or out, i32(m), i32(n), i32(k), i64(m if trans_a else k), i64(k if trans_b else n), i64(width),
        i32(tiles_m), shared=form.shared(summed),
    )  # fmt: skip
