"""Weights and states of a training to files and back, as Paddle calls it.

    save(program, "mlp")  ->  mlp.pdparams   parameters           (safetensors)
                              mlp.pdopt      other persistables   (safetensors, only if there are any)
                              mlp.pdmodel    the program's text
                              mlp.manifest   sizes and hashes of these, and the state of the training

A crash at any instant leaves the state before or the new one. `load` changes nothing unless everything
fits, and a training goes on from it with the same bits. runtime/checkpoint is how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, UninitializedError, nearest, require
from minigraph.errors.kinds import NAME, OTHER_PROGRAM, UNKNOWN_NAME
from minigraph.program import Parameter, Program, Variable, default_main_program
from minigraph.program.program import checked_state, set_states
from minigraph.program.scope import Scope, global_scope
from minigraph.program.whole.masters import read_together
from minigraph.runtime.checkpoint.commit import State, commit
from minigraph.runtime.checkpoint.paths import (
    MANIFEST,
    MODEL,
    OPT,
    PARAMS,
    checked_path,
    plain,
    shown,
    text_of,
)
from minigraph.runtime.checkpoint.reader import opened
from minigraph.runtime.checkpoint.tensors import Packed, packed
from minigraph.runtime.checkpoint.training import check_training, resume_training, training_state

from .objects import load as read_object
from .objects import save as write_object

ALL_IN_ONE = "filename= takes all of them into one file"


def get_program_parameter(program: Program) -> list[Parameter]:
    """Its parameters."""
    return program.all_parameters()


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """The variables whose values stay in the Scope between runs."""
    return [v for v in program.list_vars() if v.persistable]


def save_vars(
    executor: Any, dirname: Any, main_program: Program | None = None, vars: Any = None, predicate: Any = None,
    filename: str | None = None,
) -> None:  # fmt: skip
    """Write values of the global scope into a folder: all in one safetensors file, for None one for each variable.

    They are those between two runs, also while another thread trains. `save` is what a crash cannot tear.

    vars       Variables; for None the persistable ones of main_program (the default one for None) that `predicate`, a
               function of a Variable, says
    executor   says nothing here
    """
    files, scope = _files(dirname, main_program, vars, predicate, filename), global_scope()
    with scope.lock, scope.turn.begin():
        for program in {v.program: None for _, chosen in files for v in chosen}:
            names = {v.name for _, chosen in files for v in chosen if v.program is program}
            read_together(scope, program, names)
        values = [{v.name: scope.read(v.name) for v in chosen} for _, chosen in files]
    for (path, _), arrays in zip(files, values, strict=True):
        write_object(arrays, path)


def load_vars(
    executor: Any, dirname: Any, main_program: Program | None = None, vars: Any = None, predicate: Any = None,
    filename: str | None = None,
) -> None:  # fmt: skip
    """Read what `save_vars` wrote into the global scope, unless something does not fit; its arguments are the same."""
    values: dict[Program, dict[str, Any]] = {}
    for path, chosen in _files(dirname, main_program, vars, predicate, filename):
        arrays = read_object(path)
        missing = [v.name for v in chosen if v.name not in arrays]
        require(not missing, f"{shown(str(path))} does not have {', '.join(missing)}", ProgramError)
        for v in chosen:
            values.setdefault(v.program, {})[v.name] = arrays[v.name]
    checked = [checked_state(program, own) for program, own in values.items()]
    set_states(global_scope(), {name: array for own in checked for name, array in own.items()}, "load_vars")


def _files(
    dirname: Any, program: Program | None, vars: Any, predicate: Any, filename: str | None
) -> list[tuple[Path, list[Variable]]]:
    """The files of save_vars with the variables that are in each."""
    program = default_main_program() if program is None else program
    states = get_program_persistable_vars(program)
    chosen = list(vars) if vars is not None else [v for v in states if predicate is None or predicate(v)]
    require(chosen, "there are no variables to save or load", ProgramError)
    folder = Path(text_of(dirname, "dirname"))
    if filename is not None:
        return [(folder / text_of(filename, "filename"), chosen)]
    known: dict[Path, Variable] = {}
    for v in chosen:
        own = Path(v.name)
        outside = own.is_absolute() or ".." in own.parts
        require(not outside, f"the file of {v} would lie outside of {shown(str(folder))}", NAME, ALL_IN_ONE)
        other = known.setdefault(own, v)
        require(other is v, f"{v} and {other} would have one file in {shown(str(folder))}", NAME, ALL_IN_ONE)
    return [(folder / v.name, [v]) for v in chosen]


def save(program: Program, model_path: str, protocol: int = 4, **configs: Any) -> None:
    """Write the state of `program` in the global scope to files at `model_path`; what is there holds until then.

    Kept are the values of all persistable variables, learning-rate schedulers, the counter of runs and the seed: `load`
    goes on from there. The state is that between two runs, also while another thread trains; it is copied first.
    Savers of one path come one after the other.

    protocol  Paddle's pickle version, says nothing here
    Errors: ProgramError where files cannot be written (the state before is still there), UninitializedError.
    """
    _check_program(program, "save")
    path, scope = checked_path(model_path), global_scope()
    _values(program, scope, copy=False)

    def state_of(token: str) -> State:
        with scope.lock, scope.turn.begin():
            read_together(scope, program, [v.name for v in program.list_vars()])
            parameters, others = _values(program, scope)
            training = training_state(program, scope)
        files = {PARAMS: packed(parameters, token), MODEL: Packed(program.to_string().encode(), {})}
        if others:
            files[OPT] = packed(others, token)
        return State(files, training)

    commit(path, state_of)


def load(
    program: Program, model_path: str, executor: Any = None, var_list: Iterable[Variable] | None = None, *,
    verify: bool = True,
) -> None:  # fmt: skip
    """Put the state that `save` wrote into the global scope and into the program's learning-rate schedulers.

    var_list  only the values of these variables; all persistable ones and the state of the training by default
    verify    refuse files that are not those that were saved, by sizes and SHA-256
    Names, shapes and types must be those of the program. The states of an optimizer and of the training are left out
    where the program has no optimizer, as a clone(for_test=True).
    Errors: ProgramError, and nothing is changed.
    """
    _check_program(program, "load")
    path, scope = checked_path(model_path), global_scope()
    parameters, others = _persistables(program)
    wanted = None if var_list is None else {v.name if isinstance(v, Variable) else str(v) for v in var_list}
    if wanted is not None:
        for name in wanted - {v.name for v in (*parameters, *others)}:
            raise UNKNOWN_NAME(f"var_list holds {name}, no persistable variable")
        parameters, others = ([v for v in vs if v.name in wanted] for vs in (parameters, others))
    by_kind = {kind: variables for kind, variables in ((PARAMS, parameters), (OPT, others)) if variables}
    state: dict[str, np.ndarray] = {}
    updates = any(op.role == "optimize" for op in program.ops)
    with opened(path, list(by_kind), verify) as checkpoint:
        goes_on = wanted is None and (bool(others) or not checkpoint.has(OPT))  # it is the training that was saved
        for kind, variables in by_kind.items():
            arrays = checkpoint.read(kind)
            if kind == OPT and not updates and arrays.keys() - {v.name for v in variables}:
                arrays, goes_on = {v.name: arrays[v.name] for v in variables if v.name in arrays}, False
            state |= _checked(plain(path, kind), arrays, variables, exact=wanted is None)
        training = checkpoint.training if goes_on else {}
    if training:
        check_training(program, training, shown(plain(path, MANIFEST)))
    with scope.lock, scope.turn.begin(), scope.replacing(state, f"a load of {shown(path)}"):
        if training:
            resume_training(program, scope, training)
        for name, array in state.items():
            scope.take(name, array)
        scope.were_set(state)


def load_program_state(
    model_path: str, var_list: Iterable[Variable] | None = None, *, verify: bool = True
) -> dict[str, np.ndarray]:
    """{name: array} of all values that `save` wrote, or of those in `var_list`.

    verify  refuse files that are not those that were saved, by sizes and SHA-256
    """
    path = checked_path(model_path)
    state: dict[str, np.ndarray] = {}
    with opened(path, verify=verify) as checkpoint:
        for kind in (PARAMS, OPT):
            if kind == PARAMS or checkpoint.has(kind):
                state |= checkpoint.read(kind)
    if var_list is None:
        return state
    names = [v.name if isinstance(v, Variable) else str(v) for v in var_list]
    for name in names:
        if name not in state:
            raise OTHER_PROGRAM(f"{shown(path)} holds no {name}", hint=nearest(name, state))
    return {name: state[name] for name in names}


def set_program_state(program: Program, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
    """Put {name: array} into the scope; nothing is changed unless all fit."""
    _check_program(program, "set_program_state")
    program.set_state_dict(state_dict, scope)


def _persistables(program: Program) -> tuple[list[Variable], list[Variable]]:
    """Parameters, and the other persistable variables."""
    variables = [v for v in program.list_vars() if v.persistable]
    return [v for v in variables if isinstance(v, Parameter)], [v for v in variables if not isinstance(v, Parameter)]


def _values(
    program: Program, scope: Scope, copy: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Copies of the values of parameters and of other persistables, by name; each must have one."""
    both = _persistables(program)
    for v in (*both[0], *both[1]):
        if not scope.has(v.name):
            raise UninitializedError(
                f"{v} has no value in the scope", call="save", hint="run the startup program first"
            )
    parameters, others = ({v.name: _copy(v, scope) for v in vs if copy} for vs in both)
    return parameters, others


def _copy(v: Variable, scope: Scope) -> np.ndarray:
    """A copy of a value; one that `load` would refuse is refused, and the state before stays."""
    array = scope.read(v.name)
    if array.dtype != v.dtype or not v.type.accepts(v.type.with_shape(array.shape)):
        raise ProgramError(f"{v} is {array.dtype}{list(array.shape)} in the scope", call="save")
    return array


def _checked(
    path: str, arrays: dict[str, np.ndarray], variables: list[Variable], exact: bool
) -> dict[str, np.ndarray]:
    """The arrays of `variables`; with `exact` the file must hold no others."""
    known = {v.name: v for v in variables}
    missing = [name for name in known if name not in arrays]
    unknown = [name for name in arrays if name not in known] if exact else []
    for names, fact in ((missing, "lacks"), (unknown, "holds, unknown to the program,")):
        if names:
            hint = nearest(names[0], arrays if names is missing else known)
            raise OTHER_PROGRAM(f"{shown(path)} {fact} {', '.join(names[:5])}", hint=hint)
    for name, v in known.items():
        array = arrays[name]
        if array.dtype != v.dtype or not v.type.accepts(v.type.with_shape(array.shape)):
            raise OTHER_PROGRAM(
                f"{shown(path)} holds {name} as {array.dtype}{list(array.shape)}, the program has {v}"
            )
    return {name: arrays[name] for name in known}


def _check_program(program: Any, call: str) -> None:
    if not isinstance(program, Program):
        raise ProgramError(f"program must be a Program, is {program!r}"[:200], call=call)
    program.check_whole()


__all__ = ["load", "load_program_state", "save", "set_program_state"]
