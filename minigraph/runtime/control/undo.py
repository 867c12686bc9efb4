"""What pieces write into the Scope, where a later part may fail: it is brought back then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.program.scope import Scope

from .pieces import CutPiece


class Kept:
    """Persistable values that are written before the last part: their old values are kept until a run is through.

    What the last piece writes its own plan brings back (runtime/undo.py).
    """

    def __init__(self, parts: Sequence[CutPiece]) -> None:
        early = (op for part in parts[:-1] for op in (*part.piece.ops, part.control) if op is not None)
        self.names = list(dict.fromkeys(v.name for op in early for v in op.output_vars if v.persistable))

    def values(self, scope: Scope) -> dict[str, Any]:
        """Copies of the values as they are now; None for what has none yet."""
        return {name: scope.read(name) if scope.has(name) else None for name in self.names}

    def restore(self, scope: Scope, old: dict[str, Any]) -> None:
        """Bring them back."""
        for name, value in old.items():
            if value is not None:
                scope.take(name, value)
            elif scope.has(name):
                scope.arrays.pop(name)
