"""Products with bias and activation, and their gradients: in cuBLASLt's epilogues or in kernels of our own.

Each operator says what it computes as a Product and gives the library's ways; the registry adds our kernels. cuBLASLt's
gelu is the tanh form, its auxiliary rows must be multiples of 8, and its derivative is off by 4e-5 in float32
and 3e-9 in float64, so it serves 16-bit types. Our kernels for large products have both forms, in 16 bits and TF32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.elementwise.reduce import bind_column_sum
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer

from .apart import activate, apply_slope, before_activation, pack_mask
from .gemm import HALVES, matmul_grad, product
from .product import GELU, Epilogue, Product
from .registry import Ways, add_up, record, ways

# Measured on an H200 from 256 x 1024 x 1024 to 65536 x 768 x 768, bfloat16 and TF32:
SMALL = 4 << 20  # bytes of DOut up to which its sum is cheaper in a product's epilogue (BGRADA) than by a kernel
CACHED = 16 << 20  # bytes of DX up to which gelu's derivative is cheaper by a kernel, from the cache, than by DGELU

Slots = Mapping[str, Any]


def fused_gemm_epilogue(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = activation(X @ Y + Bias).

    relu's mask is packed from Out: the library's (RELU_AUX) has a bit for z = 0 as well, where relu's
    derivative is 0 here, and takes longer.
    """
    x, y, out = _as_matrix(ins["X"], attrs), ins["Y"], outs["Out"]
    if out.size == 0:
        return
    around = Epilogue(
        bias=ins["Bias"], activation=_activation(attrs["activation"], attrs), kept=outs.get("ReserveSpace")
    )
    k = x.shape[0] if attrs["trans_x"] else x.shape[-1]
    shape = math.prod(out.shape[:-1]), out.shape[-1], k
    whole = Product(x, y, out, shape, attrs["trans_x"], attrs["trans_y"], around)
    by_kernels = partial(_forward_by_kernels, binder, whole)
    if k == 0:
        return by_kernels()
    epilogue = _library_epilogue(whole)
    library: Ways = {}
    if epilogue is not None:
        library[f"epilogue of bias and {attrs['activation']}"] = partial(_forward_by_library, binder, whole, epilogue)
    library |= {"epilogue of bias": partial(_forward_with_bias, binder, whole), "product and kernels": by_kernels}
    why = ""
    if around.activation in GELU and epilogue is None:
        why = "gelu is a kernel after the bias epilogue: " + _why_no_library_gelu(around.activation, out)
    _record(binder, whole, library, why)


def _as_matrix(x: Buffer, attrs: Slots) -> Buffer:
    """X as it is multiplied: [K, M] with trans_x."""
    return x.view((x.shape[0], math.prod(x.shape[1:]))) if attrs["trans_x"] and x.ndim > 2 else x


def _as_rows(d: Buffer, attrs: Slots) -> Buffer:
    """DOut as [M, N], where X is seen as a matrix."""
    return d.view((math.prod(d.shape[:-1]), d.shape[-1])) if attrs["trans_x"] and d.ndim > 2 else d


def _activation(name: str, attrs: Slots) -> str:
    return "gelu_tanh" if name == "gelu" and attrs["approximate"] else name


def _library_epilogue(whole: Product) -> str | None:
    """cuBLASLt's name for bias and activation as one epilogue, None where it has none that will do."""
    activation, kept = whole.epilogue.activation, whole.epilogue.kept
    if activation == "relu":
        return "RELU_BIAS"
    if activation != "gelu_tanh" or whole.a.dtype not in HALVES:
        return None
    if kept is None:
        return "GELU_BIAS"
    return "GELU_AUX_BIAS" if whole.shape[1] % 8 == 0 else None


def _facts(whole: Product) -> dict[str, Any]:
    m, n, k = whole.shape
    return {"m": m, "n": n, "k": k, "trans_a": whole.trans_a, "trans_b": whole.trans_b}


def _forward_by_library(binder: Binder, whole: Product, epilogue: str) -> None:
    around = whole.epilogue
    aux = {"aux": around.kept, "aux_ld": whole.shape[1]} if epilogue == "GELU_AUX_BIAS" else {}
    binder.gemm(whole.a, whole.b, whole.out, epilogue=epilogue, bias=around.bias, **_facts(whole), **aux)
    if around.mask is not None:
        pack_mask(binder, whole.out, around.mask)


def _forward_with_bias(binder: Binder, whole: Product) -> None:
    z = before_activation(whole)
    binder.gemm(whole.a, whole.b, z, epilogue="BIAS", bias=whole.epilogue.bias, **_facts(whole))
    activate(binder, whole)


def _forward_by_kernels(binder: Binder, whole: Product) -> None:
    x, y, z = whole.a, whole.b, before_activation(whole)
    out = (whole.shape[0], whole.shape[1]) if whole.trans_a else whole.out.shape
    product(binder, x, y, z, (x.shape, y.shape, out), whole.trans_a, whole.trans_b)
    assert whole.epilogue.bias is not None
    bind_pointwise(binder, {"Out": z}, {"X": z, "Bias": whole.epilogue.bias}, {"Out": "X + Bias"})
    activate(binder, whole)


def _why_no_library_gelu(form: str, result: Buffer) -> str:
    if form != "gelu_tanh":
        return "cuBLASLt has its tanh form only"
    if result.dtype not in HALVES:
        return "cuBLASLt's is exact to 16 bits only"
    return f"{result.shape[-1]} columns are no multiple of 8"


def fused_gemm_epilogue_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """DX with gelu's derivative in its epilogue, DY with the bias gradient in its, or kernels for these.

    relu's mask is applied by a kernel of our own: together with the plain product it takes less time than the
    library's epilogue DRELU.
    """
    d, x, y = ins["DOut"], ins["X"], ins["Y"]
    dx, dy, dbias, totals = (outs.get(slot) for slot in ("DX", "DY", "DBias", "DXSums"))
    if dx is None and totals is not None:
        dx = binder.scratch(x.shape, x.dtype)
    if dx is not None and dx.size:
        _input_gradient(binder, d, x, y, ins.get("ReserveSpace"), dx, totals, attrs)
    elif totals is not None:
        binder.zero(totals)
    if dy is not None:
        _weight_gradient(binder, d, x, dy, dbias, attrs)
    elif dbias is not None:
        bind_column_sum(binder, d, dbias)


def _input_gradient(
    binder: Binder, d: Buffer, x: Buffer, y: Buffer, kept: Buffer | None, dx: Buffer, totals: Buffer | None,
    attrs: Slots,
) -> None:  # fmt: skip
    """DX = DOut @ op(Y)^T, times the slope of the activation before this layer, and its sums, where they are wanted."""
    slope = _activation(attrs["activation_grad"].removesuffix("_grad"), attrs) if kept is not None else "none"
    columns, inner = dx.shape[-1], d.shape[-1]
    shape = math.prod(dx.shape[:-1]), columns, inner
    whole = Product(d, y, dx, shape, False, not attrs["trans_y"], Epilogue(slope=slope, kept=kept, totals=totals))

    def by_kernels() -> None:
        slots = {"X": _as_matrix(x, attrs), "Y": y, "Out_grad": _as_rows(d, attrs)}
        matmul_grad(binder, slots, {"X_grad": _as_matrix(dx, attrs)}, attrs)
        apply_slope(binder, whole)
        add_up(binder, whole)

    def with_epilogue() -> None:
        binder.gemm(d, y, dx, epilogue="DGELU", aux=kept, aux_ld=columns, **_facts(whole))
        add_up(binder, whole)

    if slope == "none" or attrs["trans_x"]:
        if slope in GELU:
            binder.note("gelu_grad is a kernel after the product: X is transposed")
        return by_kernels()
    library: Ways = {"product and kernel": by_kernels}
    has_slope = slope == "gelu_tanh" and columns % 8 == 0 and d.dtype in HALVES
    if has_slope and inner > 1 and d.size > 0:
        epilogue: Ways = {"epilogue of gelu's derivative": with_epilogue}
        library = library | epilogue if dx.nbytes <= CACHED else epilogue | library
    why = ""
    if slope in GELU and len(library) == 1:
        why = "DOut is narrow" if has_slope else _why_no_library_gelu(slope, dx)
        why = f"gelu_grad is a kernel after the product: {why}"
    _record(binder, whole, library, why)


def _weight_gradient(binder: Binder, d: Buffer, x: Buffer, dy: Buffer, dbias: Buffer | None, attrs: Slots) -> None:
    """DY and DBias. BGRADA costs a large product more than a kernel that reads DOut once more."""
    rows, n = math.prod(d.shape[:-1]), d.shape[-1]
    x, d = _as_matrix(x, attrs), _as_rows(d, attrs)

    def by_kernels() -> None:
        matmul_grad(binder, {"X": x, "Y": dy, "Out_grad": d}, {"Y_grad": dy}, attrs)
        if dbias is not None:
            bind_column_sum(binder, d, dbias)

    if dbias is None or rows <= 1 or dy.size == 0:
        return by_kernels()
    if attrs["trans_y"]:  # DY[N, K] = DOut^T X: DBias is the sum over k of the first operand
        whole = Product(d, x, dy, (n, dy.shape[1], rows), True, attrs["trans_x"], Epilogue(sums=dbias, sums_of_a=True))
    else:
        whole = Product(x, d, dy, (dy.shape[0], n, rows), not attrs["trans_x"], False, Epilogue(sums=dbias))
    epilogue = "BGRADB" if attrs["trans_y"] else "BGRADA"  # by the library's order of operands
    library: Ways = {
        "epilogue of the bias gradient": partial(
            binder.gemm, whole.a, whole.b, dy, epilogue=epilogue, bias=dbias, **_facts(whole)
        ),
        "product and column sum": by_kernels,
    }
    library = library if d.nbytes <= SMALL else dict(reversed(library.items()))
    _record(binder, whole, library)


def _record(binder: Binder, whole: Product, library: Ways, why: str = "") -> None:
    """Record all ways; a remark for explain() names our kernel where it comes first, else says `why` one is needed."""
    offered = ways(binder, whole, library)
    first = next(iter(offered))
    if first not in library and not binder.autotune:
        binder.note(f"by the {first}")
    elif first in library and why:
        binder.note(why)
    record(binder, offered)
