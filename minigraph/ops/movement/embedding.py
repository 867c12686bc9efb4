"""Rows of a table by integer index."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import RANK
from minigraph.opdef import op

from .index import add_rows, require_index, require_ints


@op(traits={"reports"}, gpu="movement.index")
def embedding(Ids, W, *, padding_idx: int | None = None, out=None):
    """Out[...] = W[Ids[...]]; where Ids is padding_idx the row is zero and has no gradient.

    Ids of any rank, integers in [0, rows of W), others are a KernelError: a negative one does not
    count from the back. A negative padding_idx does.
    """
    require_index(Ids, 0, W.shape[0], "id")
    Out = np.take(W, Ids, axis=0, out=out[0] if out else None, mode="clip")  # "raise" would copy Out
    if padding_idx is not None:
        Out[Ids == padding_idx % W.shape[0]] = 0
    return Out


@embedding.infer
def _(Ids, W, *, padding_idx):
    require_ints("Ids", Ids)
    require(W.ndim == 2, f"W must be [rows, width], is {W}", RANK)
    require(W.is_float, f"W must be a float, is {W.dtype}", DTypeError)
    rows = W.shape[0]
    require(
        padding_idx is None or rows == -1 or -rows <= padding_idx < rows,
        f"padding_idx {padding_idx} is no row of W, it must lie in [{-rows}, {rows})",
    )
    return W.with_shape((*Ids.shape, W.shape[1]))


@embedding.samples
def _(rng):
    yield (np.array([[3, 0], [1, 3]]), rng.normal(size=(5, 4))), {}
    yield (np.array([3, 0, 1, 3], np.int32), rng.normal(size=(5, 4))), {"padding_idx": 3}
    yield (np.array([4, 0, 4]), rng.normal(size=(5, 2))), {"padding_idx": -1}
    yield (np.array(2), rng.normal(size=(5, 4))), {}
    yield (np.zeros((0, 2), np.int64), rng.normal(size=(5, 4))), {}


@op("W_grad", of=embedding, traits={"reports"}, no_need_buffer={"W"}, gpu="movement.index")
def embedding_grad(Ids, W, Out_grad, *, padding_idx: int | None = None, out=None):
    """W_grad[v] = the sum of Out_grad over the places where Ids is v, zero for padding_idx.

    Dense, and the same bits in every run.
    """
    require_index(Ids, 0, W.shape[0], "id")
    rows = Out_grad.reshape(Ids.size, W.shape[1])
    W_grad = add_rows(Ids.reshape(-1), rows, W.shape[0], out[0] if out else None)
    if padding_idx is not None:
        W_grad[padding_idx] = 0
    return W_grad


@embedding_grad.grad
def _(g, Ids, W_grad_grad, *, padding_idx):
    return None, None, g.embedding(Ids, W_grad_grad, padding_idx=padding_idx)
