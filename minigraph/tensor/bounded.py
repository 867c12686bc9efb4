"""Results whose size depends on values.

    mg.nonzero(x)           in a run the elements are counted, and the call waits for their number
    mg.nonzero(x, size=n)   memory is planned before a run: what is beyond the bound is left out, and places that are
                            left over hold `fill_value`

Where the values come from constants the size is known without both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import EMPTY, MISSING, RANK, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.known import values_of
from minigraph.types import as_dtype, bool_

from .arguments import as_type, output_prefix, variable
from .logic import where as chosen
from .manipulation import concat, flatten, gather, reshape, transpose
from .math import cast, cumsum
from .pieces import broadcast_tensors, slice
from .statistics import any
from .waiting.calls import wait


def _bound(size: Any, x: Variable, count: Callable[[np.ndarray], Any]) -> int | None:
    """The size of a result: as given, or counted in the values of x where every run has the same, else None."""
    if size is None:
        values = values_of(x)
        return None if values is None else int(count(values))
    fits = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    require(fits, f"size must be an int >= 0, is {size!r}", AttrError)
    return size


def _counted(call: str, flags: Variable, **given: Any) -> Any:
    """A call that waits for the number of True in `flags`, its size."""
    count = builder_of(flags).reduce_sum(cast(flags, "int64"))
    return wait(call, given | {"size": count}, ["size"])


def _first_places(flags: Variable, size: int) -> tuple[Variable, Variable]:
    """(places of the first `size` True in a vector, whether there are so many); of the rest the place is 0."""
    g = builder_of(flags)
    numbers = cumsum(cast(flags, "int64"), 0)  # how many up to each place: rising, so it can be searched
    wanted = g.arange(start=1, end=size + 1)
    count = g.reduce_sum(cast(flags, "int64"))
    there = wanted <= count
    found = g.searchsorted(numbers, wanted)
    return g.where(there, found, g.fill_any_like(found, value=0)), there


@whole
def nonzero(
    x: Variable, as_tuple: bool = False, *, size: int | None = None, fill_value: int = -1, name: str | None = None
) -> Any:  # fmt: skip
    """The coordinates [size, rank] of the first `size` elements that are not 0, int64; then rows of fill_value.

    as_tuple  a column [size, 1] for each axis instead
    """
    x = variable(x, "nonzero")
    size = _bound(size, x, np.count_nonzero)
    require(x.ndim > 0, "x is a scalar, it has no coordinates", RANK)
    g = builder_of(x)
    flags = x if x.dtype == bool_ else g.not_equal(x, g.fill_any_like(x, value=0))
    if size is None:
        return _counted("nonzero", flags, x=x, as_tuple=as_tuple, name=name)
    require(-1 not in x.shape[1:], f"sizes of {x} but for the first one must be known", UNKNOWN_SIZE)
    places, there = _first_places(flatten(flags), size)
    columns, rest = [], places
    for step in reversed(x.shape[1:]):
        columns.append(rest % step if step else rest)
        rest = rest // step if step else rest
    columns.append(rest)
    missing = g.fill_any_like(places, value=fill_value)
    columns = [g.unsqueeze(g.where(there, column, missing), axes=[1]) for column in reversed(columns)]
    if as_tuple:
        return tuple(columns)
    return g.concat(columns, axis=1, name=output_prefix("nonzero", name))


@whole
def where(condition: Variable, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """x where `condition`, else y; all three broadcast. x and y may be numbers or small NumPy arrays.

    Without x and y the places where it holds: a column [n, 1] for each axis.
    """
    if x is None and y is None:
        return nonzero(variable(condition, "where", "condition"), as_tuple=True)
    if x is None or y is None:
        raise MISSING("x and y are both needed, or none of them", call="where", site=call_site())
    return chosen(condition, x, y, name)


@whole
def masked_select(
    x: Variable, mask: Variable, name: str | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Variable:  # fmt: skip
    """The first `size` elements of x where `mask` is True, in a row, then fill_value; x and mask broadcast."""
    x, mask = variable(x, "masked_select"), variable(mask, "masked_select", "mask")
    size = _bound(size, mask if x.type.is_static else x, lambda values: int(
        np.broadcast_to(values, np.broadcast_shapes(mask.shape, x.shape)).sum()))  # fmt: skip
    require(mask.dtype == bool_, f"mask must be bool, is {mask}", AttrError)
    whole_x = x
    if x.shape != mask.shape or -1 in x.shape:
        x, mask = broadcast_tensors([x, as_type(mask, x.dtype)])
        mask = as_type(mask, bool_)
    if size is None:
        return _counted("masked_select", mask, x=whole_x, mask=mask, name=name)
    places, there = _first_places(flatten(mask), size)
    return chosen(there, gather(flatten(x), places), fill_value, name=name)


def _differs(rows: Variable) -> Variable:
    """Of rows [n, k] which ones differ from the one before; the first one does."""
    g = builder_of(rows)
    changed = any(slice(rows, [0], [1], [2**62]) != slice(rows, [0], [0], [-1]), 1)
    first = g.fill_any_like(slice(rows, [0], [0], [1]), value=True, dtype=bool_)
    return concat([any(first, 1), changed], 0)


def _runs(
    rows: Variable, size: int, wanted: tuple[bool, bool]
) -> tuple[Variable, Variable, Variable | None, Variable | None]:  # fmt: skip
    """Of rows [n, k]: (first places of the first `size` runs, whether they are there, numbers of runs, lengths)."""
    g, flags = builder_of(rows), _differs(rows)
    places, there = _first_places(flags, size)
    numbers = g.scale(cumsum(cast(flags, "int64"), 0), bias=-1.0)
    lengths = None
    if wanted[1]:
        ones = g.fill_any_like(numbers, value=1)
        zeros = g.fill_constant(shape=(size + 1,), value=0, dtype="int64")
        lengths = slice(g.gather_grad(zeros, g.clip(numbers, max=float(size)), ones, axis=0), [0], [0], [size])
    return places, there, numbers if wanted[0] else None, lengths


def _number_of_runs(values: np.ndarray, axis: int | None) -> int:
    rows = values.reshape(-1, 1) if axis is None else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    return min(len(rows), 1) + int((rows[1:] != rows[:-1]).any(axis=1).sum())


def _as_rows(x: Variable, axis: int | None) -> tuple[Variable, list[int]]:
    """x as rows [n, k] that are compared, and the shape of one row; of None each element."""
    if axis is None:
        return reshape(x, [-1, 1]), []
    order = [axis % x.ndim, *(a for a in range(x.ndim) if a != axis % x.ndim)]
    moved = transpose(x, order) if axis % x.ndim else x
    require(-1 not in moved.shape[1:], f"sizes of {x} but for axis {axis} must be known", UNKNOWN_SIZE)
    return (flatten(moved, 1) if moved.ndim > 1 else reshape(moved, [-1, 1])), list(moved.shape[1:])


def _back(rows: Variable, shape: list[int], axis: int | None, there: Variable, fill: Any) -> Variable:
    """Rows in the shape that they had, those that are not there filled."""
    g = builder_of(rows)
    filled = chosen(g.unsqueeze(there, axes=[1]), rows, fill)
    if axis is None:
        return reshape(filled, [-1])
    whole_rows = reshape(filled, [filled.shape[0], *shape])
    at = axis % whole_rows.ndim
    return transpose(whole_rows, [*range(1, at + 1), 0, *range(at + 1, whole_rows.ndim)]) if at else whole_rows


@whole
def unique_consecutive(
    x: Variable, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None,
    dtype: Any = "int64", name: str | None = None, *, size: int | None = None, fill_value: Any = 0,
) -> Any:  # fmt: skip
    """The first `size` elements (slices along `axis`) that differ from the one before them, then fill_value.

    return_inverse  also the number of the run of each element;  return_counts: also the lengths of runs, 0 where
                    there is none. Both have the type `dtype`.
    """
    x = variable(x, "unique_consecutive")
    size = _bound(size, x, lambda v: _number_of_runs(v, axis))
    rows, shape = _as_rows(x, axis)
    if size is None:
        return _counted("unique_consecutive", _differs(rows), x=x, return_inverse=return_inverse,
                        return_counts=return_counts, axis=axis, dtype=as_dtype(dtype), name=name)  # fmt: skip
    places, there, numbers, lengths = _runs(rows, size, (return_inverse, return_counts))
    out = [_back(gather(rows, places), shape, axis, there, fill_value)]
    out += [cast(v, dtype) for v in (numbers, lengths) if v is not None]
    return out[0] if len(out) == 1 else tuple(out)


@whole
def unique(
    x: Variable, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, dtype: Any = "int64", name: str | None = None, *, size: int | None = None,
    fill_value: Any = 0,
) -> Any:  # fmt: skip
    """The first `size` different elements in order (slices along `axis` as Paddle orders them), then fill_value.

    return_index    also where each comes first;  return_inverse: also the number of each element among them
    return_counts   also how often each comes, 0 where there is none. All have the type `dtype`.
    """
    x = variable(x, "unique")
    size = _bound(size, x, lambda values: np.unique(values, axis=axis).shape[axis or 0])
    g = builder_of(x)
    rows, shape = _as_rows(x, axis)
    order = _order_of_rows(rows)
    in_order = gather(rows, order)
    if size is None:
        return _counted("unique", _differs(in_order), x=x, return_index=return_index, return_inverse=return_inverse,
                        return_counts=return_counts, axis=axis, dtype=as_dtype(dtype), name=name)  # fmt: skip
    places, there, numbers, lengths = _runs(in_order, size, (return_inverse, return_counts))
    out = [_back(gather(in_order, places), shape, axis, there, fill_value)]
    if return_index:  # the order is stable: the first of a run is the first of all
        first = gather(order, places)
        out.append(g.where(there, first, g.fill_any_like(first, value=0)))
    if numbers is not None:
        _, back = g.argsort(order)
        out.append(gather(numbers, back))
    if lengths is not None:
        out.append(lengths)
    out[1:] = [cast(v, as_dtype(dtype)) for v in out[1:]]
    return out[0] if len(out) == 1 else tuple(out)


def _order_of_rows(rows: Variable) -> Variable:
    """The places of rows [n, k] in lexicographic order: sorted by each column, the last one first, which is stable."""
    g = builder_of(rows)
    order = None
    for column in reversed(range(rows.shape[1])):
        one = reshape(slice(rows, [1], [column], [column + 1]), [-1])
        _, places = g.argsort(one if order is None else gather(one, order), axis=0)
        order = places if order is None else gather(order, places)
    require(order is not None, "slices without elements have no order", EMPTY)
    assert order is not None
    return order


__all__ = ["masked_select", "nonzero", "unique", "unique_consecutive", "where"]
