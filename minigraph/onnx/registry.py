"""The tables of forms, and the refusal of what has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import ProgramError

FORMS: dict[str, Callable[..., Any]] = {}
EXACT: set[str] = set()  # operators that only move values
SAME: dict[str, str] = {}  # one standard operator, operand by operand

TRAINING = "export an inference program: program.clone(for_test=True), and fetch what it computes"
NO_FORM = {  # what an operator without a form is told, by trait
    "optimizer": TRAINING,
    "control": "leave it out of the program that is exported; numbers that a call waits for can be numbers of Python",
    "random": "ONNX draws other random numbers; feed them, or export program.clone(for_test=True)",
    "side_effect": "leave it out of the program that is exported",
}


def form(function: Callable[..., Any] | None = None, *, exact: bool = False) -> Any:
    """Take a function as the form of the operator of its name."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.rstrip("_")
        assert name not in FORMS, f"{name} has two forms"
        FORMS[name] = function
        if exact:
            EXACT.add(name)
        return function

    return define if function is None else define(function)


def forms(exact: bool = False, **written: Callable[..., Any]) -> None:
    """Take functions of one line as the forms of the operators of these names."""
    for name, function in written.items():
        function.__name__ = name
        form(function, exact=exact)


def same(names: dict[str, str], exact: bool = False) -> None:
    """Operators that ONNX has under another name."""
    for name, standard in names.items():
        SAME[name] = standard
        form(_renamed(name, standard), exact=exact)


def _renamed(name: str, standard: str) -> Callable[..., Any]:
    def write(g: Any, *inputs: Any) -> Any:
        return g.node(standard, *inputs)

    write.__name__ = name
    return write


def no_counterpart(fact: str, hint: str | None = None) -> ProgramError:
    """The refusal of a call that ONNX cannot say; the caller adds the call and the user's line."""
    return ProgramError(f"ONNX has no counterpart: {fact}", hint=hint)
