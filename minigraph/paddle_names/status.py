"""Which names of Paddle are here, found by looking."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from .listed import listed
from .missing import SPACES
from .reasons import reason_of


class Entry(NamedTuple):
    """A name of Paddle: is it here, and where not, why, and what instead."""

    space: str
    name: str
    here: bool
    why: str
    instead: str | None


def entries() -> Iterator[Entry]:
    """All names of Paddle in the order of its namespaces."""
    for space, names in listed().items():
        for name in sorted(names):
            if _has(SPACES.get(space), name):
                yield Entry(space, name, True, "", None)
            else:
                yield Entry(space, name, False, *reason_of(space, name))


def _has(owner: Any, name: str) -> bool:
    if owner is None:
        return False
    if isinstance(owner, ModuleType):
        return hasattr(owner, name)
    own = name[:-1] if name.endswith("_") else name
    return any(hasattr(owner, n) or n in _fields(owner) for n in (name, own))


def _fields(owner: type) -> set[str]:
    """Attributes that only objects of a class have."""
    return {name for kind in owner.__mro__ for name in vars(kind).get("__annotations__", {})}
