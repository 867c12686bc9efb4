"""Paddle's module of control flow: what `static.nn` has of it, `Assert` and `While`."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.program import Variable
from minigraph.program.builder import builder_of
from minigraph.tensor.arguments import output_prefix, variable, variables

from .branches import case, cond, switch_case
from .loops import while_loop
from .while_block import While


def Assert(
    cond: Variable, data: Sequence[Variable] | None = None, summarize: int = 20, name: str | None = None
) -> Variable:
    """Fail a run in which `cond`, a bool of one element, is False; the error shows `data`.

    summarize  elements of each of data that are shown, -1 all
    Returns a copy of cond. A run that fails has changed nothing that lasts.
    Errors: in a run a KernelError.
    """
    flag = variable(cond, "Assert", "cond")
    shown = variables(data, "Assert", "data") if data else None
    return builder_of(flag).check_true(
        flag, shown, summarize=summarize, message=name or "", name=output_prefix("assert", None)
    )


__all__ = ["Assert", "While", "case", "cond", "switch_case", "while_loop"]
