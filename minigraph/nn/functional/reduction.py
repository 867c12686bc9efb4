"""How the losses of elements become one: the only place that knows `reduction`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from minigraph.errors import ShapeError, call_site, raise_unknown
from minigraph.errors.kinds import UNKNOWN_ATTR
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor.arguments import emit, variable

P = ParamSpec("P")
REDUCTIONS = ("mean", "sum", "none")


def reduced(loss: Variable, reduction: str) -> Variable:
    """The mean or sum of all elements; with none they stay as they are."""
    return loss if reduction == "none" else emit(reduction, f"reduce_{reduction}", loss)


def check_reduction(call: str, reduction: str, names: tuple[str, ...] = REDUCTIONS) -> None:
    if reduction not in names:
        raise_unknown(f"reduction of {call}", reduction, names, UNKNOWN_ATTR)


def with_reduction(each: Callable[P, Variable]) -> Callable[P, Variable]:
    """Decorator of a loss: `each` gives the loss of every element, the argument `reduction` says what becomes of it.

    What is annotated as a Variable must be one, and the mean over what `each` returns is the mean of the loss.
    """
    signature = inspect.signature(each)
    optional = {name: "None" in str(p.annotation) for name, p in signature.parameters.items()
                if str(p.annotation).startswith("Variable")}  # fmt: skip

    @whole
    @wraps(each)
    def run(*args: P.args, **kwargs: P.kwargs) -> Variable:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{each.__name__}(): {problem}") from None
        given.apply_defaults()
        for name, may_be_none in optional.items():
            if not (may_be_none and given.arguments[name] is None):
                variable(given.arguments[name], each.__name__, name)
        reduction = str(given.arguments["reduction"])
        check_reduction(each.__name__, reduction)
        return reduced(each(*args, **kwargs), reduction)

    return run


def same_shapes(call: str, **operands: Variable) -> None:
    """Refuse operands whose known sizes differ, for losses that do not broadcast them."""
    (first, x), *others = operands.items()
    for name, y in others:
        sizes = zip(x.shape, y.shape, strict=False)
        if x.ndim != y.ndim or any(a != b and -1 not in (a, b) for a, b in sizes):
            raise ShapeError(f"{first} is {x}, {name} is {y}: the shapes must be the same", call=call, site=call_site())
