"""Places of elements: what coordinates mean in an array laid flat, and who writes a place last.

Gathering and scattering by coordinates is gathering and adding up rows of a flat array at these places.
"""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import RANK, UNKNOWN_SIZE
from minigraph.opdef import op
from minigraph.types import TensorType, int64, normalize_axis

from .index import require_index, require_ints


def _steps(sizes: tuple[int, ...]) -> list[int]:
    """How far a step along each axis leads in a flat array of these sizes."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


@op(traits={"nondifferentiable", "reports"}, no_need_buffer={"X"}, gpu="movement.places")
def flat_index(X, Index):
    """The places in X's first K axes, laid flat, of the coordinates Index[..., K]; of X only the sizes are used.

    A coordinate outside [-size, size) of its axis is a KernelError; negative ones count from the back.
    """
    K = Index.shape[-1]
    total = np.zeros(Index.shape[:-1], np.int64)
    for axis, step in enumerate(_steps(X.shape[:K])):
        size, at = X.shape[axis], Index[..., axis].astype(np.int64)
        require_index(at, -size, size, f"coordinate of axis {axis}")
        total += np.where(at < 0, at + size, at) * step
    return total


@flat_index.infer
def _(X, Index):
    require_ints("Index", Index)
    require(Index.ndim >= 1, "Index is a scalar, its last axis holds coordinates", RANK)
    count = Index.shape[-1]
    require(count != -1, f"how many coordinates Index {Index} holds is known only at run time", UNKNOWN_SIZE)
    require(1 <= count <= X.ndim, f"Index holds {count} coordinates, X has rank {X.ndim}", RANK)
    return TensorType(Index.shape[:-1], int64)


@flat_index.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([[1, 2], [-1, 0]])), {}
    yield (rng.normal(size=(4, 3, 2)), np.array([[[3]], [[-4]]], np.int32)), {}
    yield (rng.normal(size=(2, 3, 2)), np.array([1, -3, 0])), {}
    yield (rng.normal(size=(4, 3)), np.zeros((0, 2), np.int64)), {}


@op(traits={"nondifferentiable", "reports"}, no_need_buffer={"X"}, gpu="movement.places")
def flat_index_along(X, Index, *, axis: int):
    """The places in X, laid flat, of X's elements with Index[...] in the place of their coordinate of `axis`.

    Index has X's rank and, but for `axis`, at most its sizes; of X only the sizes are used. An index outside
    [-size, size) is a KernelError; negative ones count from the back.
    """
    axis %= X.ndim
    size, steps = X.shape[axis], _steps(X.shape)
    require_index(Index, -size, size, "index")
    total = np.where(Index < 0, Index + size, Index).astype(np.int64) * steps[axis]
    for other, step in enumerate(steps):
        if other != axis:
            places = np.arange(Index.shape[other], dtype=np.int64) * step
            total = total + places.reshape(-1, *(1,) * (X.ndim - other - 1))
    return total


@flat_index_along.infer
def _(X, Index, *, axis):
    require_ints("Index", Index)
    require(Index.ndim == X.ndim, f"Index has rank {Index.ndim}, X has rank {X.ndim}", RANK)
    axis = normalize_axis(axis, X.ndim)
    for other, (size, most) in enumerate(zip(Index.shape, X.shape, strict=True)):
        fits = other == axis or -1 in (size, most) or size <= most
        require(fits, f"axis {other} of Index has size {size}, that of X only {most}")
    return TensorType(Index.shape, int64)


@flat_index_along.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([[1, -1, 3]])), {"axis": 0}
    yield (rng.normal(size=(2, 3)), np.array([[1, 2, -3, 0], [0, 0, 1, 2]], np.int32)), {"axis": -1}
    yield (rng.normal(size=(2, 3, 4)), rng.integers(-3, 3, (2, 5, 4))), {"axis": 1}
    yield (rng.normal(size=(3,)), np.array([2, 2, 0])), {"axis": 0}
    yield (rng.normal(size=(2, 3)), np.zeros((2, 0), np.int64)), {"axis": 1}


@op(traits={"nondifferentiable", "reports"}, no_need_buffer={"X"}, gpu="movement.places")
def last_writer(X, Index):
    """Out[v] = the last place of Index that holds v, -1 where none does; v counts X's first axis.

    An index outside [-size, size) is a KernelError; negative ones count from the back.
    """
    size = X.shape[0]
    require_index(Index, -size, size, "index")
    last = np.full(size, -1, np.int64)
    flat = Index.reshape(-1).astype(np.intp)
    np.maximum.at(last, np.where(flat < 0, flat + size, flat), np.arange(flat.size))
    return last


@last_writer.infer
def _(X, Index):
    require_ints("Index", Index)
    require(X.ndim >= 1, "X is a scalar, it has no places", RANK)
    return TensorType(X.shape[:1], int64)


@last_writer.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([2, 0, 2, -1])), {}
    yield (rng.normal(size=(3,)), np.array([[1, 1], [1, 0]], np.int32)), {}
    yield (rng.normal(size=(3,)), np.zeros((0,), np.int64)), {}
