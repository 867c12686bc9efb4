"""Sorting along an axis, and searching in what is sorted."""

from __future__ import annotations

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import MIXED_TYPES, RANK
from minigraph.opdef import op
from minigraph.types import TensorType, int64, normalize_axis


@op("Out, Indices", gpu="rows.sort")
def argsort(X, *, axis: int = -1, descending: bool = False):
    """X sorted along `axis`, and where its elements were (int64); equal ones keep their order.

    NaN counts as the largest number.
    """
    rows = np.flip(X, axis) if descending else X
    order = np.argsort(rows, axis=axis, kind="stable")
    if descending:
        order = X.shape[axis] - 1 - np.flip(order, axis)
    return np.take_along_axis(X, order, axis), order.astype(np.int64)


@argsort.infer
def _(X, *, axis, descending):
    normalize_axis(axis, X.ndim)
    return X, X.with_dtype(int64)


@argsort.grad
def _(g, X, Indices, Out_grad, *, axis, descending):
    places = g.flatten(g.flat_index_along(X, Indices, axis=axis))
    return g.reshape_grad(X, g.gather_grad(g.flatten(X), places, g.flatten(Out_grad), axis=0))


@argsort.samples
def _(rng):
    yield (rng.permutation(12).reshape(4, 3) / 3.0,), {}
    yield (rng.permutation(24).reshape(2, 4, 3) / 3.0,), {"axis": 1, "descending": True}
    yield (np.array([2, 1, 2, 1, 0]),), {"descending": True}
    yield (rng.integers(0, 300, (2, 1500)),), {}
    yield (rng.integers(0, 300, (3, 2100), np.int32),), {"descending": True}
    yield (rng.integers(0, 300, (1100, 2)),), {"axis": 0}
    yield (np.zeros((0, 3)),), {"axis": 1}
    yield (np.zeros((2, 0)),), {}


@op(traits={"nondifferentiable"}, gpu="rows.sort")
def searchsorted(Sorted, X, *, right: bool = False):
    """How many elements of the row of Sorted lie before each X (int64); with `right` also those that are equal.

    Sorted has rank 1, one row for all X, or the sizes of X but for the last one.
    """
    side = "right" if right else "left"
    if Sorted.ndim == 1:
        return np.asarray(np.searchsorted(Sorted, X, side)).astype(np.int64)
    rows = zip(Sorted.reshape(-1, Sorted.shape[-1]), X.reshape(-1, X.shape[-1]), strict=True)
    found = [np.searchsorted(row, x, side) for row, x in rows]
    return np.array(found, np.int64).reshape(X.shape)


@searchsorted.infer
def _(Sorted, X, *, right):
    require(Sorted.dtype == X.dtype, f"Sorted is {Sorted.dtype}, X is {X.dtype}", MIXED_TYPES, "cast one of them")
    require(Sorted.ndim >= 1, "Sorted is a scalar, it has no rows", RANK)
    if Sorted.ndim > 1:
        require(Sorted.ndim == X.ndim, f"Sorted has rank {Sorted.ndim}, X has rank {X.ndim}", RANK)
        for axis, (a, b) in enumerate(zip(Sorted.shape[:-1], X.shape[:-1], strict=True)):
            require(-1 in (a, b) or a == b, f"axis {axis} of Sorted has size {a}, that of X {b}")
    return TensorType(X.shape, int64)


@searchsorted.samples
def _(rng):
    yield (np.sort(rng.normal(size=(9,))), rng.normal(size=(2, 3))), {}
    yield (np.array([1, 3, 3, 5]), np.array([3, 0, 9])), {"right": True}
    yield (np.sort(rng.normal(size=(2, 3, 7)), axis=-1), rng.normal(size=(2, 3, 4))), {}
    yield (np.sort(rng.normal(size=(5,))), np.array(0.1)), {}
    yield (np.zeros((0,)), rng.normal(size=(3,))), {}
    yield (np.array([1.0, 2.0, np.nan]), np.array([np.nan, 5.0, 1.5])), {}
