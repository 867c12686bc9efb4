"""What a `fetch_list` asks for: names of values, and updates that are to run.

Its entries are those of Paddle 2.6.2 (`Executor._check_fetch_list`, `_split_optimize_ops_in_fetch_list`):

    variable or name              its value
    [variable, name, update]      values, and updates to run
    (variable, name)              values
    (updates, params_grads)       what `minimize` returned: these updates run
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigraph.errors import FetchError, nearest, shortened
from minigraph.errors.kinds import UNKNOWN_FETCH
from minigraph.program import Operator, Program, Variable
from minigraph.program.variable import check_is_of

IN_A_LIST = "an update runs where it stands in a list, or with all that minimize() returned: fetch_list=[loss, [op]]"
AS_ONE = "put what minimize() returned into the list as one entry: fetch_list=[loss, minimized]"


def read_targets(fetch_list: Any, program: Program) -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """(names of the values to fetch, update operators to run); a FetchError for what is neither.

    program   the user's program that runs: a variable of another one whose name only happens to fit is refused
    """
    names: list[str] = []
    updates: list[Operator] = []
    for entry in fetch_list if isinstance(fetch_list, (list, tuple)) else [fetch_list]:
        if isinstance(entry, Variable):
            names.append(_name_of(entry, program))
        elif isinstance(entry, str):
            names.append(entry)
        elif isinstance(entry, (list, tuple)):
            _read_nested(entry, program, names, updates)
        else:
            raise _refusal(entry)
    return tuple(names), tuple(updates)


def check_known(names: Iterable[str], program: Program) -> None:
    """A FetchError for the first name that is none of a variable of the program."""
    for name in names:
        if name not in program.vars:
            raise UNKNOWN_FETCH(
                f"fetch target {name!r} is not in program {program.name}", hint=nearest(name, program.vars)
            )


def check_updates(updates: tuple[Operator, ...], program: Program) -> None:
    """The operators in a fetch_list must be updates of the program that runs."""
    own = {id(op) for op in program.ops} if updates else ()
    for op in updates:
        if op.role != "optimize":
            raise FetchError(
                f"fetch_list holds the operator {op.type}, which belongs to {op.role} and updates nothing",
                site=op.site, hint="fetch the variable that it computes",
            )  # fmt: skip
        if id(op) not in own:
            raise FetchError(
                f"fetch_list holds the update {op.type} of program {op.block.program.name}, but program {program.name}"
                " runs and does not have it", site=op.site, hint="run the program that minimize() was called for",
            )  # fmt: skip


def _name_of(variable: Variable, program: Program) -> str:
    if variable.block is not program.block0:
        check_is_of(variable, program, "fetch target", FetchError)
    return variable.name


def _read_nested(
    entry: list[Any] | tuple[Any, ...], program: Program, names: list[str], updates: list[Operator]
) -> None:
    """An entry that is itself a list, or a tuple."""
    if isinstance(entry, tuple) and not all(isinstance(v, (Variable, str)) for v in entry):
        if not isinstance(entry[0], (list, tuple)):
            raise _refusal(next(v for v in entry if not isinstance(v, (Variable, str))))
        entry = entry[0]  # of (updates, params_grads)
    for v in entry:
        if isinstance(v, Operator):
            updates.append(v)
        elif isinstance(v, (Variable, str)):
            names.append(_name_of(v, program) if isinstance(v, Variable) else v)
        else:
            raise _refusal(v)


def _refusal(entry: Any) -> FetchError:
    if isinstance(entry, Operator):
        return FetchError("fetch_list holds an Operator; it takes Variables and names", hint=IN_A_LIST)
    if isinstance(entry, (list, tuple)):
        return FetchError(f"fetch_list holds lists in lists: {shortened(repr(entry))}", hint=AS_ONE)
    return FetchError(f"fetch_list holds {shortened(repr(entry))}; it takes Variables and names")
