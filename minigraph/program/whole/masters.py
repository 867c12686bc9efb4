"""Float32 copies of 16-bit parameters follow the values that parameters get from elsewhere.

An update reads the copy, and writes the parameter as its rounding. A value that a user, or another program in the same
Scope, gave to the parameter alone would be gone after the next step.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.program.operator import masters_of
from minigraph.program.scope import Scope
from minigraph.types import bfloat16, float16, float32

if TYPE_CHECKING:
    from minigraph.program.program import Program

PIECE = 2**16  # elements, whose rounding stays in a cache


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
    """What a Scope knows of 16-bit values: who wrote some last, and {name: the copies that programs have of it}."""

    def __init__(self) -> None:
        self.writer: weakref.ref[Any] | None = None
        self.copies = defaultdict[str, dict[str, None]](dict)

    def know(self, masters: Mapping[str, str]) -> None:
        for name, master in masters.items():
            if master:
                self.copies[name][master] = None


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
                _follow(scope, name, master, known.copies[name])
        scope.followed[program.origin] = scope.sets
    if known.writer is None or known.writer() is not program.origin:
        known.writer = weakref.ref(program.origin)
        known.know(masters)
        scope.were_set([name for pair in masters.items() for name in pair if name])
        scope.followed[program.origin] = scope.sets


def read_together(scope: Scope, program: Program, names: Collection[str]) -> None:
    """Before these values of `program` are read as one state: its copies among them follow, as before a run."""
    known, seen = _known.setdefault(scope, _Halves()), scope.followed[program.origin]
    masters = {p.name: copy.name for p, copy in masters_of(program.ops).items() if copy.name in names}
    known.know(masters)
    for name, master in masters.items():
        if name in names and scope.has(name) and _may_lag(scope, name, master, seen) and not _is_apart(scope, master):
            _follow(scope, name, master, known.copies[name])


def _may_lag(scope: Scope, name: str, master: str, seen: int) -> bool:
    """Whether a parameter was set later than its copy, or with it by a call that the program has not `seen`.

    Both of one call may not fit: a state that was read while the copy had yet to follow has both as they were.
    """
    at, of_master = scope.set_at.get(name, 0), scope.set_at.get(master, 0)
    return scope.has(master) and (at > of_master or (at == of_master > seen and not _is_apart(scope, master)))


def _follow(scope: Scope, name: str, master: str, copies: Collection[str]) -> None:
    """Let a copy be its parameter, or the exact value that a copy has which was set with it."""
    value, at = scope.released(name), scope.set_at[name]
    others = (c for c in copies if c != master and scope.set_at.get(c, 0) >= at and scope.has(c))
    exact = next((other for other in others if _is_rounded(scope, other, value)), None)
    if exact is not None:
        scope.take(master, scope.read(exact))
    elif not _is_rounded(scope, master, value):
        scope.take(master, value.astype(float32))
    scope.set_at[master] = at


def _is_rounded(scope: Scope, master: str, value: np.ndarray) -> bool:
    """Whether `value` is the rounding of a copy, which then stays; unknown where processes have pieces of it."""
    if _is_apart(scope, master):
        return False
    exact, given = scope.released(master).reshape(-1), value.reshape(-1)
    pieces = (slice(start, start + PIECE) for start in range(0, given.size, PIECE))
    with np.errstate(over="ignore"):
        same = (np.array_equal(exact[p].astype(given.dtype).view(np.uint8), given[p].view(np.uint8)) for p in pieces)
        return exact.size == given.size and all(same)


def _is_apart(scope: Scope, master: str) -> bool:
    return not getattr(scope.arrays[master], "scopes", True)
