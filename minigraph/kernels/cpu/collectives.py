"""Collectives on a CPU: what the operators of ops/collective do where several ranks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.kernels.groups import of_size, present
from minigraph.kernels.one_piece import begin, in_one_piece
from minigraph.kernels.pieces import piece, piece_size
from minigraph.types import as_dtype


def c_allreduce_sum(X: np.ndarray, *, out: tuple[Any, ...] | None = None) -> np.ndarray:
    """The sum over all ranks."""
    return present().all_reduce(X, out[0] if out else None)


def c_allreduce_coalesced(
    X: Sequence[np.ndarray], *, sent: str, out: tuple[Any, ...] | None = None
) -> list[np.ndarray]:
    """The sums over all ranks; nothing is copied where the arrays are updated in place and lie in one piece."""
    made = list(out[0]) if out and out[0] is not None and all(to is not None for to in out[0]) else None
    bucket = in_one_piece(made) if made else None
    if bucket is None or made is None:
        bucket = np.concatenate([x.reshape(-1) for x in X])
        made = _cut(_summed(bucket, sent), [x.size for x in X])
        return [to.reshape(x.shape) for to, x in zip(made, X, strict=True)]
    for x, to in zip(X, made, strict=True):
        if begin(x) != begin(to):
            to[...] = x
    _summed(bucket, sent)
    return made


def _summed(x: np.ndarray, sent: str) -> np.ndarray:
    """x, which becomes the sum over all ranks."""
    narrow = x if sent == "auto" else x.astype(as_dtype(sent))
    present().all_reduce(narrow, narrow)
    if narrow is not x:
        x[...] = narrow
    return x


def c_reduce_sum(X: np.ndarray, *, root: int) -> np.ndarray:
    """The sum over all ranks on rank `root`, zeros on the others."""
    return present().reduce(X, root)


def c_broadcast(X: np.ndarray, *, root: int) -> np.ndarray:
    """What rank `root` has."""
    return present().broadcast(X, root)


def c_allgather(X: np.ndarray, *, nranks: int) -> np.ndarray:
    """What all ranks have, joined."""
    return of_size(nranks).all_gather(X)


def c_reducescatter(X: np.ndarray, *, nranks: int) -> np.ndarray:
    """A part of the sum over all ranks."""
    return of_size(nranks).reduce_scatter(X)


def barrier(X: np.ndarray) -> np.ndarray:
    """A copy of X when all ranks have come."""
    present().barrier()
    return np.array(X)


def c_shards(X: list[np.ndarray], *, nranks: int) -> list[np.ndarray]:
    """This rank's piece of each."""
    group = of_size(nranks)
    return [piece(x, group.rank, nranks) for x in X]


def c_reduce_shards(X: list[np.ndarray], *, nranks: int) -> list[np.ndarray]:
    """This rank's piece of each sum over all ranks; all arrays travel together."""
    group = of_size(nranks)
    rows = np.concatenate([piece(x, r, nranks) for r in range(nranks) for x in X])
    return _cut(group.reduce_scatter(rows), [piece_size(x.size, nranks) for x in X])


def c_gather_shards(
    X: list[np.ndarray], Like: list[np.ndarray], *, nranks: int, out: tuple[Any, ...] | None = None
) -> list[np.ndarray]:
    """What all ranks' pieces are together; they travel together."""
    rows = of_size(nranks).all_gather(np.concatenate(X)).reshape(nranks, -1)
    given = (out[0] if out else None) or [None] * len(X)
    made = [np.empty(like.shape, x.dtype) if to is None else to for x, like, to in zip(X, Like, given, strict=True)]
    start = 0
    for x, to in zip(X, made, strict=True):
        to[...] = rows[:, start : start + x.size].reshape(-1)[: to.size].reshape(to.shape)
        start += x.size
    return made


def _cut(flat: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    ends = np.cumsum(sizes)
    return [flat[end - size : end].copy() for size, end in zip(sizes, ends, strict=True)]
