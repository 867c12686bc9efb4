"""Shapes with sizes that only a run knows: a batch's, or that of a sequence.

    b, t = mg.shape(ids)[0], mg.shape(ids)[1]
    mg.zeros([b, 2]); mg.arange(t); mg.expand(row, [b, t]); mg.reshape(h, [b, t, 3])

They are written with operators that take the size from a Variable that has it.
"""

from __future__ import annotations

from typing import Any

from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of
from minigraph.program.known import Size, known, with_own_sizes


def run_sizes(shape: Any) -> list[Any] | None:
    """The entries of a shape of which a run decides some, else None."""
    entries = known(shape)
    return entries if isinstance(entries, list) and any(isinstance(e, Size) for e in entries) else None


def shape_of(x: Variable) -> Any:
    """The shape of x, with a variable in the place of each size that only a run knows."""
    if -1 not in x.shape:
        return x.shape
    g = builder_of(x)
    sizes = g.split(g.shape(x), num=x.ndim, axis=0) if x.ndim > 1 else [g.shape(x)]
    return [s if n == -1 else n for s, n in zip(sizes, x.shape, strict=True)]


def full_of(entries: list[Any], value: Any, dtype: Any) -> Variable:
    """An array of `value` with these sizes, ints and Sizes."""
    g: Builder = builder_of(*(e.variable for e in entries if isinstance(e, Size)))
    result = None
    for place, size in enumerate(entries):
        if not isinstance(size, Size):
            continue
        line = g.arange_like(size.variable, axis=size.axis)
        alone = [-1 if i == place else 1 for i in range(len(entries))]
        if result is None:
            result = g.reshape(g.fill_any_like(line, value=value, dtype=dtype), shape=alone)
        else:
            along = g.reshape(g.fill_any_like(line, value=True, dtype="bool"), shape=alone)
            result = g.where(along, result, result)
    return g.expand(result, shape=[-1 if isinstance(e, Size) else e for e in entries])


def expanded(x: Variable, entries: list[Any]) -> Variable:
    """x repeated along its axes of size 1 up to these sizes, ints and Sizes; -1 keeps a size."""
    first = len(entries) - x.ndim
    own = [-1 if isinstance(e, Size) and e.is_of(x, i - first) else e for i, e in enumerate(entries)]
    g = builder_of(x)
    if not any(isinstance(e, Size) for e in own):
        return g.expand(x, shape=own)
    kept = [Size(x, i - first) if e == -1 and i >= first and x.shape[i - first] == -1 else e for i, e in enumerate(own)]
    sizes = [x.shape[i - first] if e == -1 and i >= first else e for i, e in enumerate(kept)]
    return g.where(full_of(sizes, True, "bool"), x, x)


def reshaped(x: Variable, shape: Any, entries: list[Any]) -> Variable:
    """The elements of x in `shape`, which has these sizes."""
    g, named = builder_of(x), with_own_sizes(x, entries)
    left = [e for e in named if isinstance(e, Size)]
    if len(left) < 2 or -1 in named:
        return g.reshape(x, shape=shape)
    return g.reshape_grad(full_of([Size(x, i) if e == 0 else e for i, e in enumerate(named)], 0, x.dtype), x)
