"""HostFunction: a function of Python as an attribute; in the text form only its name is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import ProgramError


class HostFunction:
    """A function of Python, or the name of one that a text had.

    name   `module.function`, as the text shows it
    """

    def __init__(self, name: str, function: Callable[..., Any] | None = None) -> None:
        self.name, self.function = name, function

    @classmethod
    def of(cls, value: Any) -> HostFunction:
        """The function, the name of one in a text, or what this was made of before; else a TypeError."""
        if isinstance(value, HostFunction):
            return value
        if isinstance(value, str):
            return cls(value)
        if not callable(value):
            raise TypeError
        return cls(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}", value)

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            raise ProgramError(
                f"{self.name} is not here: the text of a program has only the name of a function",
                hint="build the program with the function",
            )
        return self.function(*args)

    def __repr__(self) -> str:
        return f"<function {self.name} {id(self.function)}>"
