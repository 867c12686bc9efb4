"""Weights to files and back.

    save(program, "mlp")  ->  mlp.pdparams  parameters            (safetensors)
                              mlp.pdopt     other persistables    (safetensors, only if there are any)
                              mlp.pdmodel   the program's text

A file is written under another name, forced to the disk and then renamed, so that a crash leaves the
old one or the new one. Both weight files of one save carry the same mark, and `load` refuses a pair
from different saves. `load` changes nothing unless everything fits.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialize

from ..errors import ProgramError, UninitializedError, nearest, require
from ..program import Parameter, Program, Variable
from ..scope import Scope, global_scope
from ..types import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8

DTYPES = {
    "F64": float64, "F32": float32, "F16": float16, "BF16": bfloat16, "I64": int64, "I32": int32, "I16": int16,
    "I8": int8, "U8": uint8, "BOOL": bool_,
}  # fmt: skip
MARK = "minigraph_save"


def save(program: Program, model_path: str, protocol: int = 4, **configs: Any) -> None:
    """Write the persistable values of `program` in the global scope, and its text, to files at `model_path`.

    protocol is Paddle's pickle version and says nothing here.
    """
    _check_program(program, "save")
    path, scope = _checked_path(model_path, "save"), global_scope()
    parameters, others = _persistables(program)
    for v in (*parameters, *others):
        if not scope.has(v.name):
            raise UninitializedError(
                f"{v} has no value in the scope", call="save", hint="run the startup program first"
            )
    mark = {MARK: secrets.token_hex(8)}
    if others:
        _write(f"{path}.pdopt", serialize({v.name: scope.read(v.name) for v in others}, mark))
    _write(f"{path}.pdparams", serialize({v.name: scope.read(v.name) for v in parameters}, mark))
    _write(f"{path}.pdmodel", program.to_string().encode())


def load(program: Program, model_path: str, executor: Any = None, var_list: Iterable[Variable] | None = None) -> None:
    """Put the values that `save` wrote into the global scope.

    var_list  only these variables; all persistable ones by default
    Names, shapes and types must be those of the program. Optimizer states in the file are left out where
    the program has none, as a clone(for_test=True).
    """
    _check_program(program, "load")
    path, scope = _checked_path(model_path, "load"), global_scope()
    parameters, others = _persistables(program)
    wanted = None if var_list is None else {v.name if isinstance(v, Variable) else str(v) for v in var_list}
    if wanted is not None:
        for name in wanted - {v.name for v in (*parameters, *others)}:
            raise ProgramError(f"var_list holds {name}, no persistable variable", call="load")
        parameters, others = ([v for v in vs if v.name in wanted] for vs in (parameters, others))
    state: dict[str, np.ndarray] = {}
    marks = set()
    for variables, ending in ((parameters, ".pdparams"), (others, ".pdopt")):
        if variables:
            arrays, mark = _read(path + ending)
            state |= _checked(path + ending, arrays, variables, exact=wanted is None)
            marks.add(mark)
    if len(marks) > 1:
        raise ProgramError(
            f"{path}.pdparams and {path}.pdopt come from different saves", call="load"
        )
    program.set_state_dict(state, scope)


def load_program_state(model_path: str, var_list: Iterable[Variable] | None = None) -> dict[str, np.ndarray]:
    """{name: array} of everything that `save` wrote."""
    path = _checked_path(model_path, "load_program_state")
    state, _ = _read(f"{path}.pdparams")
    if os.path.exists(f"{path}.pdopt"):
        state |= _read(f"{path}.pdopt")[0]
    if var_list is None:
        return state
    names = [v.name if isinstance(v, Variable) else str(v) for v in var_list]
    for name in names:
        if name not in state:
            raise ProgramError(f"{path} holds no {name}", hint=nearest(name, state))
    return {name: state[name] for name in names}


def set_program_state(program: Program, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
    """Put {name: array} into the scope; nothing is changed unless all fit."""
    _check_program(program, "set_program_state")
    program.set_state_dict(state_dict, scope)


def _persistables(program: Program) -> tuple[list[Variable], list[Variable]]:
    """Parameters, and the other persistable variables."""
    found = [v for v in program.list_vars() if v.persistable]
    return [v for v in found if isinstance(v, Parameter)], [v for v in found if not isinstance(v, Parameter)]


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
            raise ProgramError(f"{path} {fact} {', '.join(names[:5])}", call="load", hint=hint)
    for name, v in known.items():
        array = arrays[name]
        if array.shape != v.shape or array.dtype != v.dtype:
            raise ProgramError(
                f"{path} holds {name} as {array.dtype}{list(array.shape)}, the program has {v}", call="load",
            )  # fmt: skip
    return {name: arrays[name] for name in known}


def _read(path: str) -> tuple[dict[str, np.ndarray], str | None]:
    """The arrays of a safetensors file and the mark of the save that wrote it."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as problem:
        raise ProgramError(f"cannot read {path}: {problem.strerror}", call="load") from None
    try:
        arrays = {
            name: np.frombuffer(t["data"], DTYPES[t["dtype"]]).reshape(t["shape"]) for name, t in deserialize(content)
        }
    except (SafetensorError, KeyError, ValueError) as problem:
        raise ProgramError(f"{path} is no file of weights: {problem}", call="load") from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return arrays, header.get("__metadata__", {}).get(MARK)


def _write(path: str, content: bytes) -> None:
    """Replace the file at `path` in one step."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as problem:
        if os.path.exists(partial):
            os.remove(partial)
        raise ProgramError(f"cannot write {path}: {problem.strerror}", call="save") from None


def _checked_path(model_path: Any, call: str) -> str:
    """The path without a file's ending; its folder is made where needed."""
    require(isinstance(model_path, (str, os.PathLike)), f"model_path must be a path, is {model_path!r}", ProgramError)
    path = os.fspath(model_path)
    for ending in (".pdparams", ".pdopt", ".pdmodel"):
        path = path.removesuffix(ending)
    if not os.path.basename(path) or "\0" in path:
        raise ProgramError(f"{model_path!r} names no file", call=call)
    if call == "save":
        folder = os.path.dirname(path) or "."
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as problem:
            raise ProgramError(f"cannot make {folder}: {problem.strerror}", call=call) from None
    return path


def _check_program(program: Any, call: str) -> None:
    if not isinstance(program, Program):
        raise ProgramError(f"program must be a Program, is {program!r}"[:200], call=call)


__all__ = ["load", "load_program_state", "save", "set_program_state"]
