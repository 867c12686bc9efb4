"""Values in lists, tuples and dicts, one in another, as the functions of branches and loops return them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from minigraph.program import Variable


def leaves(structure: Any) -> list[Any]:
    """What the lists, tuples and dicts hold, in order; those of a dict in the order of its keys. None holds nothing."""
    return [] if structure is None else list(_leaves(structure))


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, (list, tuple)):
        for inner in structure:
            yield from _leaves(inner)
    elif isinstance(structure, Mapping):
        for key in sorted(structure, key=str):
            yield from _leaves(structure[key])
    else:
        yield structure


def packed(structure: Any, values: Iterator[Any]) -> Any:
    """The same lists, tuples and dicts with these values."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):  # a namedtuple
        return type(structure)(*(packed(inner, values) for inner in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(packed(inner, values) for inner in structure)
    if isinstance(structure, Mapping):
        made = {key: packed(structure[key], values) for key in sorted(structure, key=str)}
        return {key: made[key] for key in structure}
    return next(values)


def shape_of(structure: Any) -> Any:
    """Equal for structures that hold values at the same places; a list counts as a tuple."""
    if isinstance(structure, (list, tuple)):
        return tuple(shape_of(inner) for inner in structure)
    if isinstance(structure, Mapping):
        return {key: shape_of(inner) for key, inner in structure.items()}
    return None


def described(structure: Any) -> str:
    """`[x: f32[3], {a: 1}]`, as errors show it."""
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{key}: {described(inner)}" for key, inner in structure.items()) + "}"
    if isinstance(structure, (list, tuple)):
        return "[" + ", ".join(map(described, structure)) + "]"
    return str(structure) if isinstance(structure, Variable) else repr(structure)
