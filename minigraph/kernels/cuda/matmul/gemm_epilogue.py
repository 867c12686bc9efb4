"""Products with bias and activation, and their gradients: in cuBLASLt's epilogues or in kernels of our own.

Where both exist the operator records both; the first one runs unless times were measured (device/autotune.py). cuBLASLt's
gelu is the tanh form, its auxiliary rows must be multiples of 8, and its derivative is off by 4e-5 in float32
and 3e-9 in float64, so it serves 16-bit types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.elementwise.reduce import bind_column_sum
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer

from . import hopper_product, hopper_tf32, narrow_product, small_product
from .gemm import HALVES, matmul_grad, product, with_kernels

GELU = {False: "X * normal_cdf(X)", True: "X * logistic(C(2) * gelu_inner(X))"}  # by `approximate`; see record/prelude.cuh
GELU_SLOPE = {False: "normal_cdf(X) + X * normal_pdf(X)", True: "gelu_tanh_slope(X)"}

# Measured on an H200 from 256 x 1024 x 1024 to 65536 x 768 x 768, bfloat16 and TF32:
SMALL = 4 << 20  # bytes of DOut up to which its sum is cheaper in a product's epilogue (BGRADA) than by a kernel
CACHED = 16 << 20  # bytes of DX up to which gelu's derivative is cheaper by a kernel, from the cache, than by DGELU

KERNELS = small_product.NAME, hopper_tf32.NAME, hopper_product.NAME  # which do all that is around a product

Variants = dict[str, Callable[[], None]]


def fused_gemm_epilogue(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Out = activation(X @ Y + Bias).

    relu's mask is packed from Out: the library's (RELU_AUX) has a bit for z = 0 as well, where relu's
    derivative is 0 here, and takes longer (.405 against .369 ms at 8192 x 4096 x 4096 in bfloat16).
    """
    x, y, bias, out, reserve = ins["X"], ins["Y"], ins["Bias"], outs["Out"], outs.get("ReserveSpace")
    activation, tanh, n = attrs["activation"], attrs["approximate"], out.shape[-1]
    if out.size == 0:
        return
    z = reserve if activation == "gelu" and reserve is not None else out  # where the pre-activation goes
    k = x.shape[0] if attrs["trans_x"] else x.shape[-1]
    facts: dict[str, Any] = {
        "m": math.prod(out.shape[:-1]), "n": n, "k": k, "trans_a": attrs["trans_x"], "trans_b": attrs["trans_y"],
        "bias": bias,
    }  # fmt: skip

    def with_epilogue() -> None:
        if activation == "relu":
            binder.gemm(x, y, out, epilogue="RELU_BIAS", **facts)
            if reserve is not None:
                _pack_mask(binder, out, reserve)
        elif reserve is not None:
            binder.gemm(x, y, out, epilogue="GELU_AUX_BIAS", aux=reserve, aux_ld=n, **facts)
        else:
            binder.gemm(x, y, out, epilogue="GELU_BIAS", **facts)

    def with_bias() -> None:
        binder.gemm(x, y, z, epilogue="BIAS", **facts)
        _activate(binder, z, out, reserve, activation, tanh)

    def by_kernels() -> None:
        product(binder, x, y, z, (x.shape, y.shape, out.shape), attrs["trans_x"], attrs["trans_y"])
        bind_pointwise(binder, {"Out": z}, {"X": z, "Bias": bias}, {"Out": "X + Bias"})
        _activate(binder, z, out, reserve, activation, tanh)

    def with_skinny() -> None:
        relu = activation == "relu" and reserve is None
        narrow_product.bind_forward(binder, x, y, bias, z, (facts["m"], k, n), attrs["trans_y"], relu)
        if not relu:
            _activate(binder, z, out, reserve, activation, tanh)

    library = activation == "relu" or (
        activation == "gelu" and tanh and x.dtype in HALVES and (reserve is None or n % 8 == 0)
    )
    if k == 0:
        return by_kernels()
    variants: Variants = {f"epilogue of bias and {activation}": with_epilogue} if library else {}
    variants |= {"epilogue of bias": with_bias, "product and kernels": by_kernels}
    around = (
        {"relu": True, "bits": reserve} if activation == "relu"
        else {"gelu": GELU[tanh], "aux": reserve} if activation == "gelu" else {}
    )  # fmt: skip
    variants = with_kernels(
        variants, binder, x, y, out, (facts["m"], n, k), attrs["trans_x"], attrs["trans_y"], bias=bias, **around
    )
    if activation == "gelu" and not library and next(iter(variants)) not in KERNELS:
        binder.note("gelu is a kernel after the bias epilogue: " + _why_no_library_gelu(tanh, n, x))
    binder.choose(_with_skinny(variants, with_skinny, x, y, out, attrs))


def _with_skinny(
    variants: Variants, own: Callable[[], None], x: Buffer, y: Buffer, out: Buffer, attrs: Mapping[str, Any],
    weight_gradient: bool = False,
) -> Variants:  # fmt: skip
    """The variants, with kernels for few columns among them where Y has few."""
    if not narrow_product.suits(x, y, out, attrs["trans_x"]):
        return variants
    name = {f"kernel for {out.shape[-1]} columns": own}
    first = narrow_product.comes_first(out.size // out.shape[-1], out.shape[-1], weight_gradient)
    return name | variants if first else variants | name


def _why_no_library_gelu(tanh: bool, n: int, x: Buffer) -> str:
    if not tanh:
        return "cuBLASLt has its tanh form only"
    return f"{n} columns are no multiple of 8" if x.dtype in HALVES else "cuBLASLt's is exact to 16 bits only"


def _activate(binder: Binder, z: Buffer, out: Buffer, reserve: Buffer | None, activation: str, tanh: bool) -> None:
    """out = activation(z), for relu with the bit mask in `reserve`."""
    if activation == "relu" and reserve is not None:
        rows, columns = math.prod(z.shape[:-1]), z.shape[-1]
        binder.launch("matmul/mask.cu", "relu_mask", blocks_for(reserve.size, 256), 256, z, reserve, i64(rows), i64(columns),
                      i64(reserve.shape[-1]), defines={"T": CUDA_TYPES[z.dtype]})  # fmt: skip
    elif activation == "relu":
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": "max_nan(X, C(0))"})
    elif activation == "gelu":
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": GELU[tanh]})


def fused_gemm_epilogue_grad(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """DX with gelu's derivative in its epilogue, DY with the bias gradient in its, or kernels for these.

    relu's mask is applied by a kernel of our own: DRELU takes .55 ms at 8192 x 4096 x 4096 in
    bfloat16, the plain product .35 and the mask .03, and it is slower at 256 x 1024 x 1024 too.
    """
    d, x, y, reserve = ins["DOut"], ins["X"], ins["Y"], ins.get("ReserveSpace")
    dx, dy, dbias = outs.get("DX"), outs.get("DY"), outs.get("DBias")
    if dx is not None and dx.size:
        _input_gradient(binder, d, x, y, reserve, dx, attrs)
    if dy is not None:
        _weight_gradient(binder, d, x, dy, dbias, attrs)
    elif dbias is not None:
        bind_column_sum(binder, d, dbias)


def _input_gradient(
    binder: Binder, d: Buffer, x: Buffer, y: Buffer, reserve: Buffer | None, dx: Buffer, attrs: Mapping[str, Any]
) -> None:
    kind, inner, columns = attrs["activation_grad"], d.shape[-1], dx.shape[-1]

    def with_epilogue() -> None:
        binder.gemm(d, y, dx, m=math.prod(dx.shape[:-1]), n=columns, k=inner, trans_b=not attrs["trans_y"],
                    epilogue="DGELU", aux=reserve, aux_ld=columns)  # fmt: skip

    def by_kernels() -> None:
        matmul_grad(binder, {"X": x, "Y": y, "Out_grad": d}, {"X_grad": dx}, attrs)
        if kind == "relu_grad":
            _apply_mask(binder, dx, reserve)
        elif kind == "gelu_grad" and reserve is not None:
            slope = f"D * ({GELU_SLOPE[attrs['approximate']]})"
            bind_pointwise(binder, {"Out": dx}, {"D": dx, "X": reserve}, {"Out": slope})

    def with_skinny() -> None:
        shape = d.size // inner, columns, inner
        narrow_product.bind_input_gradient(binder, d, y, reserve, dx, shape, attrs["trans_y"])

    variants: Variants = {"product and kernel": by_kernels}
    gelu = kind == "gelu_grad" and attrs["approximate"] and columns % 8 == 0 and d.dtype in HALVES
    offered = gelu and not attrs["trans_x"] and inner > 1 and d.size > 0
    if offered:
        library: Variants = {"epilogue of gelu's derivative": with_epilogue}
        variants = variants | library if dx.nbytes <= CACHED else library | variants
    if kind != "none" and reserve is not None and not attrs["trans_x"]:
        slope = {"slope": GELU_SLOPE[attrs["approximate"]], "aux": reserve}
        around = {"where": reserve} if kind == "relu_grad" else slope
        shape = math.prod(dx.shape[:-1]), columns, inner
        variants = with_kernels(variants, binder, d, y, dx, shape, False, not attrs["trans_y"], **around)
    if kind == "gelu_grad" and not offered and next(iter(variants)) not in KERNELS:
        why = _why_no_library_gelu(attrs["approximate"], columns, d)
        binder.note(
            f"gelu_grad is a kernel after the product: {'X is transposed or DOut is narrow' if gelu else why}"
        )
    if kind != "gelu_grad":
        variants = _with_skinny(variants, with_skinny, x, y, d, attrs)
    if len(variants) > 1:
        return binder.choose(variants)
    by_kernels()


def _weight_gradient(
    binder: Binder, d: Buffer, x: Buffer, dy: Buffer, dbias: Buffer | None, attrs: Mapping[str, Any]
) -> None:
    """DY and DBias. BGRADA costs a large product more than a kernel that reads DOut once more."""
    rows, n = math.prod(d.shape[:-1]), d.shape[-1]

    def with_epilogue() -> None:
        if attrs["trans_y"]:  # DY[N, K] = DOut^T X: the sum over k of the library's B
            binder.gemm(d, x, dy, m=n, n=dy.shape[1], k=rows, trans_a=True, trans_b=attrs["trans_x"],
                        epilogue="BGRADB", bias=dbias)  # fmt: skip
        else:
            binder.gemm(x, d, dy, m=dy.shape[0], n=n, k=rows, trans_a=not attrs["trans_x"],
                        epilogue="BGRADA", bias=dbias)  # fmt: skip

    def by_kernels() -> None:
        matmul_grad(binder, {"X": x, "Y": dy, "Out_grad": d}, {"Y_grad": dy}, attrs)
        if dbias is not None:
            bind_column_sum(binder, d, dbias)

    def with_skinny() -> None:
        narrow_product.bind_weight_gradient(binder, x, d, dy, dbias, (rows, x.shape[-1], n), attrs["trans_y"])

    if dbias is None or rows <= 1 or dy.size == 0:
        return by_kernels()
    variants: Variants = {"epilogue of the bias gradient": with_epilogue, "product and column sum": by_kernels}
    variants = variants if d.nbytes <= SMALL else dict(reversed(variants.items()))
    if attrs["trans_y"]:
        a, b, flags, shape = d, x, (True, attrs["trans_x"]), (n, dy.shape[1], rows)
    else:
        a, b, flags, shape = x, d, (not attrs["trans_x"], False), (dy.shape[0], n, rows)
    variants = with_kernels(variants, binder, a, b, dy, shape, *flags, sums=dbias, of_a=attrs["trans_y"])
    binder.choose(_with_skinny(variants, with_skinny, x, dy, d, attrs, weight_gradient=True))


def _pack_mask(binder: Binder, z: Buffer, mask: Buffer) -> None:
    """The bits z > 0 of each row, padded to 128; z may be relu's result."""
    rows, columns = math.prod(z.shape[:-1]), z.shape[-1]
    binder.launch("matmul/mask.cu", "pack_mask", blocks_for(mask.size, 256), 256, z, mask, i64(rows), i64(columns),
                  i64(mask.shape[-1]), defines={"T": CUDA_TYPES[z.dtype]})  # fmt: skip


def _apply_mask(binder: Binder, d: Buffer, mask: Buffer | None) -> None:
    """d = 0 where the bit is not set."""
    assert mask is not None
    binder.launch("matmul/mask.cu", "apply_mask", blocks_for(d.size, 8 * 256), 256, d, mask, i64(d.size), i64(d.shape[-1]),
                  i64(mask.shape[-1]), defines={"T": CUDA_TYPES[d.dtype]})  # fmt: skip
