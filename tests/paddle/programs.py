"""Which programs there are, and their results as JSON keeps them."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
PRECISION = {"float64": 1e-10, "float32": 2e-6}  # relative and absolute
SUBJECTS = sorted(path.stem.removesuffix("_programs") for path in FOLDER.glob("*_programs.py"))
Run = Callable[..., Any]


def programs(subject: str) -> dict[str, Run]:
    """The programs of a subject by name: functions of the package, and the CASES of the module."""
    module = module_of(subject)
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    named = {n: f for n, f in functions.items() if [*inspect.signature(f).parameters][:1] == ["paddle"]}
    return named | getattr(module, "CASES", {})


def slips(subject: str) -> dict[str, str]:
    """{program: why minigraph's result is not Paddle's}"""
    return getattr(module_of(subject), "SLIPS", {})


def rounding(subject: str, name: str) -> float:
    """How far results may be apart where Paddle rounds more, by parts of names; 0 is the precision of their type."""
    parts: dict[str, float] = getattr(module_of(subject), "NEAR", {})
    return parts.get(name) or max((size for part, size in parts.items() if part in name), default=0.0)


def module_of(subject: str) -> ModuleType:
    return importlib.import_module(f"tests.paddle.{subject}_programs")


def recorded(subject: str) -> dict[str, Any]:
    """What Paddle gave: {program: result}"""
    return json.loads((FOLDER / "recorded" / f"{subject}.json").read_text(encoding="utf-8"))["results"]


def result(run: Run, paddle: Any, folder: Path) -> Any:
    """What a program gives, in plain numbers and lists; the kind of its error where it raises one.

    A program that takes `folder` may write files there.
    """
    takes_folder = "folder" in inspect.signature(run).parameters
    return as_plain(run(paddle, folder) if takes_folder else run(paddle))


@contextmanager
def fresh(paddle: Any) -> Iterator[None]:
    """Empty programs, an empty scope, names counted from 0; the default type is what it was in the end."""
    dtype = paddle.get_default_dtype()
    main, startup = paddle.static.Program(), paddle.static.Program()
    scope = paddle.static.scope_guard(paddle.static.Scope())
    with paddle.static.program_guard(main, startup), scope, paddle.utils.unique_name.guard():
        try:
            yield
        finally:
            paddle.set_default_dtype(dtype)


def as_plain(value: Any) -> Any:
    """Arrays as {"type": "float32", "values": nested lists}; with "shape" where no list shows it."""
    if isinstance(value, (np.ndarray, np.generic)):
        plain = {"type": str(value.dtype), "values": value.tolist()}
        return plain if value.size else {**plain, "shape": list(value.shape)}
    if isinstance(value, dict):
        return {str(k): as_plain(v) for k, v in value.items()}
    return [as_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def differences(own: Any, expected: Any, near: float = 0.0, at: str = "") -> list[str]:
    """Where two plain results differ by more than rounding of their type, or by more than `near`."""
    if isinstance(expected, dict) and isinstance(own, dict):
        if own.keys() != expected.keys():
            return [f"{at}: keys {sorted(own)} != {sorted(expected)}"]
        near = near or PRECISION.get(str(expected.get("type")), 0.0)
        return [d for key in expected for d in differences(own[key], expected[key], near, f"{at}.{key}")]
    if isinstance(expected, list) and isinstance(own, list):
        if len(own) != len(expected):
            return [f"{at}: {own} != {expected}"]
        pairs = enumerate(zip(own, expected, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, near, f"{at}[{i}]")]
    if isinstance(expected, float) and isinstance(own, float):
        near = near or PRECISION["float32"]
        close = math.isclose(own, expected, rel_tol=near, abs_tol=near)
        return [] if close or (math.isnan(own) and math.isnan(expected)) else [f"{at}: {own} != {expected}"]
    return [] if type(own) is type(expected) and own == expected else [f"{at}: {own!r} != {expected!r}"]


def raised(call: Callable[[], Any]) -> str:
    """`ValueError` where a call raises that or a kind of it, else the name of what it raises; "" for nothing."""
    try:
        call()
    except Exception as error:
        known = (ValueError, TypeError, AttributeError, IndexError, KeyError, RuntimeError, ImportError)
        return next((kind.__name__ for kind in known if isinstance(error, kind)), "Exception")
    return ""


def started(paddle: Any) -> Any:
    """An Executor for the CPU that has run the startup program."""
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    return exe


def filled(paddle: Any) -> Any:
    """An Executor that has run the startup program; every parameter then holds numbers that its name decides."""
    exe, scope = started(paddle), paddle.static.global_scope()
    for parameter in paddle.static.default_main_program().all_parameters():
        numbers = np.random.RandomState(zlib.crc32(parameter.name.encode()))
        value = numbers.uniform(-0.5, 0.5, tuple(parameter.shape)).astype("float32")
        scope.find_var(parameter.name).get_tensor().set(value, paddle.CPUPlace())
    return exe


def run(paddle: Any, fetched: list[Any], **feed: Any) -> Any:
    """What the default program gives with such parameters."""
    return filled(paddle).run(feed=feed, fetch_list=fetched)
