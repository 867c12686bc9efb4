"""Sums and the like over axes, after ops/elementwise/reduce.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.types import FLOATS, bool_, int32, int64

from ..nodes import Nodes, Term
from ..registry import form, forms

Axes = tuple[int, ...] | None


def reduced(g: Nodes, standard: str, x: Term, axes: Axes, keepdim: bool) -> Term:
    """Over `axes`: None for all, () for none."""
    if axes == ():
        return g.Identity(x)
    places = None if axes is None else g.ints(*axes)
    return g.node(standard, x, places, keepdims=int(keepdim))


def summed(g: Nodes, x: Term, *axes: int, keepdim: bool = False) -> Term:
    """The sum over these axes."""
    return reduced(g, "ReduceSum", x, axes, keepdim)


@form
def reduce_mean(g: Nodes, X: Term, *, axis: Axes, keepdim: bool) -> Term:
    if 0 in (X.shape if axis is None else [X.shape[a] for a in axis]):
        return reduced(g, "ReduceSum", X, axis, keepdim) / 0.0  # of nothing it is NaN
    return reduced(g, "ReduceMean", X, axis, keepdim)


def _extremum(g: Nodes, standard: str, X: Term, axis: Axes, keepdim: bool) -> Term:
    narrow = X.dtype == bool_ or X.dtype.itemsize == 2
    return g.cast(reduced(g, standard, g.cast(X, int32) if narrow else X, axis, keepdim), X.dtype)


def _position(g: Nodes, standard: str, X: Term, axis: int | None, keepdim: bool, dtype: np.dtype) -> Term:
    narrow = X.dtype == bool_ or X.dtype in (np.int16, np.int64)
    x = g.cast(X, int32 if X.dtype != np.int64 else int64) if narrow else X
    if axis is None:
        place = g.node(standard, g.reshape(x, [-1]), axis=0, keepdims=0)
        place = g.reshape(place, [1] * X.ndim) if keepdim else place
    else:
        place = g.node(standard, x, axis=axis, keepdims=int(keepdim))
    return g.cast(place, dtype)


@form
def cumsum(g: Nodes, X: Term, *, axis: int | None, exclusive: bool, reverse: bool) -> Term:
    terms = g.reshape(X, [-1]) if axis is None else X
    flags: dict[str, Any] = {name: 1 for name, on in (("exclusive", exclusive), ("reverse", reverse)) if on}
    return g.CumSum(terms, g.const(axis or 0, int64), **flags)


@form
def p_norm(g: Nodes, X: Term, *, porder: float) -> Term:
    size = g.Abs(X)
    if porder == np.inf:
        return g.Max(reduced(g, "ReduceMax", size, None, False), 0)  # 0 where X has no elements
    return reduced(g, "ReduceSum", size, None, False) if porder == 1 else g.Sqrt(squared_l2_norm(g, X))


@form
def squared_l2_norm(g: Nodes, X: Term) -> Term:
    return reduced(g, "ReduceSum", X * X, None, False)


def _total(g: Nodes, standard: str, X: Term, axis: Axes, keepdim: bool) -> Term:
    return reduced(g, standard, X if X.dtype in FLOATS else g.cast(X, int64), axis, keepdim)


forms(
    column_sums=lambda g, X: summed(g, X, *range(len(X.shape) - 1)),
    reduce_sum=lambda g, X, *, axis, keepdim: _total(g, "ReduceSum", X, axis, keepdim),
    reduce_prod=lambda g, X, *, axis, keepdim: _total(g, "ReduceProd", X, axis, keepdim),
    reduce_max=lambda g, X, *, axis, keepdim, share: _extremum(g, "ReduceMax", X, axis, keepdim),
    reduce_min=lambda g, X, *, axis, keepdim, share: _extremum(g, "ReduceMin", X, axis, keepdim),
    arg_max=lambda g, X, *, axis, keepdim, dtype: _position(g, "ArgMax", X, axis, keepdim, dtype),
    arg_min=lambda g, X, *, axis, keepdim, dtype: _position(g, "ArgMin", X, axis, keepdim, dtype),
)
