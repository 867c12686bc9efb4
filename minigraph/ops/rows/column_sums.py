"""Sums over all rows, which a kernel that works on rows takes along."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import RANK
from minigraph.opdef import Rows, op

OVER_ROWS = Rows(lambda attrs, ndim: ndim - 1 if ndim > 1 else None, sums=frozenset({"Out"}))


@op(gpu="elementwise.reduce", rows=OVER_ROWS)
def column_sums(X):
    """Out[n] = the sum of X[..., n] over all axes but the last, as in the gradient of a bias; floats of rank >= 2.

    It is reduce_sum in the form that fuse_elementwise takes into the kernel that computes X.
    """
    return np.sum(X, axis=tuple(range(X.ndim - 1)))


@column_sums.infer
def _(X):
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require(X.ndim >= 2, f"X must have rank 2 or more, is {X}", RANK)
    return X.with_shape(X.shape[-1:])


@column_sums.cuda_rows
def _(r):
    r.lines.append(f"ALL if (VALID(i)) {r.outs['Out']}[i] += {r.read('X')};")


@column_sums.grad
def _(g, X, Out_grad):
    return g.reduce_sum_grad(X, Out_grad, axis=tuple(range(X.type.ndim - 1)))


@column_sums.samples
def _(rng):
    for shape in ((4, 6), (2, 3, 5), (1, 1), (0, 3)):
        yield (rng.normal(size=shape),), {}
