"""Many arrays as one, so that ranks reduce all of them together."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.kernels.cuda.record.views import from_a_row, in_a_row
from minigraph.opdef import Arrays, op


@op(joins=in_a_row)
def coalesce(X: Arrays, *, out=None):
    """X[0], X[1], ... of any shapes, flat, one behind the other."""
    return np.concatenate([x.reshape(-1) for x in X], out=out[0] if out else None)


@coalesce.infer
def _(X):
    for i, x in enumerate(X):
        require(x.dtype == X[0].dtype, f"X[0] is {X[0].dtype}, X[{i}] is {x.dtype}", DTypeError, "cast one of them")
    sizes = [x.size for x in X]
    return X[0].with_shape((-1 if any(-1 in x.shape for x in X) else sum(sizes),))


@coalesce.grad
def _(g, X, Out_grad):
    return g.coalesce_grad(X, Out_grad)


@coalesce.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)), rng.normal(size=()), rng.normal(size=(0, 4)), rng.normal(size=(5,))],), {}
    yield ([rng.normal(size=(2, 3))],), {}


@op("X_grad*", no_need_buffer={"X"}, shows=from_a_row)
def coalesce_grad(X: Arrays, Out_grad):
    """The pieces of the flat Out_grad in the shapes of X; views."""
    ends = np.cumsum([x.size for x in X])
    return [Out_grad[end - x.size : end].reshape(x.shape) for x, end in zip(X, ends, strict=True)]


@coalesce_grad.infer
def _(X, Out_grad):
    return X


@coalesce_grad.grad
def _(g, X, X_grad_grad):
    return [None] * len(X), g.coalesce(X_grad_grad)


@coalesce_grad.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)), rng.normal(size=(4,))], rng.normal(size=(10,))), {}
