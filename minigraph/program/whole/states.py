"""Values that belong together, into a Scope: all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minigraph.errors import ProgramError, raise_unknown, require, shortened
from minigraph.errors.kinds import NO_NUMBERS, UNKNOWN_NAME, no_memory
from minigraph.types import NO_ARRAY, as_numpy, in_one_piece, why_no_array

from ..scope import Scope

if TYPE_CHECKING:
    from ..program import Program


def set_states(scope: Scope, values: Mapping[str, np.ndarray], call: str) -> None:
    """Let `call` give these values, which `checked_state` made and nobody else has."""
    with scope.lock, scope.turn.begin(), scope.replacing(values, f"a {call}"):
        for name, array in values.items():
            scope.take(name, array)
        scope.were_set(values)


def checked_state(program: Program, state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values as arrays, if each of them fits its variable."""
    if not isinstance(state_dict, Mapping):
        raise ProgramError(f"state_dict must be a dict, is {shortened(repr(state_dict))}")
    known = [v.name for v in list(program.vars.values()) if v.persistable]
    checked = {}
    for name, value in state_dict.items():
        if name not in program.vars:
            raise_unknown("persistable variable", name, known, UNKNOWN_NAME)
        v = program.vars[name]
        try:
            array = in_one_piece(np.array(as_numpy(value), order="C"))
        except NO_ARRAY as problem:
            raise NO_NUMBERS(f"value of {name} is {why_no_array(value, problem)}") from None
        except MemoryError as problem:
            raise no_memory(f"a copy of {name}", problem) from problem
        require(v.persistable, f"{name} is not persistable", ProgramError)
        require(
            array.dtype == v.dtype and v.type.accepts(v.type.with_shape(array.shape)),
            f"state of {v} has shape {list(array.shape)} and type {array.dtype}",
        )
        checked[name] = array
    return checked
