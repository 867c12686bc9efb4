"""Operators that join arrays and cut them apart."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import COUNT, MISSING, MIXED_TYPES, RANK
from minigraph.kernels.cuda.record.views import cut, joined, joined_from, stacked
from minigraph.opdef import Arrays, Ints, op
from minigraph.types import TensorType, normalize_axis


def merged_shape(X: list[TensorType], but: int | None = None) -> list[int]:
    """The sizes that all of X share, axis `but` left out of the comparison."""
    merged = list(X[0].shape)
    for i, x in enumerate(X):
        require(x.dtype == X[0].dtype, f"X[0] is {X[0].dtype}, X[{i}] is {x.dtype}", MIXED_TYPES, "cast one of them")
        require(x.ndim == X[0].ndim, f"X[0] has rank {X[0].ndim}, X[{i}] has rank {x.ndim}", RANK)
        for axis, size in enumerate(x.shape):
            if axis == but or size == -1:
                continue
            known = merged[axis]
            require(known in (-1, size), f"sizes of axis {axis} differ: {known} so far, X[{i}] has {size}")
            merged[axis] = size
    return merged


@op(joins=joined)
def concat(X: Arrays, *, axis: int = 0, out=None):
    """X[0], X[1], ... joined along `axis`; all other sizes are equal."""
    return np.concatenate(X, axis=axis, out=out[0] if out else None)


@concat.infer
def _(X, *, axis):
    axis = normalize_axis(axis, X[0].ndim)
    shape = merged_shape(X, but=axis)
    sizes = [x.shape[axis] for x in X]
    shape[axis] = -1 if -1 in sizes else sum(sizes)
    return X[0].with_shape(shape)


@concat.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)), rng.normal(size=(1, 3)), rng.normal(size=(4, 3))],), {}
    yield ([rng.normal(size=(2, 3)), rng.normal(size=(2, 2))],), {"axis": -1}
    yield ([rng.normal(size=(2, 3))],), {"axis": 1}
    yield ([rng.normal(size=(2, 0)), rng.normal(size=(2, 3))],), {"axis": 1}


@op("X_grad*", of=concat, no_need_buffer={"X"}, shows=joined_from)
def concat_grad(X: Arrays, Out_grad, *, axis: int = 0):
    """The pieces of Out_grad that came from each of X; views."""
    return np.split(Out_grad, np.cumsum([x.shape[axis] for x in X])[:-1], axis=axis)


@concat_grad.grad
def _(g, X, X_grad_grad, *, axis):
    return [None] * len(X), g.concat(X_grad_grad, axis=axis)


def section_sizes(size: int, sections: tuple[int, ...] | None, num: int | None) -> list[int]:
    """Sizes of the pieces of an axis; -1 where known only at run time."""
    require((sections is None) != (num is None), "split takes either sections or num", AttrError)
    if num is not None:
        require(num > 0, f"num must be positive, is {num}", AttrError)
        require(size == -1 or size % num == 0, f"an axis of size {size} cannot be cut into {num} equal pieces", COUNT)
        return [-1 if size == -1 else size // num] * num
    sizes = list(sections or ())
    require(sizes, "sections is an empty list", MISSING)
    require(min(sizes) >= -1 and sizes.count(-1) <= 1, f"sections {sizes} are sizes, one of them may be -1", AttrError)
    given = sum(s for s in sizes if s >= 0)
    if size == -1:
        return sizes
    fits = given == size or (-1 in sizes and given < size)
    require(fits, f"sections {sizes} do not add up to the axis size {size}", COUNT)
    return [size - given if s == -1 else s for s in sizes]


@op("Out*", shows=cut)
def split(X, *, sections: Ints | None = None, num: int | None = None, axis: int = 0):
    """X cut along `axis`: into pieces of the sizes `sections` (one may be -1), or into `num` equal ones; views.

    ONNX's Split lets the last of num pieces be smaller, here the axis must divide evenly.
    """
    sizes = section_sizes(X.shape[axis], sections, num)
    return np.split(X, np.cumsum(sizes)[:-1], axis=axis)


@split.infer
def _(X, *, sections, num, axis):
    axis = normalize_axis(axis, X.ndim)
    sizes = section_sizes(X.shape[axis], sections, num)
    return [X.with_shape((*X.shape[:axis], s, *X.shape[axis + 1 :])) for s in sizes]


@split.grad
def _(g, Out_grad, *, sections, num, axis):
    return g.concat(Out_grad, axis=axis)


@split.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {"num": 2}
    yield (rng.normal(size=(4, 6)),), {"sections": (1, -1, 2), "axis": -1}
    yield (rng.normal(size=(4, 3)),), {"sections": (4,)}
    yield (rng.normal(size=(0, 3)),), {"num": 2}


@op(joins=stacked)
def stack(X: Arrays, *, axis: int = 0, out=None):
    """X[0], X[1], ... of one shape, joined along a new axis at place `axis` of the result."""
    return np.stack(X, axis=axis, out=out[0] if out else None)


@stack.infer
def _(X, *, axis):
    axis = normalize_axis(axis, X[0].ndim + 1)
    shape = merged_shape(X)
    return X[0].with_shape((*shape[:axis], len(X), *shape[axis:]))


@stack.grad
def _(g, X, Out_grad, *, axis):
    pieces = g.split(Out_grad, num=len(X), axis=axis)
    return [g.squeeze(piece, axes=(axis,)) for piece in pieces]


@stack.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)) for _ in range(3)],), {}
    yield ([rng.normal(size=(2, 3)) for _ in range(2)],), {"axis": -1}
    yield ([rng.normal(size=()) for _ in range(2)],), {}
    yield ([rng.normal(size=(0, 2))],), {"axis": 1}
