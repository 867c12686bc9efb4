"""`mg.save` and `mg.load`: states and other plain data in one safetensors file each, never a pickle.

A dict of arrays by name, as `program.state_dict()` gives, is an ordinary safetensors file. Of other data the file holds
the arrays, and a description of what stands around them in JSON.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, shortened
from minigraph.errors.kinds import DAMAGED, NO_NUMBERS, WRONG_OBJECT
from minigraph.ir.text import parse
from minigraph.program import Program, Variable
from minigraph.program.scope import ScopeTensor, ScopeVariable
from minigraph.runtime.checkpoint.paths import shown
from minigraph.runtime.checkpoint.single import file_path, read_arrays, write_file
from minigraph.runtime.checkpoint.tensors import packed
from minigraph.types import NO_ARRAY, as_numpy

AROUND = "__structure__"
DEEPEST = 64


def save(obj: Any, path: Any, protocol: int = 4, **configs: Any) -> None:
    """Write `obj` to the file at `path`. After a crash the file has its old content or all of the new one.

    obj       dicts with names as keys, lists, tuples, arrays, numbers, texts, None; or a Program
    protocol  Paddle's pickle version, says nothing here, as configs
    """
    arrays: dict[str, np.ndarray] = {}
    if isinstance(obj, dict) and obj and AROUND not in obj and all(_is_array(v) for v in obj.values()):
        arrays = {_named(name): _array(value) for name, value in obj.items()}
    else:
        around = json.dumps(_described(obj, arrays, 0), allow_nan=True)
        arrays[AROUND] = np.frombuffer(around.encode(), np.uint8)
    write_file(file_path(path), packed(arrays, "").parts())


def load(path: Any, **configs: Any) -> Any:
    """What `save` wrote, arrays as NumPy's; of any other safetensors file its arrays by name.

    configs  Paddle's return_numpy and others: say nothing here
    A pickle, as Paddle writes it, is refused with a hint and never opened.
    """
    name = file_path(path)
    arrays = read_arrays(name)
    around = arrays.pop(AROUND, None)
    if around is None:
        return arrays
    try:
        return _rebuilt(json.loads(around.tobytes().decode()), arrays, 0)
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, ProgramError):
            raise
        raise DAMAGED(f"{shown(name)} is damaged: {shortened(str(problem))}") from None


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, ScopeTensor, ScopeVariable)) or hasattr(value, "__cuda_array_interface__")


def _array(value: Any) -> np.ndarray:
    value = value.get_tensor() if isinstance(value, ScopeVariable) else value
    try:
        return np.asarray(value) if isinstance(value, ScopeTensor) else as_numpy(value)
    except NO_ARRAY as problem:
        raise NO_NUMBERS(f"an array cannot be saved: {problem}") from None


def _named(name: Any) -> str:
    if not isinstance(name, str):
        raise WRONG_OBJECT(f"keys of what is saved are texts, one is {shortened(repr(name))}")
    return name


def _described(obj: Any, arrays: dict[str, np.ndarray], depth: int) -> Any:
    """`obj` for JSON: [kind, content]; arrays go to `arrays`."""
    if depth > DEEPEST:
        raise ProgramError(f"what is saved has more than {DEEPEST} levels, or holds itself")
    if obj is None or isinstance(obj, (bool, int, float, str)):
        return obj
    if isinstance(obj, dict):
        return {"dict": {_named(k): _described(v, arrays, depth + 1) for k, v in obj.items()}}
    if isinstance(obj, (list, tuple)):
        kind = "tuple" if isinstance(obj, tuple) else "list"
        return {kind: [_described(v, arrays, depth + 1) for v in obj]}
    if isinstance(obj, Program):
        return {"program": obj.to_string()}
    if isinstance(obj, Variable):
        raise WRONG_OBJECT(f"variable {obj} has no value of its own", hint="save variable.get_value()")
    if _is_array(obj) or isinstance(obj, np.generic):
        name = f"array {len(arrays)}"
        arrays[name] = _array(obj)
        return {"array": name}
    raise WRONG_OBJECT(
        f"a {type(obj).__name__} cannot be saved: {shortened(repr(obj))}",
        hint="dicts, lists, tuples, arrays, numbers, texts, None and Programs can",
    )


def _rebuilt(described: Any, arrays: dict[str, np.ndarray], depth: int) -> Any:
    if depth > DEEPEST:
        raise DAMAGED(f"what was saved has more than {DEEPEST} levels")
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "dict":
        return {k: _rebuilt(v, arrays, depth + 1) for k, v in content.items()}
    if kind in ("list", "tuple"):
        parts = [_rebuilt(v, arrays, depth + 1) for v in content]
        return tuple(parts) if kind == "tuple" else parts
    return parse(content, "<saved program>") if kind == "program" else arrays[content]


__all__ = ["load", "save"]
