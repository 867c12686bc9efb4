"""Which programs there are, and their results as JSON keeps them."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
SUBJECTS = sorted(path.stem.removesuffix("_programs") for path in FOLDER.glob("*_programs.py"))
Run = Callable[..., Any]


def programs(subject: str) -> dict[str, Run]:
    """The programs of a subject by name."""
    module = importlib.import_module(f"tests.paddle.{subject}_programs")
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    return {n: f for n, f in functions.items() if [*inspect.signature(f).parameters][:1] == ["paddle"]}


def recorded(subject: str) -> dict[str, Any]:
    """What Paddle gave: {program: result}"""
    return json.loads((FOLDER / "recorded" / f"{subject}.json").read_text(encoding="utf-8"))["results"]


def result(run: Run, paddle: Any, folder: Path) -> Any:
    """What a program gives, in plain numbers and lists; the kind of its error where it raises one.

    A program that takes `folder` may write files there.
    """
    takes_folder = "folder" in inspect.signature(run).parameters
    return as_plain(run(paddle, folder) if takes_folder else run(paddle))


def as_plain(value: Any) -> Any:
    """Arrays as {"type": "float32", "values": nested lists}."""
    if isinstance(value, (np.ndarray, np.generic)):
        return {"type": str(value.dtype), "values": value.tolist()}
    if isinstance(value, dict):
        return {str(k): as_plain(v) for k, v in value.items()}
    return [as_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


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
