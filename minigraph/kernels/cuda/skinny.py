"""Products with a matrix of at most 16 columns, such as a classifier's last layer: kernels of our own.

One of them also does what would be a launch before or after the product: bias, relu, the mask, the bias gradient.
On an H200, 256 rows x 1024 x 10 in TF32, they take 3.3, 2.6 and 3.3 us (forward, dX with relu's mask, dW with db)
where cuBLASLt's products with kernels take 9.6, 5.8 and 6.9. With columns that are a multiple of 8, or with
thousands of rows, cuBLASLt is faster. See skinny.cu.
"""

from __future__ import annotations

from typing import Any

from .binder import Binder, blocks_for, i64
from .buffer import CUDA_TYPES, Buffer
from .pointwise import compute_type

COLUMNS = 16  # at most
ROWS = 1024  # up to so many, where cuBLASLt has odd columns, these kernels are taken without a measurement


def suits(x: Buffer, w: Buffer, out: Buffer, trans_x: bool) -> bool:
    """Whether x[..., K] @ w is such a product; `out` has its shape."""
    return not trans_x and 1 <= out.shape[-1] <= COLUMNS and min(x.size, w.size, out.size) > 0


def comes_first(rows: int, columns: int) -> bool:
    """Whether these kernels run where nothing was measured."""
    return rows <= ROWS and columns % 8 != 0


def _facts(x: Buffer, n: int, trans_w: bool, **more: Any) -> dict[str, Any]:
    return {"T": CUDA_TYPES[x.dtype], "C": compute_type(x.dtype), "N": n, "WT": int(trans_w),
            "ROWS": 1, "RELU": 0, "MASK": 0, **more}  # fmt: skip


def bind_forward(binder: Binder, x: Buffer, w: Buffer, bias: Buffer, out: Buffer, trans_w: bool, relu: bool) -> None:
    """out = x @ w + bias, with relu where asked."""
    inner, n = x.shape[-1], out.shape[-1]
    rows = x.size // inner
    group = 1 if rows <= binder.device.multiprocessors else 2 if rows <= 4 * binder.device.multiprocessors else 4
    binder.launch("skinny.cu", "forward", blocks_for(rows, group), 256, x, w, bias, out, i64(rows), i64(inner),
                  defines=_facts(x, n, trans_w, ROWS=group, RELU=int(relu)))  # fmt: skip


def bind_input_gradient(
    binder: Binder, d: Buffer, w: Buffer, mask: Buffer | None, dx: Buffer, trans_w: bool
) -> None:
    """dx = d @ w^T, 0 where the bit of `mask` is."""
    inner, n = dx.shape[-1], d.shape[-1]
    rows = dx.size // inner
    across = blocks_for(inner, 128)
    piece = max(4, blocks_for(rows * across, 4 * binder.device.multiprocessors))
    width = mask.shape[-1] if mask is not None else 0
    binder.launch("skinny.cu", "input_grad", across * blocks_for(rows, piece), 128, d, w, w if mask is None else mask,
                  dx, i64(rows), i64(inner), i64(width), i64(piece),
                  defines=_facts(d, n, trans_w, MASK=int(mask is not None)))  # fmt: skip


def bind_weight_gradient(binder: Binder, x: Buffer, d: Buffer, dw: Buffer, db: Buffer, trans_w: bool) -> None:
    """dw = x^T @ d and db = the sum of d, over all rows."""
    inner, n = x.shape[-1], d.shape[-1]
    binder.launch("skinny.cu", "weight_grad", blocks_for(inner + 1, 16), 512, x, d, dw, db, i64(x.size // inner),
                  i64(inner), defines=_facts(x, n, trans_w))  # fmt: skip
