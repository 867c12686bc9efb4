"""Products with a matrix of at most 16 columns, such as a classifier's last layer: kernels of our own.

One of them also does what would be a launch before or after the product: bias, relu, the mask, the bias gradient.
With 256 rows x 1024 x 10 in TF32 each takes less time than cuBLASLt's product with its epilogue or with a kernel
behind it: `timed: kernel for 10 columns` in bench/results/gpu_steps.json. Where columns are a multiple of 8, or rows
are thousands, cuBLASLt is faster, but for weight gradients. See narrow_product.cu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from minigraph.kernels.cuda.elementwise.pointwise import compute_type
from minigraph.kernels.cuda.elementwise.reduce import bind_sum_to
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import float32, float64

from .apart import activate, before_activation
from .product import Product

FILE = "matmul/narrow_product.cu"
COLUMNS = 16  # at most
FEW = 1024  # rows
REGISTERS, MOST_UNDER_WAY = 88, 8  # of a thread for sums and what it reads; rows that it reads at a time, at most


class Narrow(NamedTuple):
    """The form of a launch of narrow_product.cu: the macros it was compiled with; rows, length of a sum, columns."""

    defines: Mapping[str, Any]
    shape: tuple[int, int, int]
    trans_w: bool


def _way(product: Product) -> str | None:
    """Which of the kernels computes a product, None where it is not narrow or its epilogue is of another kind."""
    m, n, k = product.shape
    around = product.epilogue
    if min(product.shape) == 0 or product.out.dtype != product.a.dtype or around.add:
        return None
    plain = around.bias is None and around.activation == "none"
    if not product.trans_a and around.sums is None:
        if n <= COLUMNS and around.slope == "none":
            return "forward"
        return "input gradient" if k <= COLUMNS and plain and around.slope in ("none", "relu") else None
    if product.trans_b or not product.trans_a or not plain or around.slope != "none":
        return None
    if n <= COLUMNS and not around.sums_of_a:
        return "weight gradient"
    return "transposed weight gradient" if m <= COLUMNS and (around.sums is None or around.sums_of_a) else None


def _columns(product: Product) -> tuple[int, int]:
    """The few columns, and the rows that meet them."""
    m, n, k = product.shape
    return {"forward": (n, m), "input gradient": (k, m), "weight gradient": (n, k)}.get(_way(product) or "", (m, k))


def name(product: Product) -> str:
    return f"kernel for {_columns(product)[0]} columns"


def offered(binder: Binder, product: Product) -> bool:
    """Products with a matrix of few columns."""
    return _way(product) is not None


def refusal(product: Product) -> str | None:
    """None: what is offered can be computed."""
    return None


def preferred(binder: Binder, product: Product) -> bool:
    """Where cuBLASLt has an odd number of columns."""
    columns, rows = _columns(product)
    if "weight" in (_way(product) or ""):
        return columns % 8 != 0 and (columns > 1 or rows <= FEW // 2)
    return columns % 8 != 0 and rows <= FEW


def bind(binder: Binder, product: Product) -> None:
    """Record the kernel, and behind it what it does not do itself: other activations, and relu's mask."""
    m, n, k = product.shape
    a, b, out, around, way = product.a, product.b, product.out, product.epilogue, _way(product)
    if way == "input gradient":
        return bind_input_gradient(binder, a, b, around.mask, out, (m, n, k), not product.trans_b)
    if way == "weight gradient":
        return bind_weight_gradient(binder, a, b, out, around.sums, (k, m, n), False)
    if way == "transposed weight gradient":
        return bind_weight_gradient(binder, b, a, out, around.sums, (k, n, m), True)
    itself = around.activation == "relu" and around.kept is None
    bind_forward(binder, a, b, around.bias, before_activation(product), (m, k, n), product.trans_b, itself)
    if not itself:
        activate(binder, product)


def _facts(
    few: Buffer, n: int, trans_w: bool, sums: int, values: int, most: int = MOST_UNDER_WAY, **more: Any
) -> dict[str, Any]:
    """Of a kernel that reads rows of `n` elements of `few`; a thread keeps `sums` sums and reads `values` at a time."""
    width = math.gcd(n, 16 // few.dtype.itemsize, few.alignment // few.dtype.itemsize)
    words = 2 if few.dtype == float64 else 1
    unroll = max(1, min(most, (REGISTERS - words * sums) // (words * values)))
    return {"T": CUDA_TYPES[few.dtype], "C": compute_type(few.dtype), "U": CUDA_TYPES[few.dtype], "N": n, "V": 1,
            "WT": int(trans_w), "FORWARD": 0, "INPUT_GRAD": 0, "ROWS": 1, "BIAS": 0, "RELU": 0, "MASK": 0, "DB": 0,
            "G": width, "UNROLL": 1 << unroll.bit_length() - 1, **more}  # fmt: skip


def bind_forward(
    binder: Binder, x: Buffer, w: Buffer, bias: Buffer | None, out: Buffer, shape: tuple[int, int, int],
    trans_w: bool, relu: bool = False,
) -> None:  # fmt: skip
    """out = x @ w + bias, with relu where asked; `shape` is (rows, inner, columns)."""
    rows, inner, n = shape
    group = 1 if rows <= binder.device.multiprocessors else 2 if rows <= 4 * binder.device.multiprocessors else 4
    around = {"BIAS": int(bias is not None), "RELU": int(relu)}
    defines = _facts(w, n, trans_w, group * n, group + n, FORWARD=1, ROWS=group, **around)
    binder.launch(
        FILE, "forward", blocks_for(rows, group), 256, x, w, w if bias is None else bias, out, i64(rows), i64(inner),
        defines=defines, form=Narrow(defines, shape, trans_w),
    )  # fmt: skip


def bind_input_gradient(
    binder: Binder, d: Buffer, w: Buffer, mask: Buffer | None, dx: Buffer, shape: tuple[int, int, int], trans_w: bool
) -> None:
    """dx = d @ w^T, 0 where the bit of `mask` is."""
    rows, inner, n = shape
    across = blocks_for(inner, 128)
    piece = max(4, blocks_for(rows * across, 4 * binder.device.multiprocessors))
    width = mask.shape[-1] if mask is not None else 0
    defines = _facts(d, n, trans_w, n, n, MOST_UNDER_WAY // 2, INPUT_GRAD=1, MASK=int(mask is not None))
    binder.launch(
        FILE, "input_grad", across * blocks_for(rows, piece), 128, d, w, w if mask is None else mask, dx, i64(rows),
        i64(inner), i64(width), i64(piece), defines=defines, form=Narrow(defines, shape, trans_w),
    )  # fmt: skip


def bind_weight_gradient(
    binder: Binder, x: Buffer, d: Buffer, dw: Buffer, db: Buffer | None, shape: tuple[int, int, int], trans_w: bool
) -> None:
    """dw = x^T @ d and db = the sum of d, over all rows; in pieces of the rows where these are many."""
    rows, inner, n = shape
    many = rows > FEW
    wide = 4 if many and inner % 4 == 0 and x.alignment % (4 * x.dtype.itemsize) == 0 else 1
    across = blocks_for(inner + 1, 16 * wide)
    pieces = min(blocks_for(4 * binder.device.multiprocessors, across), rows // 256) if many else 1
    piece = blocks_for(rows, pieces)
    pieces = blocks_for(rows, piece)
    facts = _facts(d, n, trans_w, wide * n, wide, V=wide, DB=int(db is not None))
    to_w, to_b = dw, db
    if pieces > 1:
        kept = float64 if x.dtype == float64 else float32
        facts["U"] = CUDA_TYPES[kept]
        to_w, to_b = (b and binder.scratch((pieces, b.size), kept) for b in (dw, db))
    binder.launch(
        FILE, "weight_grad", across * pieces, 512, x, d, to_w, to_b or to_w, i64(rows), i64(inner), i64(piece),
        defines=facts,
    )  # fmt: skip
    for part, whole in ((to_w, dw), (to_b, db)):
        if part is not None and whole is not None and pieces > 1:
            bind_sum_to(binder, part, whole, (whole.size,))
