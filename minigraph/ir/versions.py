"""Versions: the variables of a Graph by name, each with the versions that updates in place make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


class Versions:
    """The newest version of each variable by its name; the versions before it are linked.

    declared   names of the Program's variables, which new ones must not take
    """

    def __init__(self, declared: Iterable[str] = ()) -> None:
        self.newest: dict[str, Any] = {}
        self.declared = frozenset(declared)

    @property
    def variables(self) -> list[Any]:
        """All versions of all variables, later ones before those before them."""
        found = list(self.newest.values())
        for v in found:  # which grows meanwhile
            if v.previous_version is not None:
                found.append(v.previous_version)
        return found

    @property
    def vars(self) -> dict[tuple[str, int], Any]:
        """All variables by name and version, as they are now."""
        return {(v.name, v.version): v for v in self.variables}

    def holds(self, v: Any) -> bool:
        """Whether a version of a variable is in the graph."""
        own = self.newest.get(v.name)
        while own is not None and own is not v:
            own = own.previous_version
        return own is v

    def fresh_name(self, base: str) -> str:
        """`base`, numbered if the graph or its Program has that name already."""
        if self.is_free(base):
            return base
        return next(n for i in itertools.count(1) if self.is_free(n := f"{base}_{i}"))

    def is_free(self, name: str) -> bool:
        return name not in self.newest and name not in self.declared

    def rename_var(self, v: Any, name: str) -> None:
        """Give a variable of one version another name that is free."""
        assert v.version == 0 and v.next_version is None and name not in self.newest
        del self.newest[v.name]
        v.name = name
        self.newest[name] = v

    def enter_var(self, v: Any, name: str) -> None:
        """Give a value that operators of the graph write, but which is not in it yet, a name that is free."""
        assert name not in self.newest
        v.name = name
        self.newest[name] = v
