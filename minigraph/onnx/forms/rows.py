"""Operators on rows, after ops/rows/."""

from __future__ import annotations

from typing import Any

from minigraph.types import FLOATS, INTS, bool_, int32, int64

from ..nodes import Nodes, Term, fits_attribute
from ..registry import form, forms

forms(
    softmax=lambda g, X, *, axis: g.Softmax(X, axis=axis),
    log_softmax=lambda g, X, *, axis: g.LogSoftmax(X, axis=axis),
)


@form
def layer_norm(
    g: Nodes, X: Term, Scale: Term | None = None, Bias: Term | None = None, *, begin_norm_axis: int, epsilon: float
) -> Any:
    """One standard operator where Scale has its shape; it gives other statistics than Variance."""
    first = begin_norm_axis % X.ndim
    if first == X.ndim - 1 and Scale is not None and g.wanted == {"Y"} and fits_attribute(X, epsilon):
        return g.LayerNormalization(X, Scale, Bias, axis=-1, epsilon=epsilon), None, None
    axes = g.ints(*range(first, X.ndim))
    mean = g.ReduceMean(X, axes)
    centred = X - mean
    variance = g.ReduceMean(centred * centred, axes)
    sizes = [g.size(X, axis) for axis in range(first, X.ndim)]
    y = _normalised(g, centred, variance + epsilon, Scale, Bias, sizes)
    return y, g.reshape(mean, [-1]), g.reshape(variance, [-1])


@form
def layer_norm_again(
    g: Nodes, X: Term, Mean: Term, Variance: Term, Scale: Term | None = None, Bias: Term | None = None, *,
    begin_norm_axis: int, epsilon: float,
) -> Term:  # fmt: skip
    first = begin_norm_axis % X.ndim
    rows = [*(g.size(X, axis) for axis in range(first)), *[1] * (X.ndim - first)]
    variance = g.reshape(Variance, rows) + epsilon
    sizes = [g.size(X, axis) for axis in range(first, X.ndim)]
    return _normalised(g, X - g.reshape(Mean, rows), variance, Scale, Bias, sizes)


def _normalised(g: Nodes, centred: Term, variance: Term, Scale: Term | None, Bias: Term | None, sizes: Any) -> Term:
    """Y from what lies around the mean; `sizes` are those of a row."""
    y = centred / g.Sqrt(variance)
    if Scale is not None:
        y = y * g.reshape(Scale, sizes)
    return y if Bias is None else y + g.reshape(Bias, sizes)


@form
def argsort(g: Nodes, X: Term, *, axis: int, descending: bool) -> Any:
    """TopK of all elements; of equal ones it takes the first one first, as a stable sort does."""
    narrow = X.dtype in INTS and X.dtype not in (int32, int64)
    x = g.cast(X, int32) if narrow or X.dtype == bool_ else X
    values, places = g.TopK(x, g.size(X, axis), axis=axis, largest=int(descending), outputs=2)
    places.dtype = int64
    return g.cast(values, X.dtype), places


@form
def searchsorted(g: Nodes, Sorted: Term, X: Term, *, right: bool) -> Term:
    """Counted, not searched: each X is compared with each element of its row."""
    row = Sorted if Sorted.ndim == 1 else g.Unsqueeze(Sorted, g.ints(-2))
    x = g.Unsqueeze(X, g.ints(-1))
    before = row <= x if right else row < x
    if X.dtype in FLOATS:  # NaN counts as the largest number
        before = before | (g.IsNaN(x) if right else g.IsNaN(x) & g.Not(g.IsNaN(row)))
    return g.ReduceSum(g.cast(before, int64), g.ints(-1), keepdims=0)


def row_max(g: Nodes, x: Term, axis: int) -> Term:
    """The largest element along an axis, which stays with size 1."""
    return g.ReduceMax(x, g.ints(axis), keepdims=1)


def row_sum(g: Nodes, x: Term, axis: int) -> Term:
    """The sum along an axis, which stays with size 1."""
    return g.ReduceSum(x, g.ints(axis), keepdims=1)
