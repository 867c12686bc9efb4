"""Collectives on a CPU: what the operators of ops/collective do where several ranks run."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.kernels.groups import of_size, present


def c_allreduce_sum(X: np.ndarray, *, out: tuple[Any, ...] | None = None) -> np.ndarray:
    """The sum over all ranks."""
    return present().all_reduce(X, out[0] if out else None)


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
