"""Values of a Scope that are neither old nor new: a run, a load or a setting of several ended in the middle."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.errors import ProgramError


class Torn:
    """What a Scope knows of such values; `torn` is {name: the reason}."""

    def __init__(self) -> None:
        self.torn: dict[str, str] = {}

    def tear(self, names: Iterable[str], reason: str) -> None:
        """Refuse to read these from now on, until they are written."""
        self.torn |= dict.fromkeys(names, reason)

    def check_whole(self, name: str) -> None:
        """Refuse a value that `tear` has marked."""
        if name in self.torn:
            raise ProgramError(
                f"{name} may be half a step ahead of others: {self.torn[name]}",
                hint="load a checkpoint, run the startup program again or set the values; scope.accept_torn() takes"
                " them as they are",
            )  # fmt: skip

    def accept_torn(self) -> list[str]:
        """Take all values as they are after a run that ended between its updates; returns the names concerned."""
        names = list(self.torn)
        self.torn.clear()
        return names
