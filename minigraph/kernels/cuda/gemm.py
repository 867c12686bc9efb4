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

from ...types import FLOATS, float64
from .binder import Binder
from .buffer import Buffer
from .pointwise import bind_pointwise, merged_axes
from .reduce import bind_column_sum, bind_sum_to

GELU_TANH = "X * (C(0.5) * (C(1) + tanh(C(0.7978845608028654) * (X + C(0.044715) * X * X * X))))"

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
        binder.gemm(a, b, c, m=math.prod(sc[:-1]), n=n, k=k, trans_b=trans_b)
        return
    extents, (ea, eb, ec) = merged_axes(sc[:-2], [sa[:-2], sb[:-2], sc[:-2]])
    sizes = m * k, k * n, m * n
    inner = (ea[-1] * sizes[0], eb[-1] * sizes[1], ec[-1] * sizes[2])
    for index in itertools.product(*(range(e) for e in extents[:-1])):
        parts = []
        for buffer, steps, size in zip((a, b, c), (ea, eb, ec), sizes, strict=True):
            start = sum(i * s for i, s in zip(index, steps, strict=False)) * size
            parts.append(buffer.view((buffer.size - start,), offset=start * buffer.dtype.itemsize))
        binder.gemm(
            *parts, m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, batch=extents[-1],
            strides=inner if extents[-1] > 1 else (0, 0, 0),
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
    whole = binder.scratch(full, c.dtype)
    product(binder, a, b, whole, (sa, sb, full), trans_a, trans_b)
    bind_sum_to(binder, whole, c, sc)


def fused_gemm_epilogue(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Out = activation(X @ Y + Bias) with bias, and where the library has it the activation, in the epilogue.

    cuBLASLt's gelu is the tanh form, its auxiliary rows must be multiples of 8 and its float64 gelu
    is good to 5e-12 only; in all other cases the bias stays in the epilogue and the activation is
    a kernel of its own.
    """
    x, y, bias, out, reserve = ins["X"], ins["Y"], ins["Bias"], outs["Out"], outs.get("ReserveSpace")
    n = out.shape[-1]
    m = math.prod(out.shape[:-1])
    k = x.shape[0] if attrs["trans_x"] else x.shape[-1]
    if out.size == 0:
        return
    facts = {"m": m, "n": n, "k": k, "trans_a": attrs["trans_x"], "trans_b": attrs["trans_y"], "bias": bias}
    activation = attrs["activation"]
    if k == 0:
        z = reserve if reserve is not None and activation == "gelu" else out
        bind_pointwise(binder, {"Out": z}, {"Bias": bias}, {"Out": "Bias"})
        _activate(binder, z, out, reserve, activation, attrs["approximate"])
    elif activation == "none":
        binder.gemm(x, y, out, epilogue="BIAS", **facts)
    elif activation == "relu" and reserve is None:
        binder.gemm(x, y, out, epilogue="RELU_BIAS", **facts)
    elif activation == "relu":
        binder.gemm(x, y, out, epilogue="RELU_AUX_BIAS", aux=reserve, aux_ld=-(-n // 128) * 128, **facts)
    elif attrs["approximate"] and reserve is None and x.dtype != float64:
        binder.gemm(x, y, out, epilogue="GELU_BIAS", **facts)
    elif attrs["approximate"] and n % 8 == 0 and x.dtype != float64:
        binder.gemm(x, y, out, epilogue="GELU_AUX_BIAS", aux=reserve, aux_ld=n, **facts)
    else:
        z = reserve if reserve is not None else out
        binder.gemm(x, y, z, epilogue="BIAS", **facts)
        _activate(binder, z, out, reserve, activation, attrs["approximate"])


def _as_matrices(x: Shape, y: Shape, out: Shape) -> tuple[Shape, Shape, Shape]:
    """Shapes of rank 2 or more: a vector X is a row, a vector Y a column."""
    rows, columns = ((1,) if len(x) == 1 else (out[-1 if len(y) == 1 else -2],)), ((1,) if len(y) == 1 else (out[-1],))
    batch = out[: len(out) - (len(x) > 1) - (len(y) > 1)]
    return (1, *x) if len(x) == 1 else x, (*y, 1) if len(y) == 1 else y, (*batch, *rows, *columns)


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


__all__ = ["FLOATS", "bind_column_sum", "fused_gemm_epilogue", "matmul", "matmul_grad", "product"]
