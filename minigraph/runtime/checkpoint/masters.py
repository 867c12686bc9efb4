"""Float32 copies of 16-bit parameters follow the values that parameters get from elsewhere.

An update reads the copy, and writes the parameter as its rounding. A value that a user, or another program in the same
Scope, gave to the parameter alone would be gone after the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.program import Program
from minigraph.program.operator import masters_of
from minigraph.program.scope import Scope
from minigraph.runtime.parallel.in_pieces import InPieces
from minigraph.types import bfloat16, float16, float32


def checked_masters(program: Program) -> dict[str, str]:
    """{16-bit persistable that a program writes: its copy, or ""} by name.

    Errors: ProgramError where an operator writes a parameter and not its copy.
    """
    masters = masters_of(program.ops)
    updates = {id(op) for op in program.ops if "MasterParam" in op.inputs}
    written = {v: op for op in program.ops if id(op) not in updates for v in op.output_vars}
    for p, master in masters.items():
        if p in written and master not in written:
            raise ProgramError(
                f"{written[p].call()} writes {p}, but its update goes on from the float32 copy {master.name}",
                site=written[p].site, hint=f"write the value into {master.name}, too, or train without copies:"
                " multi_precision=False, or master_weight=False of amp.decorate",
            )  # fmt: skip
    half = {v.name: "" for v in written if v.persistable and v.dtype in (float16, bfloat16)}
    return half | {p.name: master.name for p, master in masters.items()}


class _Halves:
    """What a Scope knows of 16-bit values: who wrote some last, and {name: the copy that was written with it}."""

    def __init__(self) -> None:
        self.writer: weakref.ref[Any] | None = None
        self.copies: dict[str, str] = {}


_known: weakref.WeakKeyDictionary[Scope, _Halves] = weakref.WeakKeyDictionary()


def bring_up(scope: Scope, program: Program, masters: Mapping[str, str]) -> None:
    """Before a run of `program`, which writes `masters` as `checked_masters` gives them: its copies follow.

    What it writes is newer than copies of other programs, from now on.
    """
    known = _known.setdefault(scope, _Halves())
    seen = scope.followed[program.origin]
    if seen != scope.sets:
        for name, master in masters.items():
            if master and _may_lag(scope, name, master, seen):
                _follow(scope, name, master, known.copies.get(name, ""))
        scope.followed[program.origin] = scope.sets
    if known.writer is None or known.writer() is not program.origin:
        known.writer = weakref.ref(program.origin)
        known.copies |= masters
        scope.were_set([name for pair in masters.items() for name in pair if name])
        scope.followed[program.origin] = scope.sets


def _may_lag(scope: Scope, name: str, master: str, seen: int) -> bool:
    """Whether a parameter was set later than its copy, or with it by a call that the program has not `seen`.

    Both of one call may not fit: a state that was read while the copy had yet to follow has both as they were.
    """
    at, of_master = scope.set_at.get(name, 0), scope.set_at.get(master, 0)
    return scope.has(master) and (at > of_master or (at == of_master > seen and not _is_apart(scope, master)))


def _follow(scope: Scope, name: str, master: str, other: str) -> None:
    """Let a copy be its parameter, or the exact value that another program has of it."""
    value = scope.read(name)
    if scope.set_at.get(other) == scope.set_at[name] and scope.has(other) and _is_rounded(scope, other, value):
        scope.take(master, scope.read(other))
    elif not _is_rounded(scope, master, value):
        scope.take(master, value.astype(float32))
    scope.set_at[master] = scope.set_at[name]


def _is_rounded(scope: Scope, master: str, value: np.ndarray) -> bool:
    """Whether `value` is the rounding of a copy, which then stays; unknown where processes have pieces of it."""
    if _is_apart(scope, master):
        return False
    with np.errstate(over="ignore"):
        return scope.read(master).astype(value.dtype).tobytes() == value.tobytes()


def _is_apart(scope: Scope, master: str) -> bool:
    held = scope.arrays[master]
    return isinstance(held, InPieces) and not held.scopes
