"""Matrix products through cuBLASLt: which calls an operator becomes.

Everything is row-major here; lt.py swaps operands for the column-major library. Products whose
second operand is a matrix are one GEMM over all rows; batches that step evenly are one strided
batched GEMM, other broadcasts one for each outer index.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...types import FLOATS, bfloat16, float16, float32
from .binder import Binder, blocks_for, i32, i64
from .buffer import CUDA_TYPES, Buffer
from .pointwise import bind_pointwise, merged_axes
from .reduce import bind_column_sum, bind_sum_to

GELU_ERF = "X * (C(0.5) * erfc(X * C(-0.7071067811865476)))"
GELU_ERF_SLOPE = "C(0.5) * erfc(X * C(-0.7071067811865476)) + X * exp(C(-0.5) * X * X) * C(0.3989422804014327)"
GELU_TANH = "X * (C(0.5) * (C(1) + tanh(gelu_inner(X))))"
GELU_TANH_SLOPE = "gelu_tanh_slope(X)"

TILE = 16  # of gemm_int.cu
HALVES = frozenset({float16, bfloat16})

Shape = tuple[int, ...]


def product(
    binder: Binder, a: Buffer, b: Buffer, c: Buffer, shapes: Sequence[Shape], trans_a: bool, trans_b: bool
) -> None:
    """c = op(a) @ op(b), the last two axes being matrices and the others batches that broadcast.

    shapes   of a, b, c as they take part, each of rank 2 or more
    """
    sa, sb, sc = shapes
    m, n = sc[-2:]
    k = sa[-2] if trans_a else sa[-1]
    if math.prod(sc) == 0:
        return
    if k == 0:
        return binder.zero(c)
    if math.prod(sb[:-2]) == 1 and not trans_a:  # all rows of a meet one matrix
        _one_product(binder, a, b, c, m=math.prod(sc[:-1]), n=n, k=k, trans_b=trans_b)
        return
    extents, (ea, eb, ec) = merged_axes(sc[:-2], [sa[:-2], sb[:-2], sc[:-2]])
    sizes = m * k, k * n, m * n
    inner = (ea[-1] * sizes[0], eb[-1] * sizes[1], ec[-1] * sizes[2])
    for index in itertools.product(*(range(e) for e in extents[:-1])):
        parts = []
        for buffer, steps, size in zip((a, b, c), (ea, eb, ec), sizes, strict=True):
            start = sum(i * s for i, s in zip(index, steps, strict=False)) * size
            parts.append(buffer.view((buffer.size - start,), offset=start * buffer.dtype.itemsize))
        _one_product(
            binder, *parts, m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, batch=extents[-1],
            strides=inner if extents[-1] > 1 else (0, 0, 0),
        )  # fmt: skip


def _one_product(binder: Binder, a: Buffer, b: Buffer, c: Buffer, **facts: Any) -> None:
    """Floats through cuBLASLt, integers by a kernel of our own."""
    if a.dtype in FLOATS:
        return binder.gemm(a, b, c, **facts)
    m, n, k, batch = facts["m"], facts["n"], facts["k"], facts.get("batch", 1)
    tiles = blocks_for(m, TILE) * blocks_for(n, TILE) * batch
    binder.launch(
        "gemm_int.cu", "gemm_int", tiles, TILE * TILE, a, b, c, i64(m), i64(n), i64(k),
        i32(facts.get("trans_a", False)), i32(facts["trans_b"]), *(i64(s) for s in facts.get("strides", (0, 0, 0))),
        defines={"T": CUDA_TYPES[a.dtype]},
    )  # fmt: skip


def matmul(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out = X @ Y; vectors take part as matrices of one row or column."""
    x, y, out = ins["X"], ins["Y"], outs["Out"]
    sx, sy, so = _as_matrices(x.shape, y.shape, out.shape)
    trans_x, trans_y = attrs["trans_x"] and x.ndim > 1, attrs["trans_y"] and y.ndim > 1
    product(binder, x, y, out, (sx, sy, so), trans_x, trans_y)


def matmul_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad and Y_grad, those of broadcast batches summed."""
    x, y, d = ins["X"], ins["Y"], ins["Out_grad"]
    sx, sy, sd = _as_matrices(x.shape, y.shape, d.shape)
    trans_x, trans_y = attrs["trans_x"] and x.ndim > 1, attrs["trans_y"] and y.ndim > 1
    if outs.get("X_grad"):
        if trans_x:
            _grad(binder, y, d, outs["X_grad"], (sy, sd, sx), trans_y, True)
        else:
            _grad(binder, d, y, outs["X_grad"], (sd, sy, sx), False, not trans_y)
    if outs.get("Y_grad"):
        if math.prod(sy[:-2]) == 1 and not trans_x:  # one product over all rows instead of a batch and a sum
            sx, sd = (math.prod(sx[:-1]), sx[-1]), (math.prod(sd[:-1]), sd[-1])
        if trans_y:
            _grad(binder, d, x, outs["Y_grad"], (sd, sx, sy), True, trans_x)
        else:
            _grad(binder, x, d, outs["Y_grad"], (sx, sd, sy), not trans_x, False)


def _grad(
    binder: Binder, a: Buffer, b: Buffer, c: Buffer, shapes: Sequence[Shape], trans_a: bool, trans_b: bool
) -> None:
    """c = op(a) @ op(b) summed over the batch axes along which c's operand was broadcast."""
    sa, sb, sc = shapes
    batch = _broadcast(sa[:-2], sb[:-2])
    full = (*batch, *sc[-2:])
    if math.prod(full) == math.prod(sc):
        product(binder, a, b, c, (sa, sb, full), trans_a, trans_b)
        return
    whole = binder.scratch(full, float32 if c.dtype in HALVES else c.dtype)  # round once
    product(binder, a, b, whole, (sa, sb, full), trans_a, trans_b)
    bind_sum_to(binder, whole, c, sc)


def fused_gemm_epilogue(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Out = activation(X @ Y + Bias), bias and activation in the epilogue where the library has them.

    cuBLASLt's gelu is the tanh form, its auxiliary rows must be multiples of 8, and its derivative is
    off by 4e-5 in float32 and 3e-9 in float64, so it serves 16-bit types. In all other cases the bias
    stays in the epilogue and the activation is a kernel of its own.

    relu's mask is packed from Out: the library's (RELU_AUX) has a bit for z = 0 as well, where relu's
    derivative is 0 here, and takes longer (.405 against .369 ms at 8192 x 4096 x 4096 in bfloat16).
    """
    x, y, bias, out, reserve = ins["X"], ins["Y"], ins["Bias"], outs["Out"], outs.get("ReserveSpace")
    activation, tanh = attrs["activation"], attrs["approximate"]
    n = out.shape[-1]
    if out.size == 0:
        return
    z = reserve if activation == "gelu" and reserve is not None else out  # where the pre-activation goes

    def product_then_kernels(reserve: Buffer | None = reserve) -> None:
        shapes = x.shape, y.shape, out.shape
        product(binder, x, y, z, shapes, attrs["trans_x"], attrs["trans_y"])
        bind_pointwise(binder, {"Out": z}, {"X": z, "Bias": bias}, {"Out": "X + Bias"})
        _activate(binder, z, out, reserve, activation, tanh)

    k = x.shape[0] if attrs["trans_x"] else x.shape[-1]
    if k == 0:
        return product_then_kernels()
    facts: dict[str, Any] = {
        "m": math.prod(out.shape[:-1]), "n": n, "k": k, "trans_a": attrs["trans_x"],
        "trans_b": attrs["trans_y"], "bias": bias, "fallback": product_then_kernels,
    }  # fmt: skip
    library_gelu = activation == "gelu" and tanh and x.dtype in HALVES
    if activation == "relu":
        facts["fallback"] = lambda: product_then_kernels(reserve=None)
        binder.gemm(x, y, out, epilogue="RELU_BIAS", **facts)
        if reserve is not None:
            _pack_mask(binder, out, reserve)
    elif library_gelu and reserve is None:
        binder.gemm(x, y, out, epilogue="GELU_BIAS", **facts)
    elif library_gelu and n % 8 == 0:
        binder.gemm(x, y, out, epilogue="GELU_AUX_BIAS", aux=reserve, aux_ld=n, **facts)
    else:
        if activation == "gelu":
            binder.note("gelu is a kernel after the bias epilogue: " + _why_no_library_gelu(tanh, n, x))
        facts["fallback"] = lambda: _unfused_bias(binder, x, y, z, bias, attrs)
        binder.gemm(x, y, z, epilogue="BIAS", **facts)
        _activate(binder, z, out, None, activation, tanh)


def _why_no_library_gelu(tanh: bool, n: int, x: Buffer) -> str:
    if not tanh:
        return "cuBLASLt has its tanh form only"
    return f"{n} columns are no multiple of 8" if x.dtype in HALVES else "cuBLASLt's is exact to 16 bits only"


def _unfused_bias(binder: Binder, x: Buffer, y: Buffer, z: Buffer, bias: Buffer, attrs: Mapping[str, Any]) -> None:
    product(binder, x, y, z, (x.shape, y.shape, z.shape), attrs["trans_x"], attrs["trans_y"])
    bind_pointwise(binder, {"Out": z}, {"X": z, "Bias": bias}, {"Out": "X + Bias"})


def _activate(binder: Binder, z: Buffer, out: Buffer, reserve: Buffer | None, activation: str, tanh: bool) -> None:
    """out = activation(z), for relu with the bit mask in `reserve`."""
    if activation == "relu":
        if reserve is not None:
            _pack_mask(binder, z, reserve)
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": "max_nan(X, C(0))"})
    elif activation == "gelu":
        bind_pointwise(binder, {"Out": out}, {"X": z}, {"Out": GELU_TANH if tanh else GELU_ERF})


def fused_gemm_epilogue_grad(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """DX with gelu's derivative in its epilogue, DY with the bias gradient in its.

    relu's mask is applied by a kernel of our own: DRELU takes .55 ms at 8192 x 4096 x 4096 in
    bfloat16, the plain product .35 and the mask .03.
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
    trans_x, trans_y, kind = attrs["trans_x"], attrs["trans_y"], attrs["activation_grad"]
    inner = d.shape[-1]
    columns = dx.shape[-1]

    def product_then_kernels() -> None:
        plain = {"X": x, "Y": y, "Out_grad": d}
        matmul_grad(binder, plain, {"X_grad": dx}, attrs)
        if kind == "relu_grad":
            _apply_mask(binder, dx, reserve)
        elif kind == "gelu_grad" and reserve is not None:
            slope = GELU_TANH_SLOPE if attrs["approximate"] else GELU_ERF_SLOPE
            bind_pointwise(binder, {"Out": dx}, {"D": dx, "X": reserve}, {"Out": f"D * ({slope})"})

    library = kind == "gelu_grad" and attrs["approximate"] and columns % 8 == 0 and d.dtype in HALVES
    if not library or trans_x or inner <= 1 or d.size == 0:
        if kind == "gelu_grad":
            why = "X is transposed or DOut is narrow"
            if not library:
                why = _why_no_library_gelu(attrs["approximate"], columns, d)
            binder.note(f"gelu_grad is a kernel after the product: {why}")
        return product_then_kernels()
    binder.gemm(
        d, y, dx, m=math.prod(dx.shape[:-1]), n=columns, k=inner, trans_b=not trans_y, epilogue="DGELU",
        aux=reserve, aux_ld=columns, fallback=product_then_kernels,
    )  # fmt: skip


def _weight_gradient(
    binder: Binder, d: Buffer, x: Buffer, dy: Buffer, dbias: Buffer | None, attrs: Mapping[str, Any]
) -> None:
    rows = math.prod(d.shape[:-1])

    def product_then_sum() -> None:
        matmul_grad(binder, {"X": x, "Y": dy, "Out_grad": d}, {"Y_grad": dy}, attrs)
        if dbias is not None:
            bind_column_sum(binder, d, dbias)

    if dbias is None or rows <= 1 or dy.size == 0:
        return product_then_sum()
    facts = {"bias": dbias, "k": rows, "fallback": product_then_sum}
    if attrs["trans_y"]:  # DY[N, K] = DOut^T X: the sum over k of the library's B
        binder.gemm(d, x, dy, m=d.shape[-1], n=dy.shape[1], trans_a=True, trans_b=attrs["trans_x"],
                    epilogue="BGRADB", **facts)  # fmt: skip
    else:
        binder.gemm(x, d, dy, m=dy.shape[0], n=d.shape[-1], trans_a=not attrs["trans_x"], epilogue="BGRADA", **facts)


def _pack_mask(binder: Binder, z: Buffer, mask: Buffer) -> None:
    """The bits z > 0 of each row, padded to 128; z may be relu's result."""
    rows, columns = math.prod(z.shape[:-1]), z.shape[-1]
    binder.launch("mask.cu", "pack_mask", blocks_for(mask.size, 256), 256, z, mask, i64(rows), i64(columns),
                  i64(mask.shape[-1]), defines={"T": CUDA_TYPES[z.dtype]})  # fmt: skip


def _apply_mask(binder: Binder, d: Buffer, mask: Buffer | None) -> None:
    """d = 0 where the bit is not set."""
    assert mask is not None
    binder.launch("mask.cu", "apply_mask", blocks_for(d.size, 8 * 256), 256, d, mask, i64(d.size), i64(d.shape[-1]),
                  i64(mask.shape[-1]), defines={"T": CUDA_TYPES[d.dtype]})  # fmt: skip


def _as_matrices(x: Shape, y: Shape, out: Shape) -> tuple[Shape, Shape, Shape]:
    """Shapes of rank 2 or more: a vector X is a row, a vector Y a column."""
    rows, columns = ((1,) if len(x) == 1 else (out[-1 if len(y) == 1 else -2],)), ((1,) if len(y) == 1 else (out[-1],))
    batch = out[: len(out) - (len(x) > 1) - (len(y) > 1)]
    return (1, *x) if len(x) == 1 else x, (*y, 1) if len(y) == 1 else y, (*batch, *rows, *columns)


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))

