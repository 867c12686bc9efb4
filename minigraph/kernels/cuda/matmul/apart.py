"""What happens around a product, by kernels of their own: activations, masks, slopes."""

from __future__ import annotations

import math

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from .product import GELU, Product, activation_text, slope_text


def before_activation(product: Product) -> Buffer:
    """Where the input of the activation goes: into `kept` where that takes it, else into the result."""
    around = product.epilogue
    return around.kept if around.activation in GELU and around.kept is not None else product.out


def activate(binder: Binder, product: Product) -> None:
    """out = activation of what lies at `before_activation`; relu writes its mask where that is wanted."""
    around, out, z = product.epilogue, product.out, before_activation(product)
    if around.activation == "relu" and around.kept is not None:
        _launch_on_mask(binder, "relu_mask", z, around.kept)
    elif around.activation == "relu":
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": "max_nan(X, C(0))"})
    elif around.activation in GELU:
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": activation_text(around.activation)})


def apply_slope(binder: Binder, product: Product) -> None:
    """out = out * the slope of the activation at what was kept of forward."""
    around, out = product.epilogue, product.out
    if around.mask is not None:
        mask = around.mask
        binder.launch(
            "matmul/mask.cu", "apply_mask", blocks_for(out.size, 8 * 256), 256, out, mask, i64(out.size),
            i64(out.shape[-1]), i64(mask.shape[-1]), defines={"T": CUDA_TYPES[out.dtype]},
        )  # fmt: skip
    elif around.slope in GELU and around.kept is not None:
        text = f"D * ({slope_text(around.slope)})"
        bind_pointwise(binder, {"Out": out}, {"D": out, "X": around.kept}, {"Out": text})


def pack_mask(binder: Binder, values: Buffer, mask: Buffer) -> None:
    """The bits value > 0 of each row, padded to 128; the values may be relu's results."""
    _launch_on_mask(binder, "pack_mask", values, mask)


def _launch_on_mask(binder: Binder, function: str, values: Buffer, mask: Buffer) -> None:
    rows, columns = math.prod(values.shape[:-1]), values.shape[-1]
    binder.launch(
        "matmul/mask.cu", function, blocks_for(mask.size, 256), 256, values, mask, i64(rows), i64(columns),
        i64(mask.shape[-1]), defines={"T": CUDA_TYPES[values.dtype]},
    )  # fmt: skip
