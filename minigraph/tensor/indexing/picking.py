"""Elements and slices picked by position, and put to positions.

All of it is gathering rows, adding up rows, and choosing between what was there and who wrote last, in arrays laid
flat. Negative positions count from the back, and one out of range is a KernelError.
"""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ProgramError, ShapeError, call_site, require
from minigraph.errors.kinds import NOT_OFFERED, RANK, RUN_TIME
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.known import values_of
from minigraph.tensor.arguments import (
    as_type,
    constant,
    describe,
    is_number,
    output_prefix,
    plain,
    variable,
    variables,
)
from minigraph.tensor.logic import where
from minigraph.tensor.manipulation import expand, flatten, gather, stack
from minigraph.types import normalize_axis


@whole
def index_select(x: Variable, index: Variable, axis: int = 0, name: str | None = None) -> Variable:
    """The slices of x at the positions `index`, of rank 1, along `axis`."""
    x, index = variable(x, "index_select"), variable(index, "index_select", "index")
    require(index.ndim == 1, f"index must have rank 1, is {index}", RANK)
    return gather(x, index, axis, name=name)


@whole
def gather_nd(x: Variable, index: Variable, name: str | None = None) -> Variable:
    """The slices of x at the coordinates index[..., K] of its first K axes."""
    x, index = variable(x, "gather_nd"), variable(index, "gather_nd", "index")
    places = builder_of(x).flat_index(x, index)
    return gather(_rows(x, index), places, name=name)


def _rows(x: Variable, index: Variable) -> Variable:
    """x with the axes that coordinates count laid flat."""
    return flatten(x, 0, index.shape[-1] - 1) if index.shape[-1] > 1 else x


@whole
def scatter_nd_add(x: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """x with updates[...] added to the slices at the coordinates index[..., K]; what meets in one place adds up."""
    x, index = variable(x, "scatter_nd_add"), variable(index, "scatter_nd_add", "index")
    places = builder_of(x).flat_index(x, index)
    return _added(x, _rows(x, index), places, variable(updates, "scatter_nd_add", "updates"), 0, "scatter_nd_add", name)


def _added(
    x: Variable, rows: Variable, places: Variable, values: Variable, axis: int, call: str, name: str | None
) -> Variable:
    """x, whose `rows` lie along `axis`, with `values` added at `places`."""
    g = builder_of(x)
    _check_slices(rows, places, values, axis, call)
    total = g.gather_grad(rows, places, values, axis=axis)  # the sum of all that goes to one place
    if rows is not x:
        total = g.reshape_grad(x, total)
    return g.elementwise_add(x, total, name=output_prefix(call, name))


def _check_slices(rows: Variable, places: Variable, values: Variable, axis: int, call: str) -> None:
    """`values` has the shape of `places` in the place of `axis` of `rows`."""
    wanted = (*rows.shape[:axis], *places.shape, *rows.shape[axis + 1 :])
    same = len(wanted) == values.ndim and all(-1 in (a, b) or a == b for a, b in zip(wanted, values.shape, strict=True))
    require(same, f"values are {values}, index asks for the shape {list(wanted)}", ShapeError)
    require(values.dtype == rows.dtype, f"x is {rows.dtype}, values are {values.dtype}", ShapeError)


@whole
def scatter_nd(index: Variable, updates: Variable, shape: Any, name: str | None = None) -> Variable:
    """Zeros of the given shape with updates[...] added at the coordinates index[..., K]."""
    updates = variable(updates, "scatter_nd", "updates")
    zeros = builder_of(updates).fill_constant(shape=shape, value=0, dtype=updates.dtype)
    return scatter_nd_add(zeros, index, updates, name)


@whole
def scatter(
    x: Variable, index: Variable, updates: Variable, overwrite: bool = True, name: str | None = None
) -> Variable:  # fmt: skip
    """x with the rows updates[i] in the places index[i]; of several in one place the last one stays.

    overwrite  False: rows that are named become the sum of what goes there, without what x had
    """
    x, index = variable(x, "scatter"), flatten(variable(index, "scatter", "index"))
    updates = variable(updates, "scatter", "updates")
    if overwrite:
        return _put(x, index, updates, "scatter", name)
    _check_slices(x, index, updates, 0, "scatter")
    g = builder_of(x)
    named = _beside(g.last_writer(x, index) >= 0, x.ndim)
    return where(named, g.gather_grad(x, index, updates, axis=0), x, name=name)


def _beside(column: Variable, ndim: int) -> Variable:
    """A vector as a column beside rows of an array of rank `ndim`."""
    return builder_of(column).unsqueeze(column, axes=range(1, ndim)) if ndim > 1 else column


def _put(x: Variable, places: Variable, values: Variable, call: str, name: str | None) -> Variable:
    """x with values[i] in its row places[i]; the last one stays."""
    _check_slices(x, places, values, 0, call)
    g = builder_of(x)
    if values.shape[0] == 0:
        return g.assign(x, name=output_prefix(call, name))
    last = g.last_writer(x, places)
    written = gather(values, g.clip(last, min=0.0))
    return where(_beside(last >= 0, x.ndim), written, x, name=name)


@whole
def index_add(x: Variable, index: Variable, axis: int, value: Variable, name: str | None = None) -> Variable:
    """x with the slices value[i] added at the positions index[i] along `axis`."""
    x, index = variable(x, "index_add"), variable(index, "index_add", "index")
    value, axis = variable(value, "index_add", "value"), normalize_axis(axis, x.ndim)
    return _added(x, x, index, value, axis, "index_add", name)


@whole
def index_fill(x: Variable, index: Variable, axis: int, fill_value: Any, name: str | None = None) -> Variable:
    """x with `fill_value`, a number or a 0-d Variable, at the positions index[i] along `axis`."""
    x, index = variable(x, "index_fill"), variable(index, "index_fill", "index")
    g, axis = builder_of(x), normalize_axis(axis, x.ndim)
    along = g.slice(x, axes=[a for a in range(x.ndim) if a != axis], starts=[0] * (x.ndim - 1), ends=[1] * (x.ndim - 1))
    last = g.last_writer(flatten(along), index)
    others = [a for a in range(x.ndim) if a != axis]
    return where(g.unsqueeze(last >= 0, axes=others) if others else last >= 0, fill_value, x, name=name)


@whole
def index_put(
    x: Variable, indices: Any, value: Variable, accumulate: bool = False, name: str | None = None
) -> Variable:  # fmt: skip
    """x with `value` at the coordinates (indices[0][...], indices[1][...], ...), int Variables that broadcast.

    accumulate  add it there; else of several in one place the last one stays
    """
    x, value = variable(x, "index_put"), variable(value, "index_put", "value")
    g, parts = builder_of(x), variables(indices, "index_put", "indices")
    zero = g.fill_any_like(parts[0], value=0)
    for part in parts[1:]:
        zero = g.elementwise_add(zero, g.fill_any_like(part, value=0, dtype=zero.dtype))
    index = stack([g.elementwise_add(as_type(part, zero.dtype), zero) for part in parts], axis=-1)
    places, rows = g.flat_index(x, index), _rows(x, index)
    wanted = (*places.shape, *rows.shape[1:])
    if value.shape != wanted and -1 not in wanted:
        value = expand(value, wanted)
    if accumulate:
        return _added(x, rows, places, value, 0, "index_put", name)
    flat = flatten(value, 0, places.ndim - 1) if places.ndim > 1 else value
    out = _put(rows, flatten(places), flat, "index_put", name)
    return g.reshape_grad(x, out) if rows is not x else out


def _index_along(x: Variable, index: Variable, axis: int, broadcast: bool) -> Variable:
    """`index` with the other sizes of x where it has 1 in their place."""
    axis = normalize_axis(axis, x.ndim)
    others = [a for a in range(x.ndim) if a != axis]
    same = index.ndim == x.ndim and all(index.shape[a] == x.shape[a] != -1 for a in others)
    if same or not broadcast or index.ndim != x.ndim:
        return index
    g = builder_of(x)
    row = g.slice(x, axes=[axis], starts=[0], ends=[1])
    return g.elementwise_add(index, g.fill_any_like(row, value=0, dtype=index.dtype))


@whole
def take_along_axis(
    arr: Variable, indices: Variable, axis: int, broadcast: bool = True, name: str | None = None
) -> Variable:  # fmt: skip
    """The elements of arr with indices[...] in the place of their coordinate of `axis`.

    broadcast  sizes of 1 in `indices` become those of arr, other than along `axis`
    """
    arr, indices = variable(arr, "take_along_axis", "arr"), variable(indices, "take_along_axis", "indices")
    index = _index_along(arr, indices, axis, broadcast)
    places = builder_of(arr).flat_index_along(arr, index, axis=axis)
    return gather(flatten(arr), places, name=name)


@whole
def put_along_axis(
    arr: Variable, indices: Variable, values: Any, axis: int, reduce: str = "assign", include_self: bool = True,
    broadcast: bool = True, name: str | None = None,
) -> Variable:  # fmt: skip
    """arr with `values` at the elements that take_along_axis picks.

    values  a number or a Variable that broadcasts to the shape of `indices`
    reduce  "assign": of several in one place the last one stays; "add" adds them to what is there
    """
    arr, indices = variable(arr, "put_along_axis", "arr"), variable(indices, "put_along_axis", "indices")
    if reduce not in ("assign", "add") or not include_self:
        raise NOT_OFFERED(
            f"reduce {reduce!r} with include_self={include_self} is not there, 'assign' and 'add' are",
            call="put_along_axis", site=call_site(),
        )  # fmt: skip
    g, index = builder_of(arr), _index_along(arr, indices, axis, broadcast)
    if not isinstance(values, Variable):
        require(is_number(plain(values)), f"values must be a Variable or number, is {describe(values)}", ProgramError)
        values = constant(plain(values), arr.dtype, arr)
    values = g.elementwise_add(g.fill_any_like(index, value=0, dtype=arr.dtype), values)
    places, flat = flatten(g.flat_index_along(arr, index, axis=axis)), flatten(arr)
    if reduce == "add":
        total = g.reshape_grad(arr, g.gather_grad(flat, places, flatten(values), axis=0))
        return g.elementwise_add(arr, total, name=output_prefix("put_along_axis", name))
    return g.reshape_grad(arr, _put(flat, places, flatten(values), "put_along_axis", name))


def index_sample(x: Variable, index: Variable) -> Variable:
    """x[i, index[i, j]] for x of rank 2."""
    return take_along_axis(x, index, axis=1, broadcast=False)


@whole
def masked_fill(x: Variable, mask: Variable, value: Any, name: str | None = None) -> Variable:
    """`value`, a number or a 0-d Variable, where `mask`, else x; they broadcast."""
    x = variable(x, "masked_fill")
    return where(mask, as_type(value, x.dtype) if isinstance(value, Variable) else value, x, name=name)


@whole
def take(x: Variable, index: Variable, mode: str = "raise", name: str | None = None) -> Variable:
    """The elements of x, laid flat, at the positions `index`.

    mode  of positions out of range: "raise" a KernelError, "wrap" around, "clip" to the nearest one
    """
    x, index = variable(x, "take"), variable(index, "take", "index")
    if mode not in ("raise", "wrap", "clip"):
        raise AttrError(f"mode {mode!r} is none of raise, wrap, clip", call="take", site=call_site())
    flat = flatten(x)
    if mode != "raise":
        g = builder_of(x)
        size = flat.shape[0] if flat.type.is_static else g.cast(g.shape(flat), dtype=index.dtype)
        last = size - 1 if isinstance(size, Variable) else constant(size - 1, index.dtype, x)
        index = index % size if mode == "wrap" else g.elementwise_min(g.clip(index, min=0.0), last)
    return gather(flat, index, name=name)


@whole
def shard_index(
    input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1, name: str | None = None
) -> Variable:
    """The places of ints of [0, index_num) in part `shard_id` of `nshards` equal parts; ignore_value for other parts'.

    The last part may be shorter.
    """
    x = variable(input, "shard_index", "input")
    require(0 <= shard_id < nshards <= index_num, f"part {shard_id} of {nshards}, index_num {index_num}", AttrError)
    size = -(-index_num // nshards)
    return where(x // size == shard_id, x % size, ignore_value, name=name)


@whole
def multiplex(inputs: Any, index: Variable, name: str | None = None) -> Variable:
    """Row i of inputs[index[i]]; index has the shape [rows, 1]."""
    parts, index = variables(inputs, "multiplex", "inputs"), variable(index, "multiplex", "index")
    g, joined = builder_of(parts[0]), stack(parts, axis=0)
    rows = g.unsqueeze(flatten(index), axes=[0, *range(2, joined.ndim)])
    picked = take_along_axis(joined, rows, axis=0)
    return g.squeeze(picked, axes=[0], name=output_prefix("multiplex", name))


@whole
def repeat_interleave(x: Variable, repeats: Any, axis: int | None = None, name: str | None = None) -> Variable:
    """Every slice of x along `axis` `repeats` times, an int or a list of ints; x is laid flat for None.

    repeats  or a Variable that comes from constants
    """
    x = flatten(variable(x, "repeat_interleave")) if axis is None else variable(x, "repeat_interleave")
    axis = normalize_axis(axis or 0, x.ndim)
    if isinstance(repeats, Variable):
        given, repeats = repeats, values_of(repeats)
        repeats = None if repeats is None else repeats.tolist() if given.ndim else int(repeats)
    if isinstance(repeats, list) and len(repeats) == 1:
        repeats = repeats[0]
    if repeats is None:
        raise RUN_TIME(
            "repeats must be an int or a list of ints: the result's size would be known only at run time",
            call="repeat_interleave", site=call_site(),
        )  # fmt: skip
    g = builder_of(x)
    if isinstance(repeats, int):
        wide = expand(g.unsqueeze(x, axes=[axis + 1]), [-1] * (axis + 1) + [repeats] + [-1] * (x.ndim - axis - 1))
        return flatten(wide, axis, axis + 1, name=name)
    places = [i for i, n in enumerate(repeats) for _ in range(n)]
    index = g.assign_value(values=places, shape=[len(places)], dtype="int64")
    return gather(x, index, axis, name=name)


__all__ = [
    "gather_nd", "index_add", "index_fill", "index_put", "index_sample", "index_select", "masked_fill", "multiplex",
    "put_along_axis", "repeat_interleave", "scatter", "scatter_nd", "scatter_nd_add", "shard_index", "take",
    "take_along_axis",
]  # fmt: skip
