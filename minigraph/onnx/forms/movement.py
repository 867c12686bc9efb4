"""Values made, moved, joined and picked, after ops/movement/."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from minigraph.types import float64, int32, int64

from ..nodes import Nodes, Value
from ..registry import form, same
from .elementwise import everywhere

Ints = tuple[int, ...]

same({"assign": "Identity"}, exact=True)


@form(exact=True)
def fill_constant(g: Nodes, *, shape: Ints, value: Any, dtype: np.dtype) -> Value:
    return g.ConstantOfShape(g.ints(*shape), value=np.full(1, value, dtype), dtype=dtype)


@form(exact=True)
def fill_any_like(g: Nodes, X: Value, *, value: Any, dtype: np.dtype | None) -> Value:
    dtype = dtype or g.types["Out"][0].dtype
    return everywhere(g, X, value, dtype)


@form
def increment(g: Nodes, X: Value, *, step: float) -> Value:
    return X + step


@form
def sum_(g: Nodes, X: Sequence[Value]) -> Value:
    total = g.Identity(X[0]) if len(X) == 1 else X[0]
    for x in X[1:]:
        total = total + x
    return total


@form(exact=True)
def assign_value(g: Nodes, *, values: tuple[Any, ...], shape: Ints, dtype: np.dtype) -> Value:
    return g.const(np.array(values, dtype).reshape(shape), dtype)


@form(exact=True)
def arange(g: Nodes, *, start: Any, end: Any, step: Any, dtype: np.dtype) -> Value:
    (length,) = g.types["Out"][0].shape
    return g.const(start + step * np.arange(length), dtype)


@form(exact=True)
def arange_like(g: Nodes, X: Value, *, axis: int, start: Any, step: Any, dtype: np.dtype) -> Value:
    (length,) = g.types["Out"][0].shape
    if length >= 0:
        return g.const(start + step * np.arange(length), dtype)
    size = g.cast(g.size(X, axis), float64)
    length = g.cast(g.Max(g.Ceil((size - start) / step), 0), int64)
    numbers = g.Range(g.const(0, int64), g.Squeeze(length, g.ints(0)), g.const(1, int64))
    return g.cast(g.cast(numbers, float64) * step + start, dtype)


@form(exact=True)
def shape(g: Nodes, X: Value) -> Value:
    return g.cast(g.Shape(X), int32)


@form(exact=True)
def slice_(
    g: Nodes, X: Value, *, axes: Ints, starts: Ints, ends: Ints, steps: Ints | None, decrease_axes: Ints
) -> Value:
    if not axes:
        return g.Identity(X)
    part = g.Slice(X, g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*steps) if steps else None)
    return g.Squeeze(part, g.ints(*decrease_axes)) if decrease_axes else part


def index(g: Nodes, x: Value) -> Value:
    """Integers in a type that ONNX takes for places."""
    return x if x.dtype in (int32, int64) else g.cast(x, int64)


@form(exact=True)
def gather(g: Nodes, X: Value, Index: Value, *, axis: int) -> Value:
    return g.Gather(X, index(g, Index), axis=axis)


@form(exact=True)
def embedding(g: Nodes, Ids: Value, W: Value, *, padding_idx: int | None) -> Value:
    rows = g.Gather(W, index(g, Ids), axis=0)
    if padding_idx is None:
        return rows
    padding = g.size(W, 0) + padding_idx if padding_idx < 0 else g.ints(padding_idx)
    is_padding = g.Unsqueeze(g.Equal(g.cast(Ids, int64), padding), g.ints(-1))
    rows = g.computed(rows)
    return g.Where(is_padding, g.like(rows, 0), rows)


@form
def tril_triu(g: Nodes, X: Value, *, diagonal: int, lower: bool) -> Value:
    return g.Trilu(X, g.const(diagonal, int64), upper=int(not lower))


@form(exact=True)
def one_hot(g: Nodes, X: Value, *, depth: int, dtype: np.dtype) -> Value:
    return g.cast(g.Equal(g.Unsqueeze(X, g.ints(-1)), np.arange(depth)), dtype)


@form(exact=True)
def concat(g: Nodes, X: Sequence[Value], *, axis: int) -> Value:
    return g.Concat(*X, axis=axis)


@form(exact=True)
def stack(g: Nodes, X: Sequence[Value], *, axis: int) -> Value:
    place = axis % (X[0].ndim + 1)
    return g.Concat(*(g.Unsqueeze(x, g.ints(place)) for x in X), axis=place)


@form(exact=True)
def split(g: Nodes, X: Value, *, sections: Ints | None, num: int | None, axis: int) -> list[Value]:
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
def pad(g: Nodes, X: Value, *, paddings: Ints, value: Any) -> Value:
    if not paddings:
        return g.Identity(X)
    return g.Pad(X, g.ints(*paddings[::2], *paddings[1::2]), g.like(X, value))


@form(exact=True)
def reshape(g: Nodes, X: Value, *, shape: Ints) -> Value:
    made = g.types["Out"][0]
    return g.reshape(X, made.shape if made.is_static else shape)


@form(exact=True)
def transpose(g: Nodes, X: Value, *, perm: Ints) -> Value:
    return g.Transpose(X, perm=tuple(axis % X.ndim for axis in perm)) if perm else g.Identity(X)


@form(exact=True)
def squeeze(g: Nodes, X: Value, *, axes: Ints | None) -> Value:
    dropped = [axis for axis, size in enumerate(X.shape) if size == 1] if axes is None else axes
    return g.Squeeze(X, g.ints(*dropped)) if dropped else g.Identity(X)


@form(exact=True)
def unsqueeze(g: Nodes, X: Value, *, axes: Ints) -> Value:
    return g.Unsqueeze(X, g.ints(*axes)) if axes else g.Identity(X)


@form(exact=True)
def flatten(g: Nodes, X: Value, *, start_axis: int, stop_axis: int) -> Value:
    made = g.types["Out"][0].shape
    if list(made).count(-1) <= 1:
        return g.reshape(X, made)
    start, stop = start_axis % X.ndim, stop_axis % X.ndim
    sizes: chain[Any] = chain(
        (g.size(X, axis) for axis in range(start)), [-1], (g.size(X, axis) for axis in range(stop + 1, X.ndim))
    )
    return g.reshape(X, list(sizes))


@form
def expand(g: Nodes, X: Value, *, shape: Ints) -> Value:
    return g.Expand(X, g.ints(*(1 if size == -1 else size for size in shape)))


@form
def tile(g: Nodes, X: Value, *, repeat_times: Ints) -> Value:
    missing = len(repeat_times) - X.ndim
    x = g.Unsqueeze(X, g.ints(*range(missing))) if missing > 0 else X
    return g.Tile(x, g.ints(*(1,) * -missing, *repeat_times)) if repeat_times else g.Identity(X)


def from_front(g: Nodes, at: Value, size: Value) -> Value:
    """Places of which negative ones count from the back."""
    return g.Where(at < 0, at + size, at)


@form(exact=True)
def flat_index(g: Nodes, X: Value, Index: Value) -> Value:
    coordinates, total, step = g.cast(Index, int64), None, g.const(1, int64)
    for axis in reversed(range(Index.shape[-1])):
        size = g.Squeeze(g.size(X, axis), g.ints(0))
        at = from_front(g, g.Gather(coordinates, g.const(axis, int64), axis=-1), size) * step
        total, step = at if total is None else at + total, step * size
    if total is None:  # no coordinates: the only place there is
        return summed_away(g, coordinates)
    return total


def summed_away(g: Nodes, x: Value) -> Value:
    """Zeros without the last axis."""
    return g.ReduceSum(x, g.ints(-1), keepdims=0)


@form(exact=True)
def flat_index_along(g: Nodes, X: Value, Index: Value, *, axis: int) -> Value:
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
def last_writer(g: Nodes, X: Value, Index: Value) -> Value:
    size, flat = g.size(X, 0), g.reshape(g.cast(Index, int64), [-1])
    nobody = g.ConstantOfShape(size, value=np.full(1, -1, np.int64), dtype=int64)
    places = g.Range(g.const(0, int64), g.Size(flat), g.const(1, int64))
    return g.ScatterElements(nobody, from_front(g, flat, size), places, axis=0, reduction="max")
