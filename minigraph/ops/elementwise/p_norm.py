"""Norms of whole tensors, of one and of lists: what clipping and step sizes are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import Arrays, op
from minigraph.types import TensorType, bfloat16, float16, float32

ORDERS = (1.0, 2.0, math.inf)


@op(cpu="minigraph.kernels.cpu.p_norm:p_norm", gpu="elementwise.p_norm")
def p_norm(X, *, porder: float = 2.0):
    """A norm of all elements of X, a scalar; float32 for 16-bit X, and 0 for an X without elements.

    porder  1: sum of |X|;  2: root of the sum of X^2;  inf: largest |X|
    """
    if porder == math.inf:
        return np.max(np.abs(X), initial=0)
    return np.sum(np.abs(X)) if porder == 1 else np.sqrt(np.sum(np.square(X)))


@op("Out*", cpu="minigraph.kernels.cpu.p_norm:foreach_p_norm", gpu="elementwise.p_norm")
def foreach_p_norm(X: Arrays, *, porder: float = 2.0):
    """p_norm of each array of X."""
    return [np.asarray(p_norm.reference(x, porder=porder)) for x in X]


@p_norm.infer
def _(X, *, porder):
    require(X.is_float, f"X must be a float, is {X}", DTypeError)
    require(porder in ORDERS, f"porder is {porder}, known are 1, 2 and inf", AttrError)
    return TensorType((), float32 if X.dtype in (float16, bfloat16) else X.dtype)


@foreach_p_norm.infer
def _(X, *, porder):
    types = [p_norm.infer_types({"X": [x]}, {"porder": porder})["Out"][0] for x in X]
    for x in X:
        require(x.dtype == X[0].dtype, f"X holds {X[0].dtype} and {x.dtype}", MIXED_TYPES)
    return (types,)


@p_norm.grad
def _(g, X, Out, Out_grad, *, porder):
    """Those of a norm that is 0 are 0; equal largest elements share the gradient equally."""
    own, wide = X.type.dtype, Out.type.dtype
    x = X if own == wide else g.cast(X, dtype=wide)
    if porder == 1:
        grad = g.elementwise_mul(g.sign(x), Out_grad)
    elif porder == 2:
        zero, one = (g.fill_any_like(Out, value=v) for v in (0.0, 1.0))
        norm = g.where(g.equal(Out, zero), one, Out)
        grad = g.elementwise_mul(x, g.elementwise_div(Out_grad, norm))
    else:
        largest = g.cast(g.equal(g.abs(x), Out), dtype=wide)
        share = g.elementwise_div(Out_grad, g.p_norm(largest, porder=1.0))
        grad = g.elementwise_mul(g.elementwise_mul(g.sign(x), largest), share)
    return grad if own == wide else g.cast(grad, dtype=own)


@p_norm.samples
def _(rng):
    for porder in ORDERS:
        yield (rng.normal(size=(4, 3)),), {"porder": porder}
    yield (rng.normal(size=()),), {"porder": 1}
    yield (rng.normal(size=(0, 3)),), {}


@foreach_p_norm.samples
def _(rng: Any):
    shapes = (4, 3), (), (0, 3), (70, 31), (5,)
    for porder in ORDERS:
        yield ([rng.normal(size=s) for s in shapes],), {"porder": porder}
