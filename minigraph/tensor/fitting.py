"""Tensors fitted to each other: axes added, windows, slices and diagonals replaced, pairs of rows, distances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, ShapeError, require
from minigraph.errors.kinds import AXIS, COUNT, MISSING, RANK, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import broadcast_shapes, normalize_axis, normalize_shape

from .arguments import as_type, constant, output_prefix, variable
from .grids import diag_embed
from .logic import where
from .manipulation import concat, gather, split, transpose, unsqueeze
from .pieces import slice
from .statistics import norm


def _at_least(call: str, inputs: tuple[Any, ...], ndim: int, name: str | None) -> Any:
    made = []
    for x in inputs:
        x = variable(x, call)
        missing = {1: [0], 2: [0, 1][: 2 - x.ndim], 3: {0: [0, 1, 2], 1: [0, 2], 2: [2]}.get(x.ndim, [])}[ndim]
        made.append(unsqueeze(x, missing, name) if x.ndim < ndim else x)
    require(made, f"{call} needs at least one Variable", MISSING)
    return made[0] if len(made) == 1 else made


@whole
def atleast_1d(*inputs: Any, name: str | None = None) -> Any:
    """Each input, scalars as vectors of one element; a list of several."""
    return _at_least("atleast_1d", inputs, 1, name)


@whole
def atleast_2d(*inputs: Any, name: str | None = None) -> Any:
    """Each input, vectors as rows of a matrix; a list of several."""
    return _at_least("atleast_2d", inputs, 2, name)


@whole
def atleast_3d(*inputs: Any, name: str | None = None) -> Any:
    """Each input, a vector [n] as [1, n, 1] and a matrix [m, n] as [m, n, 1]; a list of several."""
    return _at_least("atleast_3d", inputs, 3, name)


def broadcast_shape(x_shape: Any, y_shape: Any) -> list[int]:
    """The shape that tensors of two shapes broadcast to."""
    return list(broadcast_shapes(normalize_shape(x_shape), normalize_shape(y_shape)))


def vsplit(x: Variable, num_or_sections: Any, name: str | None = None) -> list[Variable]:
    """split along axis 0 of what has two axes or more."""
    require(variable(x, "vsplit").ndim >= 2, f"x must have two axes or more, is {x}", RANK)
    return split(x, num_or_sections, 0, name)


def _known(x: Variable, axis: int, call: str) -> tuple[int, int]:
    """`axis` counted from the front, and its size."""
    axis = normalize_axis(axis, x.ndim)
    require(x.shape[axis] >= 0, f"{call}: the size of axis {axis} must be known, x is {x}", UNKNOWN_SIZE)
    return axis, x.shape[axis]


@whole
def unfold(x: Variable, axis: int, size: int, step: int, name: str | None = None) -> Variable:
    """Windows of `size` elements along `axis`, `step` apart; the elements of a window lie along a new last axis."""
    x = variable(x, "unfold")
    axis, length = _known(x, axis, "unfold")
    require(step > 0, f"step must be positive, is {step}", AttrError)
    require(0 <= size <= length, f"size {size} is not in [0, {length}], the size of axis {axis}", AttrError)
    g = builder_of(x)
    starts = g.arange(start=0, end=length - size + 1, step=step)
    windows = gather(x, g.elementwise_add(g.unsqueeze(starts, axes=[1]), g.arange(end=size)), axis)
    order = [a for a in range(windows.ndim) if a != axis + 1]
    return transpose(windows, [*order, axis + 1], name=name)


@whole
def select_scatter(x: Variable, values: Variable, axis: int, index: int, name: str | None = None) -> Variable:
    """x with `values` in the place of x[index] along `axis`."""
    x, values = variable(x, "select_scatter"), variable(values, "select_scatter", "values")
    axis, size = _known(x, axis, "select_scatter")
    require(-size <= index < size, f"index {index} is out of range [{-size}, {size})", AttrError)
    at = index % size
    parts = [slice(x, [axis], [0], [at]), unsqueeze(as_type(values, x.dtype), axis), slice(x, [axis], [at + 1], [size])]
    return concat(parts, axis, name=name)


@whole
def diagonal_scatter(
    x: Variable, y: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None
) -> Variable:  # fmt: skip
    """x with y on the diagonal of the plane of two axes, which y has as its last axis."""
    x, y = variable(x, "diagonal_scatter"), variable(y, "diagonal_scatter", "y")
    (first, rows), (second, columns) = (_known(x, a, "diagonal_scatter") for a in (axis1, axis2))
    require(first != second, "axis1 and axis2 are one axis", AXIS)
    g, last = builder_of(x), x.ndim - 1
    length = max(min(rows - max(-offset, 0), columns - max(offset, 0)), 0)
    others = [a for a in range(x.ndim) if a not in (first, second)]
    wanted = (*(x.shape[a] for a in others), length)
    same = len(wanted) == y.ndim and all(-1 in (a, b) or a == b for a, b in zip(wanted, y.shape, strict=True))
    require(same, f"y is {y}, the diagonal has the shape {list(wanted)}", ShapeError)
    on = diag_embed(as_type(y, x.dtype), offset)
    side = length + abs(offset)  # of its matrices
    sizes = [min(side, rows), min(side, columns)]
    on = slice(on, [last - 1, last], [0, 0], sizes)
    around = [0] * (2 * last - 2) + [0, rows - sizes[0], 0, columns - sizes[1]]
    order = [*others, first, second]
    back = [order.index(a) for a in range(x.ndim)]
    mask = g.equal(g.unsqueeze(g.arange(start=offset, end=rows + offset), axes=[1]), g.arange(end=columns))
    plane = transpose(x, order)
    return transpose(where(mask, g.pad(on, paddings=around), plane), back, name=name)


@whole
def combinations(x: Variable, r: int = 2, with_replacement: bool = False, name: str | None = None) -> Variable:
    """All r elements of a vector, in the order of their places, one choice in each row; at most 4096 numbers."""
    x = variable(x, "combinations")
    require(x.ndim == 1, f"x must be a vector, is {x}", RANK)
    require(isinstance(r, int) and r >= 0, f"r must be an int >= 0, is {r!r}", AttrError)
    _, size = _known(x, 0, "combinations")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array([*choose(range(size), r)], np.int64).reshape(-1, r)
    return gather(x, constant(places, places.dtype, x), name=name)


@whole
def cross(x: Variable, y: Variable, axis: int = 9, name: str | None = None) -> Variable:
    """The cross product of vectors of three numbers along `axis` (9: the first axis of size 3)."""
    x, y = variable(x, "cross"), variable(y, "cross", "y")
    require(axis != 9 or 3 in x.shape, f"x must have an axis of size 3, is {x}", ShapeError)
    axis = x.shape.index(3) if axis == 9 else normalize_axis(axis, x.ndim)
    fits = x.ndim == y.ndim and x.shape[axis] == y.shape[axis] == 3
    require(fits, f"axis {axis} of x and y must have size 3, they are {x} and {y}", ShapeError)
    g = builder_of(x)
    next_one, one_after = (g.assign_value(values=v, shape=[3], dtype="int64") for v in ([1, 2, 0], [2, 0, 1]))
    forth = gather(x, next_one, axis) * gather(y, one_after, axis)
    back = gather(x, one_after, axis) * gather(y, next_one, axis)
    return g.elementwise_sub(forth, back, name=output_prefix("cross", name))


MODES = "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"


@whole
def cdist(
    x: Variable, y: Variable, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """The p-norm of every row of x [..., m, k] minus every row of y [..., n, k]: [..., m, n].

    compute_mode  accepted; the differences are always computed, which is exact and takes m * n * k numbers
    """
    x, y = variable(x, "cdist"), variable(y, "cdist", "y")
    require(compute_mode in MODES, f"compute_mode {compute_mode!r} is none of {', '.join(MODES)}", AttrError)
    require(min(x.ndim, y.ndim) >= 2, f"x and y must have two axes or more, are {x} and {y}", RANK)
    return norm(unsqueeze(x, -2) - unsqueeze(y, -3), float(p), -1, name=name)


@whole
def renorm(x: Variable, p: float, axis: int, max_norm: float) -> Variable:
    """x, each slice along `axis` made smaller so that its p-norm is at most max_norm."""
    x = variable(x, "renorm")
    axis = normalize_axis(axis, x.ndim)
    require(p > 0 and max_norm >= 0, f"p {p} must be positive, max_norm {max_norm} not negative", AttrError)
    g, others = builder_of(x), [a for a in range(x.ndim) if a != axis]
    size = norm(x, float(p), others, keepdim=True) if others else g.abs(x)
    large = size > float(max_norm)
    divisor = where(large, size, g.fill_any_like(size, value=1.0))
    return x * where(large, max_norm / divisor, g.fill_any_like(size, value=1.0))


@whole
def as_strided(x: Variable, shape: Any, stride: Any, offset: int = 0, name: str | None = None) -> Variable:
    """A copy of the elements of x, laid flat, at the places offset + sum of index[i] * stride[i]."""
    x = variable(x, "as_strided")
    sizes, steps = normalize_shape(shape), list(stride)
    require(len(sizes) == len(steps), f"{len(steps)} strides for {len(sizes)} sizes", AttrError)
    size = math.prod(x.shape) if -1 not in x.shape else -1
    require(size >= 0 and -1 not in sizes, f"sizes must be known, x is {x}, shape {list(sizes)}", UNKNOWN_SIZE)
    last = offset + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    fits = 0 in sizes or (min(steps, default=0) >= 0 and offset >= 0 and last < size)
    require(fits, f"the last place is {last}, x has {size} elements", COUNT)
    g = builder_of(x)
    places = g.fill_constant(shape=sizes, value=offset, dtype="int64")
    for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
        row = g.scale(g.arange(end=n), scale=float(step))
        places = g.elementwise_add(places, g.reshape(row, shape=[n if a == axis else 1 for a in range(len(sizes))]))
    return gather(g.flatten(x), places, name=name)


__all__ = [
    "as_strided", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_shape", "cdist", "combinations", "cross",
    "diagonal_scatter", "renorm", "select_scatter", "unfold", "vsplit",
]  # fmt: skip
