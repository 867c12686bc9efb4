"""Numbers that a Variable holds in every run: what attributes need to know while the program is built.

    mg.reshape(x, [mg.shape(x)[0], -1])     the size of an axis, also where only a run knows it
    mg.full([n, 3], 0.0)                    n = mg.assign(4) + 1, from constants and sizes alone
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, call_site
from minigraph.errors.kinds import RUN_TIME
from minigraph.opdef import OPS

from .variable import Variable

RESHAPING = frozenset({"assign", "cast", "concat", "flatten", "gather", "reshape", "slice", "split", "squeeze", "stack",
                       "unsqueeze"})  # fmt: skip  # what moves numbers as they are


class Size(NamedTuple):
    """The size of an axis that only a run knows."""

    variable: Variable
    axis: int


class _Unknown(Exception):
    """A value depends on a run."""


PLAIN = frozenset({int, float, str, bool, type(None), np.dtype, type(np.dtype("float32")), type(np.dtype("int64"))})


def holds_variables(attrs: Mapping[str, Any]) -> bool:
    """Whether a value of an attribute is a Variable, or a list with one in it."""
    if PLAIN.issuperset(map(type, attrs.values())):
        return False
    for value in attrs.values():
        kind = type(value)
        if kind in PLAIN or ((kind is list or kind is tuple) and PLAIN.issuperset(map(type, value))):
            continue
        if any(isinstance(v, Variable) for v in (value if isinstance(value, (list, tuple)) else (value,))):
            return True
    return False


def with_known(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call with the numbers that Variables among them hold; one that a run decides is refused."""
    found = {}
    for name, value in attrs.items():
        try:
            found[name] = known(value)
        except AttrError as problem:
            raise AttrError(f"attribute {name}: {problem.fact}", site=problem.site, hint=problem.hint) from None
    for name, value in found.items():
        entries = value if isinstance(value, list) else [value]
        if op_type == "reshape" and name == "shape":
            found[name] = _new_shape(inputs["X"][0], entries)
        elif any(isinstance(e, Size) for e in entries):
            size = next(e for e in entries if isinstance(e, Size))
            raise RUN_TIME(
                f"{name} is the size of axis {size.axis} of {size.variable}, which only a run knows", site=call_site(),
                hint="mg.full_like, mg.expand_as and mg.where take the sizes of a Variable",
            )  # fmt: skip
    return found


def _new_shape(x: Variable, sizes: list[Any]) -> list[Any]:
    """A shape for reshape: 0 copies a size of x in its place, one other unknown size may be -1."""
    named = [0 if isinstance(s, Size) and s.variable is x and s.axis == i else s for i, s in enumerate(sizes)]
    left = [s for s in named if isinstance(s, Size)]
    if len(left) + named.count(-1) > 1:
        raise RUN_TIME(
            f"two sizes of the new shape of {x} are known only at run time", site=call_site(),
            hint="a size of x in its own place is 0, one other size may be -1",
        )  # fmt: skip
    return [-1 if isinstance(s, Size) else s for s in named]


def known(value: Any) -> Any:
    """`value` with the number or list that each Variable in it holds; sizes that only a run knows are a Size."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, Variable) for v in value):
        return [e for v in value for e in _entries(v)]
    if not isinstance(value, Variable):
        return value
    found = _entries(value)
    return found if value.ndim else found[0]


def _entries(value: Any) -> list[Any]:
    """The numbers of a Variable, or the value itself."""
    if not isinstance(value, Variable):
        return [value]
    try:
        return [e.item() if isinstance(e, np.generic) else e for e in _value(value).reshape(-1)]
    except _Unknown as why:
        raise AttrError(
            f"{value} stands where a number is needed that is known before a run; {why}", site=call_site(),
            hint="it may come from constants and from mg.shape",
        ) from None


def _value(v: Variable, end: int | None = None) -> np.ndarray:
    """What v holds in every run, a Size in the place of what only a run knows; written by the first `end` operators."""
    at = len(v.block.ops) if end is None else end
    while at > 0 and not any(v is o for vs in v.block.ops[at - 1].outputs.values() for o in vs):
        at -= 1
    if at == 0 or v.persistable:
        raise _Unknown(f"{v.name} is {'kept in a scope' if v.persistable else 'fed'}")
    op = v.block.ops[at - 1]
    if op.type == "shape":
        (x,) = op.inputs["X"]
        return _objects([Size(x, axis) if size == -1 else size for axis, size in enumerate(x.shape)])
    opdef = OPS[op.type]
    if "random" in opdef.traits or not set(opdef.injected_by_reference) <= {"out"}:
        raise _Unknown(f"{v.name} is computed by {op.type}")
    given = {slot: [_value(x, at - 1) for x in xs] for slot, xs in op.inputs.items()}
    sizes = any(a.dtype == object for arrays in given.values() for a in arrays)
    if op.type == "cast" and sizes:
        return given["X"][0]
    if sizes and op.type not in RESHAPING:
        given = {slot: [_plain(a, op.type) for a in arrays] for slot, arrays in given.items()}
    args = [
        None if s.name not in given else given[s.name] if s.variadic else given[s.name][0] for s in opdef.inputs
    ]
    result = opdef.reference(*args, **op.attrs)
    results = result if isinstance(result, tuple) and len(opdef.outputs) > 1 else (result,)
    for slot, array in zip(opdef.outputs, results, strict=True):
        for variable, one in zip(op.outputs.get(slot.name, ()), array if slot.variadic else [array], strict=False):
            if variable is v:
                return np.asarray(one)
    raise _Unknown(f"{v.name} is computed by {op.type}")


def _plain(values: np.ndarray, op_type: str) -> np.ndarray:
    """An array of objects that are all numbers, as numbers."""
    if values.dtype == object:
        if any(isinstance(e, Size) for e in values.reshape(-1)):
            raise _Unknown(f"{op_type} computes it from a size that only a run knows")
        return values.astype(np.int64)
    return values


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array
