"""Values made, moved, joined and picked, after ops/movement/."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from minigraph.types import float64, int32, int64

from ..nodes import Nodes, Term
from ..registry import form, forms, same
from .elementwise import everywhere

Ints = tuple[int, ...]

same({"assign": "Identity"}, exact=True)


@form(exact=True)
def fill_any_like(g: Nodes, X: Term, *, value: Any, dtype: np.dtype | None) -> Term:
    dtype = dtype or g.types["Out"][0].dtype
    return everywhere(g, X, value, dtype)


@form
def sum_(g: Nodes, X: Sequence[Term]) -> Term:
    total = g.Identity(X[0]) if len(X) == 1 else X[0]
    for x in X[1:]:
        total = total + x
    return total


@form(exact=True)
def arange(g: Nodes, *, start: Any, end: Any, step: Any, dtype: np.dtype) -> Term:
    (length,) = g.types["Out"][0].shape
    return g.const(start + step * np.arange(length), dtype)


@form(exact=True)
def arange_like(g: Nodes, X: Term, *, axis: int, start: Any, step: Any, dtype: np.dtype) -> Term:
    (length,) = g.types["Out"][0].shape
    if length >= 0:
        return g.const(start + step * np.arange(length), dtype)
    size = g.cast(g.size(X, axis), float64)
    length = g.cast(g.Max(g.Ceil((size - start) / step), 0), int64)
    numbers = g.Range(g.const(0, int64), g.Squeeze(length, g.ints(0)), g.const(1, int64))
    return g.cast(g.cast(numbers, float64) * step + start, dtype)


@form(exact=True)
def slice_(
    g: Nodes, X: Term, *, axes: Ints, starts: Ints, ends: Ints, steps: Ints | None, decrease_axes: Ints
) -> Term:
    if not axes:
        return g.Identity(X)
    part = g.Slice(X, g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*steps) if steps else None)
    return g.Squeeze(part, g.ints(*decrease_axes)) if decrease_axes else part


def index(g: Nodes, x: Term) -> Term:
    """Integers in a type that ONNX takes for places."""
    return x if x.dtype in (int32, int64) else g.cast(x, int64)


@form(exact=True)
def embedding(g: Nodes, Ids: Term, W: Term, *, padding_idx: int | None) -> Term:
    rows = g.Gather(W, index(g, Ids), axis=0)
    if padding_idx is None:
        return rows
    padding = g.size(W, 0) + padding_idx if padding_idx < 0 else g.ints(padding_idx)
    is_padding = g.Unsqueeze(g.Equal(g.cast(Ids, int64), padding), g.ints(-1))
    rows = g.computed(rows)
    return g.Where(is_padding, g.like(rows, 0), rows)


@form(exact=True)
def stack(g: Nodes, X: Sequence[Term], *, axis: int) -> Term:
    place = axis % (X[0].ndim + 1)
    return g.Concat(*(g.Unsqueeze(x, g.ints(place)) for x in X), axis=place)


@form(exact=True)
def split(g: Nodes, X: Term, *, sections: Ints | None, num: int | None, axis: int) -> list[Term]:
    count, sizes = len(g.types["Out"]), [t.shape[axis] for t in g.types["Out"]]
    if -1 not in sizes:
        pieces = g.Split(X, g.ints(*sizes), axis=axis, outputs=count)
    elif sections is None:
        pieces = g.Split(X, None, axis=axis, num_outputs=count, outputs=count)
    else:  # one section takes what the others leave
        left = g.size(X, axis) - int(sum(size for size in sections if size >= 0))
        parts = [g.ints(size) if size >= 0 else left for size in sections]
        pieces = g.Split(X, g.Concat(*parts, axis=0), axis=axis, outputs=count)
    return [pieces] if count == 1 else list(pieces)


@form
def pad(g: Nodes, X: Term, *, paddings: Ints, value: Any) -> Term:
    if not paddings:
        return g.Identity(X)
    return g.Pad(X, g.ints(*paddings[::2], *paddings[1::2]), g.like(X, value))


@form(exact=True)
def reshape(g: Nodes, X: Term, *, shape: Ints) -> Term:
    made = g.types["Out"][0]
    return g.reshape(X, made.shape if made.is_static else shape)


@form(exact=True)
def squeeze(g: Nodes, X: Term, *, axes: Ints | None) -> Term:
    dropped = [axis for axis, size in enumerate(X.shape) if size == 1] if axes is None else axes
    return g.Squeeze(X, g.ints(*dropped)) if dropped else g.Identity(X)


@form(exact=True)
def flatten(g: Nodes, X: Term, *, start_axis: int, stop_axis: int) -> Term:
    made = g.types["Out"][0].shape
    if list(made).count(-1) <= 1:
        return g.reshape(X, made)
    start, stop = start_axis % X.ndim, stop_axis % X.ndim
    sizes: chain[Any] = chain(
        (g.size(X, axis) for axis in range(start)), [-1], (g.size(X, axis) for axis in range(stop + 1, X.ndim))
    )
    return g.reshape(X, list(sizes))


@form
def tile(g: Nodes, X: Term, *, repeat_times: Ints) -> Term:
    missing = len(repeat_times) - X.ndim
    x = g.Unsqueeze(X, g.ints(*range(missing))) if missing > 0 else X
    return g.Tile(x, g.ints(*(1,) * -missing, *repeat_times)) if repeat_times else g.Identity(X)


def from_front(g: Nodes, at: Term, size: Term) -> Term:
    """Places of which negative ones count from the back."""
    return g.Where(at < 0, at + size, at)


@form(exact=True)
def flat_index(g: Nodes, X: Term, Index: Term) -> Term:
    coordinates, total, step = g.cast(Index, int64), None, g.const(1, int64)
    for axis in reversed(range(Index.shape[-1])):
        size = g.Squeeze(g.size(X, axis), g.ints(0))
        at = from_front(g, g.Gather(coordinates, g.const(axis, int64), axis=-1), size) * step
        total, step = at if total is None else at + total, step * size
    if total is None:  # no coordinates: the only place there is
        return summed_away(g, coordinates)
    return total


def summed_away(g: Nodes, x: Term) -> Term:
    """Zeros without the last axis."""
    return g.ReduceSum(x, g.ints(-1), keepdims=0)


@form(exact=True)
def flat_index_along(g: Nodes, X: Term, Index: Term, *, axis: int) -> Term:
    total, step = None, g.const(1, int64)
    for other in reversed(range(X.ndim)):
        size = g.Squeeze(g.size(X, other), g.ints(0))
        if other == axis % X.ndim:
            places = from_front(g, g.cast(Index, int64), size)
        else:
            there = g.Squeeze(g.size(Index, other), g.ints(0))
            places = g.Range(g.const(0, int64), there, g.const(1, int64))
            places = g.reshape(places, [-1, *(1,) * (X.ndim - other - 1)])
        places = places * step
        total, step = places if total is None else total + places, step * size
    assert total is not None
    return total


@form(exact=True)
def last_writer(g: Nodes, X: Term, Index: Term) -> Term:
    size, flat = g.size(X, 0), g.reshape(g.cast(Index, int64), [-1])
    nobody = g.ConstantOfShape(size, value=np.full(1, -1, np.int64), dtype=int64)
    places = g.Range(g.const(0, int64), g.Size(flat), g.const(1, int64))
    return g.ScatterElements(nobody, from_front(g, flat, size), places, axis=0, reduction="max")


forms(
    increment=lambda g, X, *, step: X + step,
    tril_triu=lambda g, X, *, diagonal, lower: g.Trilu(X, g.const(diagonal, int64), upper=int(not lower)),
    expand=lambda g, X, *, shape: g.Expand(X, g.ints(*(1 if size == -1 else size for size in shape))),
)
forms(
    exact=True,
    fill_constant=lambda g, *, shape, value, dtype: (
        g.ConstantOfShape(g.ints(*shape), value=np.full(1, value, dtype), dtype=dtype)
    ),
    assign_value=lambda g, *, values, shape, dtype: g.const(np.array(values, dtype).reshape(shape), dtype),
    shape=lambda g, X: g.cast(g.Shape(X), int32),
    gather=lambda g, X, Index, *, axis: g.Gather(X, index(g, Index), axis=axis),
    one_hot=lambda g, X, *, depth, dtype: g.cast(g.Equal(g.Unsqueeze(X, g.ints(-1)), np.arange(depth)), dtype),
    concat=lambda g, X, *, axis: g.Concat(*X, axis=axis),
    transpose=lambda g, X, *, perm: g.Transpose(X, perm=tuple(a % X.ndim for a in perm)) if perm else g.Identity(X),
    unsqueeze=lambda g, X, *, axes: g.Unsqueeze(X, g.ints(*axes)) if axes else g.Identity(X),
)
