"""`py_func`: a function of Python inside a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import ProgramError, require
from minigraph.errors.kinds import WRONG_OBJECT
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor.arguments import variables


@whole
def py_func(
    func: Callable[..., Any], x: Any, out: Any, backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:  # fmt: skip
    """`out`, which holds what func(*x) returns when the program runs: arrays of NumPy go in and come out.

    x              a variable, or a list or tuple of such
    out            the variables, with their shapes and types, made by block.create_var; None where func returns nothing
    backward_func  takes x, out and the gradients of out, and returns a gradient or None for each x
    skip_vars_in_backward_input  those of x and out that it does not take
    The host computes it: on a GPU the run waits for the values, and its graph is cut there, of which a warning tells.
    The text of the program has only the name of func: what is read from it does not run.
    Errors: DTypeError or ProgramError for other arguments; in a run for results of other shapes or types.
    """
    require(callable(func), f"func is no function: {func!r}", WRONG_OBJECT)
    optional = backward_func is None or callable(backward_func)
    require(optional, f"backward_func is no function: {backward_func!r}", WRONG_OBJECT)
    given, outs = _listed(x, "x"), [] if out is None else _listed(out, "out")
    skip = skip_vars_in_backward_input
    skipped = [] if skip is None else _listed(skip, "skip_vars_in_backward_input")
    places = [next((i for i, v in enumerate([*given, *outs]) if v is s), None) for s in skipped]
    for s, place in zip(skipped, places, strict=True):
        require(place is not None, f"skip_vars_in_backward_input holds {s}, which is neither of x nor of out",
                ProgramError)  # fmt: skip
    builder_of(given).block.append_op(
        "py_func", {"X": given}, {"Out": outs} if outs else {},
        {"function": func, "backward": backward_func, "types": [str(v.type) for v in outs], "skipped": places},
    )  # fmt: skip
    return out


def _listed(value: Any, what: str) -> list[Variable]:
    return variables(value if isinstance(value, (list, tuple)) else [value], "py_func", what)
