"""Values of Variables that are known while the program is built, for calls that take them in place of numbers.

    start = mg.full([1], 2, "int32");  mg.slice(x, axes=[0], starts=[start], ends=[4])
    n = mg.shape(x)[0];  mg.reshape(x, [n, -1])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.opdef.reference import run_reference

from .operator import Operator
from .variable import Variable

MOST = 64  # elements of a value that is looked for: a list of sizes or positions
DEEPEST = 16  # operators from a constant to such a value
PASSED_ON = frozenset({"assign", "cast", "slice", "squeeze", "unsqueeze", "reshape", "scale"})


def with_known_values(attrs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Attributes in which numbers stand for Variables; None where none or not all of these are known."""
    found = {name: as_numbers(value) for name, value in attrs.items()}
    changed = any(found[name] is not value for name, value in attrs.items())
    return found if changed and not any(map(_has_variable, found.values())) else None


def known_value(v: Variable) -> np.ndarray | None:
    """What v will hold in every run, computed by the operators' references; None where that is not known."""
    asked: dict[int, Variable] = {}
    found = _value(v, DEEPEST, asked)
    return None if asked else found


def axis_of_size(v: Variable) -> tuple[Variable, int] | None:
    """(x, axis) where v is `shape(x)[axis]`; None for all others."""
    asked: dict[int, Variable] = {}
    place = _value(v, DEEPEST, asked)
    if place is None or place.size != 1 or len(asked) != 1:
        return None
    (x,) = asked.values()
    return x, int(place.item())


def _value(v: Variable, depth: int, asked: dict[int, Variable]) -> np.ndarray | None:
    """The value; sizes that only a run knows are the numbers of their axes, and their variables stand in `asked`."""
    op = _writer(v)
    if op is None or depth == 0 or v.type.ndim > 1 or "random" in op.opdef.traits:
        return None
    if op.type == "shape":
        (x,) = op.inputs["X"]
        if x.type.is_static:
            return np.array(x.shape, np.int32)
        asked[id(x)] = x
        return np.arange(x.ndim, dtype=np.int32)
    inputs = {slot: [_value(i, depth - 1, asked) for i in given] for slot, given in op.inputs.items()}
    values = {slot: [a for a in arrays if a is not None] for slot, arrays in inputs.items()}
    if any(len(values[slot]) != len(inputs[slot]) for slot in inputs) or (asked and op.type not in PASSED_ON):
        return None
    if op.type == "scale" and asked and (op.attrs["scale"], op.attrs["bias"]) != (1.0, 0.0):
        return None
    found = run_reference(op.opdef, values, op.attrs, op.outputs)
    (name,) = (slot for slot, given in op.outputs.items() if given and given[0] is v)
    return found[name][0].astype(v.dtype)


def _writer(v: Variable) -> Operator | None:
    """The only operator that writes v, a small value that no run keeps."""
    if v.persistable or v.is_data or not v.type.is_static or np.prod(v.shape, dtype=int) > MOST:
        return None
    writers = [op for op in v.block.ops if any(v is out for given in op.outputs.values() for out in given)]
    return writers[0] if len(writers) == 1 else None


def as_numbers(value: Any) -> Any:
    """A list of numbers for a Variable whose value is known, one number for a single one; others as they are."""
    if isinstance(value, Variable):
        found = known_value(value)
        return value if found is None else found.item() if found.size == 1 else found.tolist()
    if isinstance(value, (list, tuple)) and _has_variable(value):
        return [as_numbers(v) for v in value]
    return value


def _has_variable(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_variable, value))
    return isinstance(value, Variable)

