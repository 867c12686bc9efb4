"""minigraph has static mode only; these exist so that Paddle scripts run."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any


def enable_static() -> None:
    """Static mode, which is always on."""


def in_dynamic_mode() -> bool:
    """False: programs are built first and run by an Executor."""
    return False


class no_grad(contextlib.ContextDecorator):
    """`with no_grad():` or `@no_grad()`, which changes nothing in a program, as in Paddle's static mode, and says so.

    A function may stand in the parentheses: `no_grad(f)` is f.
    """

    def __new__(cls, func: Any = None) -> Any:
        return super().__new__(cls) if func is None else cls()(func)

    def __enter__(self) -> None:
        warnings.warn(
            "no_grad changes nothing in a program, as in Paddle's static mode; set variable.stop_gradient = True or"
            " pass no_grad_set= to minimize",
            stacklevel=2,
        )

    def __exit__(self, *problem: Any) -> None:
        pass
