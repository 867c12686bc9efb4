"""Paddle's `utils`: names that occur once, versions, imports that may fail."""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph import static, tensor
from minigraph.errors import AttrError, MinigraphError, require
from minigraph.errors.kinds import WRONG_OBJECT
from minigraph.paddle_names.listed import VERSION
from minigraph.program import unique_name


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Refuse a version of Paddle outside [min_version, max_version]; the one that minigraph follows is 2.6.2."""
    for name, version in (("min_version", min_version), ("max_version", max_version)):
        wanted = f"{name} must be a version such as '2.6.2', is {version!r}"
        require(isinstance(version, str) or (version is None and name == "max_version"), wanted, WRONG_OBJECT)
        require(version is None or re.fullmatch(r"\d+(\.\d+){0,3}", version), wanted, AttrError)
    low, own, high = (_numbers(v) for v in (min_version, VERSION, max_version or VERSION))
    if not low <= own <= high:
        wanted = f"at least {min_version}" + (f" and at most {max_version}" if max_version else "")
        raise MinigraphError(f"minigraph follows Paddle {VERSION}, {wanted} is asked for")


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (4 - len(parts)))


def try_import(module_name: str, err_msg: str | None = None) -> Any:
    """The module of this name; an ImportError with `err_msg` where there is none."""
    try:
        return importlib.import_module(module_name)
    except ImportError:
        said = err_msg or f"cannot import {module_name}, install it: pip install {module_name.partition('.')[0]}"
        raise ImportError(said) from None


def deprecated(
    update_to: str = "", since: str = "", reason: str = "", level: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: calls warn that the function is old (level 0 and 1) or are refused (level 2)."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        words = [f"{function.__name__} is deprecated"]
        words += [f"since {since}"] * bool(since) + [f"use {update_to} instead"] * bool(update_to)
        said = ", ".join(words + [reason] * bool(reason))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if level >= 2:
                raise RuntimeError(said)
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return decorated


def run_check() -> None:
    """Compute a small product at the place of `Executor()`; an error where that is wrong."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2, 3])
        out = tensor.matmul(x, x, transpose_y=True)
    fed = np.arange(6, dtype="float32").reshape(2, 3)
    (value,) = static.Executor().run(main, {"x": fed}, [out])
    require((value == fed @ fed.T).all(), "a product of two matrices is wrong on this machine", MinigraphError)


__all__ = ["deprecated", "require_version", "run_check", "try_import", "unique_name"]
