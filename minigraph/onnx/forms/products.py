"""Matrix products, after ops/matmul/ and ops/linalg/."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..nodes import Nodes, Term
from ..registry import FORMS, form, no_counterpart, same
from .reductions import summed

same({"determinant": "Det"})


def turned(g: Nodes, x: Term, is_turned: bool) -> Term:
    """x with its last two axes swapped."""
    if not is_turned or x.ndim < 2:
        return x
    return g.Transpose(x, perm=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@form
def matmul(g: Nodes, X: Term, Y: Term, *, trans_x: bool, trans_y: bool, out_dtype: np.dtype | None) -> Term:
    wide = X.dtype if out_dtype is None else out_dtype
    return g.MatMul(turned(g, g.cast(X, wide), trans_x), turned(g, g.cast(Y, wide), trans_y))


@form
def matmul_accumulate(g: Nodes, X: Term, Y: Term, Acc: Term, *, trans_x: bool, trans_y: bool) -> Term:
    product = g.MatMul(turned(g, X, trans_x), turned(g, Y, trans_y))
    batch = X.ndim - 2 if Acc.ndim == 2 else 0
    return Acc + (summed(g, product, *range(batch)) if batch else product)


@form
def fused_gemm_epilogue(
    g: Nodes, X: Term, Y: Term, Bias: Term, *, trans_x: bool, trans_y: bool, activation: str, approximate: bool
) -> Any:
    if "ReserveSpace" in g.wanted and activation == "relu":
        raise no_counterpart(f"ReserveSpace of {activation} is a mask of bits", "export program.clone(for_test=True)")
    if X.ndim == 2:
        flags = {name: 1 for name, on in (("transA", trans_x), ("transB", trans_y)) if on}
        z = g.Gemm(X, Y, Bias, **flags)
    else:
        x = g.Transpose(X, perm=(*range(1, X.ndim), 0)) if trans_x else X
        bias = g.reshape(Bias, [-1]) if Bias.ndim == 2 else Bias
        z = g.MatMul(x, turned(g, Y, trans_y)) + bias
    if activation == "none":
        return z, None
    return (g.Relu(z) if activation == "relu" else FORMS[activation](g, z, approximate=approximate)), z
