"""Float32 copies of 16-bit parameters follow the values that parameters get from outside of a run.

An update reads the copy, and writes the parameter as its rounding: a value that a user gave to the parameter alone
would be gone after the next step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minigraph.errors import ProgramError
from minigraph.program import Program
from minigraph.program.operator import masters_of
from minigraph.program.scope import Scope
from minigraph.runtime.parallel.in_pieces import InPieces
from minigraph.types import float32


def checked_masters(program: Program) -> dict[str, str]:
    """{parameter: its copy} by name; a ProgramError where an operator writes the parameter alone."""
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
    return {p.name: master.name for p, master in masters.items()}


def follow(scope: Scope, program: Program, masters: Mapping[str, str]) -> None:
    """Let copies be what was set for their parameters since they were set themselves."""
    if scope.followed[program.origin] == scope.sets:
        return
    for name, master in masters.items():
        if scope.set_at.get(name, 0) > scope.set_at.get(master, 0) and scope.has(master):
            value = scope.read(name)
            if not _is_rounded(scope, master, value):
                scope.take(master, value.astype(float32))
    scope.followed[program.origin] = scope.sets


def _is_rounded(scope: Scope, master: str, value: np.ndarray) -> bool:
    """Whether `value` is the rounding of a copy, which then stays; unknown where processes have pieces of it."""
    held = scope.arrays[master]
    if isinstance(held, InPieces) and not held.scopes:
        return False
    with np.errstate(over="ignore"):
        return scope.read(master).astype(value.dtype).tobytes() == value.tobytes()
