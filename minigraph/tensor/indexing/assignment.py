"""What a Variable would be after `x[index] = value`: a new Variable, since each is written once."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import ProgramError, ShapeError, require
from minigraph.errors.kinds import RANK
from minigraph.program import Variable
from minigraph.program.builder import alone, builder_of
from minigraph.tensor.arguments import as_type, constant, plain, value_of, variable
from minigraph.tensor.logic import where
from minigraph.tensor.manipulation import gather, unsqueeze
from minigraph.tensor.waiting.calls import waiting
from minigraph.types import bool_, int64

from .indexing import getitem
from .picking import index_put, scatter


@waiting("index")
@alone
def setitem(x: Variable, index: Any, value: Any) -> Variable:
    """x with `value` at x[index].

    index  what x[index] takes: ints, slices, Ellipsis; or a bool Variable with x's first axes; or coordinates, ints and
           int Variables for the first axes; or beside whole slices one Variable of rank 1, bool or int. Of equal
           positions the last one stays
    value  a number, small array or Variable that broadcasts to x[index]; for a bool index to its slices, not to
           their list, whose length a run decides
    """
    x = variable(x, "setitem")
    value = value if isinstance(value, Variable) else constant(plain(value_of(value, "setitem", "value")), x.dtype, x)
    value = as_type(value, x.dtype)
    alone = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(alone, np.ndarray) and alone.dtype == bool:
        alone = constant(alone, bool_, x)
    if isinstance(alone, Variable) and alone.dtype == bool_:
        return _where_true(x, alone, value)
    items = index if isinstance(index, tuple) else (index,)
    picking = [i for i, item in enumerate(items) if isinstance(item, Variable)]
    if picking and all(isinstance(item, (int, Variable)) for item in items) and len(items) > 1:
        places = [i if isinstance(i, Variable) else constant(i, int64, x) for i in items]
        return index_put(x, places, value)
    if len(picking) == 1 and items[picking[0]].ndim == 1 and all(i == slice(None) for i in items if type(i) is slice):
        return _along(x, picking[0], items[picking[0]], value)
    return _in_section(x, index, value)


def _along(x: Variable, axis: int, index: Variable, value: Variable) -> Variable:
    """x[:, index] = value, index for any one axis."""
    g = builder_of(x)
    others = [a for a in range(x.ndim) if a != axis]
    if index.dtype == bool_:
        fits = value.ndim <= len(others) - axis
        require(fits, f"value is {value}, and how many slices there are a run decides", RANK, "mg.where")
        return where(g.unsqueeze(index, axes=others) if others else index, value, x)
    rows = _spread(value, gather(x, index, axis))
    if axis == 0:
        return scatter(x, index, rows)
    order = [axis, *others]
    new = scatter(g.transpose(x, perm=order), index, g.transpose(rows, perm=order))
    return g.transpose(new, perm=[order.index(a) for a in range(x.ndim)])


def _where_true(x: Variable, mask: Variable, value: Variable) -> Variable:
    same = mask.ndim <= x.ndim and all(-1 in (a, b) or a == b for a, b in zip(mask.shape, x.shape, strict=False))
    require(same, f"the index is {mask}, it must have the first axes of x, {x}", ShapeError)
    inner = x.ndim - mask.ndim
    fits = value.ndim <= inner
    require(fits, f"value is {value}, a slice of x has rank {inner}; how many slices there are a run decides",
            RANK, "mg.where(mask, value, x) takes a value for each place")  # fmt: skip
    return where(unsqueeze(mask, [*range(mask.ndim, x.ndim)]) if inner else mask, value, x)


def _in_section(x: Variable, index: Any, value: Variable) -> Variable:
    """Slices and ints: the gradient of x[index] puts values, and marks, where x[index] takes them."""
    g = builder_of(x)
    start = len(g.block.ops)
    part = getitem(x, index)
    new = g.block.ops[start:]
    taken = next((op for op in new if op.type == "slice"), None)
    others = [op.type for op in new if op.type not in ("slice", "unsqueeze")]
    if others == ["assign"]:  # x[:]
        return _spread(value, x)
    require(not others and taken is not None, f"index {index!r} is neither ints and slices nor one Variable"[:200],
            ProgramError, "mg.index_put, mg.put_along_axis")  # fmt: skip
    assert taken is not None
    spread = _spread(value, part)
    held = taken.outputs["Out"][0]
    ones = g.fill_any_like(held, value=1)
    spread = g.reshape_grad(held, spread) if spread.shape != held.shape else spread
    there = g.not_equal(zero := g.slice_grad(x, ones, **taken.attrs), g.fill_any_like(zero, value=0))
    return where(there, g.slice_grad(x, spread, **taken.attrs), x)


def _spread(value: Variable, part: Variable) -> Variable:
    """`value` repeated to the shape of x[index]."""
    g = builder_of(part)
    spread = g.where(g.fill_any_like(part, value=True, dtype=bool_), value, value)
    pairs = zip(spread.shape, part.shape, strict=False)
    same = spread.ndim == part.ndim and all(-1 in pair or pair[0] == pair[1] for pair in pairs)
    require(same, f"value is {value}, x[index] is {part}", ShapeError)
    return spread
