"""Inference models: the part of a program that computes results from inputs, with its weights, in files or bytes.

    save_inference_model("net", [x], [out], exe)  ->  net.pdmodel     the program's text, to read
                                                      net.pdiparams   weights and the same text (safetensors)

The second file is the model: it is written last and in one step, so a crash leaves the model before or the new one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import (
    DTypeError,
    MinigraphError,
    ProgramError,
    UninitializedError,
    nearest,
    require,
)
from minigraph.errors.kinds import DAMAGED, NAME, OTHER_PROGRAM, STORAGE, WRONG_OBJECT
from minigraph.ir.text import parse
from minigraph.program import Program, Variable, default_main_program
from minigraph.program.inference import inference_program
from minigraph.program.scope import Scope, global_scope
from minigraph.runtime.checkpoint.foreign import PREFIX, foreign
from minigraph.runtime.checkpoint.paths import shown, text_of
from minigraph.runtime.checkpoint.single import file_path, read_arrays, read_file, write_file
from minigraph.runtime.checkpoint.tensors import packed, unpacked
from minigraph.runtime.executor import Executor

MODEL, PARAMS = ".pdmodel", ".pdiparams"
PROGRAM = "__program__"  # the text among the weights


def normalize_program(program: Program, feed_vars: Any, fetch_vars: Any, **kwargs: Any) -> Program:
    """A copy of what computes fetch_vars from feed_vars, without training, in the form for tests.

    Errors: DTypeError for arguments of other types, ProgramError where a value needs another input.
    """
    _options("normalize_program", kwargs, ("skip_prune_program",))
    require(isinstance(program, Program), f"program must be a Program, is {program!r}"[:200], WRONG_OBJECT)
    feeds, fetches = _variables("feed_vars", feed_vars), _variables("fetch_vars", fetch_vars)
    return inference_program(program, feeds, fetches)


def save_inference_model(path_prefix: Any, feed_vars: Any, fetch_vars: Any, executor: Any, **kwargs: Any) -> None:
    """Write what computes fetch_vars from feed_vars, with the weights of the global scope, to files at path_prefix.

    feed_vars, fetch_vars  a Variable or a list of such; a load gives them back in this order
    program                the program they belong to; the default main program for None
    Errors: ProgramError where a value needs another input or files cannot be written, UninitializedError.
    """
    _options("save_inference_model", kwargs, ("program", "clip_extra", "legacy_format"))
    prefix = _prefix(path_prefix)
    _check_executor(executor)
    program = _program(kwargs)
    feeds, fetches = (_variables(w, v, ProgramError) for w, v in (("feed_vars", feed_vars), ("fetch_vars", fetch_vars)))
    model = inference_program(program, feeds, fetches)
    text, weights = model.to_string().encode(), _weights(model, global_scope())
    file = packed(weights | {PROGRAM: np.frombuffer(text, np.uint8)}, "")
    write_file(prefix + MODEL, [text])
    write_file(prefix + PARAMS, file.parts())


def load_inference_model(path_prefix: Any, executor: Any, **kwargs: Any) -> list[Any]:
    """[program, names to feed, Variables to fetch] of a model; its weights go to the global scope.

    path_prefix      as in save_inference_model; None takes bytes in place of the files' names below
    model_filename   the file of the program, if it has another name
    params_filename  that of the weights
    Files of Paddle's own are refused with a hint and never opened.
    """
    _options("load_inference_model", kwargs, ("model_filename", "params_filename"))
    _check_executor(executor)
    model, params = kwargs.get("model_filename"), kwargs.get("params_filename")
    if path_prefix is None:
        program = deserialize_program(model)  # pyright: ignore[reportArgumentType]  # which it checks
        state = unpacked(_bytes("params_filename", params), "the bytes of params_filename")
    else:
        program, state = _read(_prefix(path_prefix), model, params)
    _take(program, state)
    feeds = [v.name for v in program.list_vars() if v.is_data]
    return [program, feeds, [program.vars[name] for name in program.fetched]]


def serialize_program(feed_vars: Any, fetch_vars: Any, **kwargs: Any) -> bytes:
    """The text of what computes fetch_vars from feed_vars, as bytes."""
    _options("serialize_program", kwargs, ("program", "legacy_format"))
    return normalize_program(_program(kwargs), feed_vars, fetch_vars).to_string().encode()


def serialize_persistables(feed_vars: Any, fetch_vars: Any, executor: Any, **kwargs: Any) -> bytes:
    """The weights that compute fetch_vars from feed_vars, as the bytes of a safetensors file."""
    _options("serialize_persistables", kwargs, ("program",))
    _check_executor(executor)
    model = normalize_program(_program(kwargs), feed_vars, fetch_vars)
    return b"".join(packed(_weights(model, global_scope()), "").parts())


def deserialize_program(data: bytes) -> Program:
    """The Program whose text these bytes are."""
    content = _bytes("data", data)
    try:
        return parse(content.decode(), "<bytes>")
    except UnicodeDecodeError:
        raise _no_program("these bytes are", content) from None


def deserialize_persistables(program: Program, data: bytes, executor: Any) -> None:
    """Put weights that serialize_persistables gave into the global scope; nothing is changed unless all fit."""
    _check_executor(executor)
    _take(program, unpacked(_bytes("data", data), "these bytes"))


def save_to_file(path: Any, content: bytes) -> None:
    """Write bytes to a file, which holds what it held or all of them, whenever a crash comes."""
    write_file(file_path(path), [_bytes("content", content)])


def load_from_file(path: Any) -> bytes:
    """The bytes of a file."""
    return read_file(file_path(path))


def _read(prefix: str, model: Any, params: Any) -> tuple[Program, dict[str, np.ndarray]]:
    """Program and weights of the files at a prefix."""
    folder = os.path.dirname(prefix)
    model, params = (
        file_path(os.path.join(folder, text_of(name, what))) if name is not None else prefix + ending
        for what, name, ending in (("model_filename", model, MODEL), ("params_filename", params, PARAMS))
    )
    there = os.path.lexists(model)
    text = read_file(model) if there or not os.path.lexists(params) else b""
    if text and (why := foreign(text[:PREFIX])):
        raise DAMAGED(f"{shown(model)} is {why[0]}", hint=why[1])
    state = read_arrays(params)
    inside = state.pop(PROGRAM, None)
    if inside is not None:
        if there and inside.tobytes() != text:
            warnings.warn(f"{shown(model)} is not the program in {shown(params)}, which is taken", stacklevel=3)
        text = inside.tobytes()
    try:
        return parse(text.decode(), model), state
    except UnicodeDecodeError:
        raise _no_program(f"{shown(model)} is", text) from None


def _take(program: Program, state: dict[str, np.ndarray]) -> None:
    """Put weights into the global scope: all that the program reads and no others."""
    require(isinstance(program, Program), f"program must be a Program, is {program!r}"[:200], WRONG_OBJECT)
    state.pop(PROGRAM, None)
    own = [v.name for v in program.list_vars() if v.persistable]
    missing = [name for name in own if name not in state]
    if missing:
        raise OTHER_PROGRAM(f"the weights lack {', '.join(missing[:5])}", hint=nearest(missing[0], state))
    program.set_state_dict(state)


def _weights(model: Program, scope: Scope) -> dict[str, np.ndarray]:
    kept = [v for v in model.list_vars() if v.persistable]
    for v in kept:
        if not scope.has(v.name):
            raise UninitializedError(f"{v} has no value in the scope", hint="run the startup program first")
        require(v.name != PROGRAM, f"a variable of a model cannot be called {PROGRAM}", NAME)
    with scope.lock, scope.turn.begin():
        return {v.name: scope.read(v.name) for v in kept}


def _variables(what: str, values: Any, error: type[MinigraphError] = DTypeError) -> Sequence[Variable]:
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    fits = all(isinstance(v, Variable) for v in listed) and (listed or what == "feed_vars")
    require(fits, f"{what} must be a Variable or a list of such, is {values!r}"[:200], error)
    return listed


def _prefix(path: Any) -> str:
    prefix = text_of(path, "path_prefix").removesuffix(MODEL).removesuffix(PARAMS)
    require(os.path.basename(prefix), f"path_prefix {shown(prefix)!r} names no file", STORAGE)
    return file_path(prefix + MODEL).removesuffix(MODEL)


def _program(kwargs: dict[str, Any]) -> Program:
    program = kwargs.get("program")
    program = program if program is not None else default_main_program()
    program = getattr(program, "before", None) or program  # of a CompiledProgram
    require(isinstance(program, Program), f"program must be a Program, is {program!r}"[:200], WRONG_OBJECT)
    return program


def _check_executor(executor: Any) -> None:
    require(isinstance(executor, Executor), f"executor must be an Executor, is {executor!r}"[:200], WRONG_OBJECT)


def _bytes(what: str, content: Any) -> bytes:
    require(isinstance(content, bytes), f"{what} must be bytes, is {type(content).__name__}", ProgramError)
    return content


def _no_program(what: str, content: bytes) -> ProgramError:
    why = foreign(content[:PREFIX])
    return DAMAGED(f"{what} {why[0] if why else 'no text of a program'}", hint=why[1] if why else None)


def _options(call: str, kwargs: dict[str, Any], known: Sequence[str]) -> None:
    for name in kwargs:
        require(name in known, f"{call} has no argument {name!r}", WRONG_OBJECT, nearest(name, known))


__all__ = [
    "deserialize_persistables", "deserialize_program", "load_from_file", "load_inference_model", "normalize_program",
    "save_inference_model", "save_to_file", "serialize_persistables", "serialize_program",
]  # fmt: skip
