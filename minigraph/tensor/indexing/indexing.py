"""`x[...]`: NumPy's basic indexing, and rows by an int Variable.

    x[1], x[-1]         an axis less; out of range is an error, at run time if the size is known only then
    x[1:8:2], x[::-1]   bounds count from the back where negative, and are clamped
    x[..., None]        Ellipsis stands for the axes left over, None adds one of size 1
    x[i], x[:, i]       i an int Variable, array or list: gather along that axis
    x[i, j], x[0, :, j] elements at coordinates, as gather_nd

    x[mask]             elements, or rows, where a bool Variable is True: their number is counted in each run;
    x[:, mask]          a mask of one axis stands for the places where it is True

Variables are written once, so `x[...] = value` is refused, and static.setitem gives what x would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from minigraph.errors import DTypeError, ProgramError, call_site
from minigraph.errors.kinds import COUNT
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.known import known_number
from minigraph.tensor.arguments import FIRST, LAST, constant, describe
from minigraph.tensor.bounded import masked_select, nonzero
from minigraph.tensor.manipulation import squeeze, stack
from minigraph.tensor.pieces import broadcast_tensors
from minigraph.types import INTS, bool_, int64

from .picking import gather_nd


@whole
def getitem(x: Variable, index: Any) -> Variable:
    """x[index] as described above."""
    if isinstance(index, Variable) and index.dtype == bool_ and index.ndim > 1:
        return masked_select(x, index) if index.ndim == x.ndim else gather_nd(x, nonzero(index))
    items = _full_index(x, index if isinstance(index, tuple) else (index,))
    if any(isinstance(i, Variable) for i in items) and sum(isinstance(i, (int, Variable)) for i in items) > 1:
        return _at_coordinates(x, items)
    slices: list[tuple[int, int, int, int]] = []  # axis, start, end, step
    dropped: list[int] = []
    added: list[int] = []  # places in the result
    picked: tuple[int, Variable] | None = None
    axis = place = 0
    for item in items:
        if item is None:
            added.append(place)
            place += 1
            continue
        if isinstance(item, slice):
            bounds = _bounds(x, axis, item)
            slices += [(axis, *bounds)] if bounds != (0, LAST, 1) else []
            place += 1
        elif isinstance(item, int):
            slices.append((axis, item, item + 1 if item != -1 else LAST, 1))
            dropped.append(axis)
        else:
            picked = axis, item
            place += item.ndim
        axis += 1
    return _emit(x, slices, dropped, picked, added)


def _at_coordinates(x: Variable, items: list[Any]) -> Variable:
    """x[i, :, j] of arrays and ints, elements at coordinates, beside slices.

    The axes of the arrays stand where the first of them stood, or in front where a slice or None lies between them.
    """
    g = builder_of(x)
    axes = [item for item in items if item is not None]
    part = getitem(x, tuple(slice(None) if isinstance(i, (int, Variable)) else i for i in axes))
    at = [axis for axis, item in enumerate(axes) if isinstance(item, (int, Variable))]
    rest = [axis for axis in range(x.ndim) if axis not in at]
    part = part if at == [*range(len(at))] else g.transpose(part, perm=[*at, *rest])
    arrays = [g.cast(i, dtype=int64) if isinstance(i, Variable) else constant(i, int64, x)
              for i in axes if isinstance(i, (int, Variable))]  # fmt: skip
    found = gather_nd(part, stack(broadcast_tensors(arrays), axis=-1))
    places = [place for place, item in enumerate(items) if isinstance(item, (int, Variable))]
    together = places == [*range(places[0], places[-1] + 1)]
    wide = found.ndim - len(rest)
    before = places[0] - items[: places[0]].count(None) if together else 0
    if before:
        order = [*range(wide, wide + before), *range(wide), *range(wide + before, found.ndim)]
        found = g.transpose(found, perm=order)
    added = _places_of_none(items, places[0] if together else 0, wide)
    return g.unsqueeze(found, axes=added) if added else found


def _places_of_none(items: list[Any], first: int, wide: int) -> list[int]:
    """Where the result has axes of size 1, when `wide` axes of arrays stand before the item `first`."""
    kept = [i for i, item in enumerate(items) if not isinstance(item, (int, Variable))]
    return [place + (wide if i >= first else 0) for place, i in enumerate(kept) if items[i] is None]


def _emit(
    x: Variable, slices: list[tuple[int, int, int, int]], dropped: list[int],
    picked: tuple[int, Variable] | None, added: list[int],
) -> Variable:  # fmt: skip
    g = builder_of(x)
    result = x
    if slices:
        axes, starts, ends, steps = (list(column) for column in zip(*slices, strict=True))
        stepping = {"steps": steps} if any(s != 1 for s in steps) else {}
        result = g.slice(x, axes=axes, starts=starts, ends=ends, decrease_axes=dropped, **stepping)
    if picked is not None:
        result = g.gather(result, picked[1], axis=picked[0])
    if added:
        result = g.unsqueeze(result, axes=added)
    return g.assign(x) if result is x else result


def _full_index(x: Variable, items: tuple[Any, ...]) -> list[Any]:
    """The index with Ellipsis written out and every item an int, slice, None or int Variable."""
    named = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        _refuse(x, "more than one Ellipsis")
    if named > x.ndim:
        raise COUNT(f"{named} indices for {x} of rank {x.ndim}", call="getitem", site=call_site())
    rest = [slice(None)] * (x.ndim - named)
    full: list[Any] = []
    for item in items:
        full += rest if item is Ellipsis else [_item(x, item)]
    return full if ellipses else full + rest


def _item(x: Variable, item: Any) -> Any:
    """One entry of an index in canonical form."""
    if item is None or isinstance(item, slice):
        return item
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, (list, np.ndarray)):
        array = np.asarray(item)
        if array.dtype.kind == "b" and array.ndim == 1:
            array = np.flatnonzero(array)
        if array.dtype.kind not in "iu" and array.size:
            _refuse(x, f"an index array must hold ints, is {describe(item)}")
        return constant(array.astype(int64) if array.ndim else array.item(), int64, x)
    if not isinstance(item, Variable):
        _refuse(x, f"an index is an int, slice, None, Ellipsis or int Variable, not {describe(item)}")
    if item.dtype == bool_ and item.ndim == 1:
        return squeeze(nonzero(item), 1)
    if item.dtype not in INTS:
        raise DTypeError(
            f"index {item} must hold ints", call="getitem", site=call_site(),
            hint="a mask of several axes stands alone: x[mask]; mg.where keeps the shape",
        )  # fmt: skip
    return item


def _bounds(x: Variable, axis: int, item: slice) -> tuple[int, int, int]:
    """start, end and step; (0, LAST, 1) for the whole axis."""
    item = slice(*(known_number(bound) for bound in (item.start, item.stop, item.step)))
    for bound in (item.start, item.stop, item.step):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, np.integer))):
            _refuse(x, f"a slice takes ints, not {describe(bound)}", "mg.gather picks at positions known at run time")
    size = x.shape[axis]
    step = 1 if item.step is None else int(item.step)
    if step == 0:
        _refuse(x, "a slice with step 0")
    start = (0 if step > 0 else LAST) if item.start is None else int(item.start)
    end = (LAST if step > 0 else FIRST) if item.stop is None else int(item.stop)
    whole = (start == 0 or 0 <= size <= -start) and step == 1 and (end == LAST or 0 <= size <= end)
    if whole:
        return 0, LAST, 1
    if size >= 0:  # sizes instead of the two far bounds
        start, end = size - 1 if start == LAST else start, size if end == LAST else -size - 1 if end == FIRST else end
    return start, end, step


def _refuse(x: Variable, fact: str, hint: str | None = None) -> NoReturn:
    raise ProgramError(fact, call=f"getitem(x={x})", site=call_site(), hint=hint)


def refuse_assignment(x: Variable, index: Any, value: Any) -> NoReturn:
    """Variables are written once: x[...] = value is refused, as by Paddle in static mode."""
    raise ProgramError(
        f"variable {x} cannot be assigned to by index", call="setitem", site=call_site(),
        hint="x = mg.static.setitem(x, index, value) is a new variable; mg.where takes a condition",
    )  # fmt: skip


def iterate(x: Variable) -> Iterator[Variable]:
    """x[0], x[1], ...; the size of axis 0 must be known."""
    return iter([getitem(x, i) for i in range(len(x))])
