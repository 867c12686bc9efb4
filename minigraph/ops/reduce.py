"""Reductions over axes and their gradients."""

from __future__ import annotations

import numpy as np

from ..opdef import Ints, op
from ..types import TensorType, normalize_axes


def reduced(X: TensorType, axis: tuple[int, ...] | None, keepdim: bool) -> TensorType:
    """The type of X with `axis` (all axes for None) summed away or kept with size 1."""
    axes = normalize_axes(axis, X.ndim)
    return X.with_shape(1 if i in axes else s for i, s in enumerate(X.shape) if keepdim or i not in axes)


def expanded(Out_grad: np.ndarray, shape: tuple[int, ...], axis: tuple[int, ...] | None) -> np.ndarray:
    """The gradient of a reduction's output, seen with the input's shape; a view."""
    axes = normalize_axes(axis, len(shape))
    kept = tuple(1 if i in axes else s for i, s in enumerate(shape))
    return np.broadcast_to(Out_grad.reshape(kept), shape)


@op
def reduce_mean(X, *, axis: Ints | None = None, keepdim: bool = False):
    """The mean over `axis` (all axes for None); of no elements it is NaN."""
    return np.mean(X, axis=axis, keepdims=keepdim, dtype=X.dtype)


@reduce_mean.infer
def _(X, *, axis, keepdim):
    return reduced(X, axis, keepdim)


@reduce_mean.grad
def _(g, X, Out_grad, *, axis, keepdim):
    return g.reduce_mean_grad(X, Out_grad, axis=axis, keepdim=keepdim)


@reduce_mean.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=(2, 4, 3)),), {"axis": (0, -1), "keepdim": True}


@op("X_grad", no_need_buffer={"X"})
def reduce_mean_grad(X, Out_grad, *, axis: Ints | None = None, keepdim: bool = False):
    """Out_grad / (number of elements in each mean), spread over X's shape."""
    return expanded(Out_grad / X.dtype.type(X.size / max(Out_grad.size, 1)), X.shape, axis).copy()


@reduce_mean_grad.infer
def _(X, Out_grad, *, axis, keepdim):
    return X


@reduce_mean_grad.grad
def _(g, X_grad_grad, *, axis, keepdim):
    return None, g.reduce_mean(X_grad_grad, axis=axis, keepdim=keepdim)


@reduce_mean_grad.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4,))), {"axis": (1,)}
