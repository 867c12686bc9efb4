"""Functions whose numbers may be Variables: what a program computes from constants is put in, the rest waits.

topk = waiting("k axis")(topk)
topk(x, assign(2))    the number is known: topk(x, 2)
topk(x, k)            k is fed or computed: an operator `deferred`, which calls topk in a run
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, MinigraphError, call_site, require
from minigraph.errors.kinds import RUN_TIME
from minigraph.program import Variable
from minigraph.program.blocks.deferred import FUNCTIONS
from minigraph.program.blocks.deferred_types import result_types
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.program.known import Size, SizeProduct, known
from minigraph.tensor.arguments import output_prefix
from minigraph.types import INTS, TensorType, as_dtype

LISTS = frozenset({"shape", "axes", "starts", "ends", "strides", "shifts", "repeat_times", "offsets", "pad", "perm",
                   "repeats"})  # fmt: skip  # one number stands for a list of one
FLOATING = frozenset({"fill_value", "start", "end", "step", "p"})
INDEX = "index"  # an argument with Variables that are numbers and others that pick elements

Call = Callable[..., Any]


def waiting(numbers: str, name: str | None = None) -> Callable[[Call], Call]:
    """Decorator: these arguments, separated by spaces, may be Variables that only a run knows.

    name   of the function in operators, its own for None
    """
    names = numbers.split()

    def decorated(function: Call) -> Call:
        parameters = inspect.signature(function)
        own = name or function.__name__
        places = [i for i, parameter in enumerate(parameters.parameters) if parameter in names]
        FUNCTIONS[own] = function

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = [args[i] for i in places if i < len(args)]
            given += [kwargs[n] for n in names if n in kwargs]
            if not any(_holds_variable(value) for value in given):
                return function(*args, **kwargs)
            return _called(own, function, parameters.bind(*args, **kwargs).arguments, names)

        return run

    return decorated


def _holds_variable(value: Any) -> bool:
    if isinstance(value, slice):
        return any(isinstance(v, Variable) for v in (value.start, value.stop, value.step))
    if isinstance(value, (list, tuple)):
        return any(_holds_variable(v) for v in value)
    return isinstance(value, Variable)


def _called(name: str, function: Call, given: Mapping[str, Any], names: Sequence[str]) -> Any:
    """What a call gives: with the numbers that are known, or once they are."""
    try:
        found = {n: _known(n, value) for n, value in given.items() if n in names and n != INDEX}
    except AttrError:
        return wait(name, given, names)
    if INDEX not in names and not any(_is_open(value) for value in found.values()):
        return function(**{**given, **found})
    try:
        return whole(function)(**given)
    except MinigraphError:  # it has no way of its own to take what only a run knows
        return wait(name, given, names)


def _is_open(value: Any) -> bool:
    """Whether a size in it is one that only a run knows."""
    return any(isinstance(e, (Size, SizeProduct)) for e in (value if isinstance(value, list) else [value]))


def _known(name: str, value: Any) -> Any:
    """The numbers in the place of an argument; AttrError where a run decides one."""
    found = known(value)
    single = isinstance(value, Variable) and isinstance(found, list) and len(found) == 1 and name not in LISTS
    return found[0] if single else found


@whole
def wait(name: str, given: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The call as an operator that waits for the numbers in the arguments `names`; its results as it returns them.

    Errors: those of the function, where no numbers suit it; ProgramError where their number or rank depends on them.
    """
    text = ArgumentText(names)
    try:
        arguments = ", ".join(f"{n}={text.of(n, v)}" for n, v in given.items() if n != "name")
    except MinigraphError as problem:
        raise problem.at(name, call_site()) from None
    attrs = {"function": name, "arguments": arguments, "dtype": default_dtype()}
    made: list[Any] = []
    found = result_types(attrs, [x.type for x in text.xs], text.numbers, made.append)
    types = [str(_without_numbers(name, t, given.get("shape"))) for t in found]
    g, prefix = builder_of(*text.xs, *text.numbers), output_prefix(name, given.get("name"))
    outs = g.deferred(text.xs or None, text.numbers, types=types, name=prefix, **attrs)
    return type(made[0])(outs) if isinstance(made[0], (list, tuple)) else outs[0]


class ArgumentText:
    """Writes arguments as text, and collects the Variables in them.

    xs, numbers   Variables whose values are data, and those that stand in the place of numbers
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.xs: list[Variable] = []
        self.numbers: list[Variable] = []

    def of(self, argument: str, value: Any) -> str:
        """One argument. Errors: of a Variable in the place of numbers that does not hold such."""
        if argument not in self.names:
            return self._text(argument, value, False)
        before = len(self.numbers)
        text = self._text(argument, value, True)
        for v in self.numbers[before:]:
            _check_numbers(argument, v)
        alone = isinstance(value, Variable) and value.ndim > 0 and argument not in LISTS
        return f"one({text})" if alone else text

    def _text(self, argument: str, value: Any, as_number: bool) -> str:
        match value:
            case Variable():
                as_number = as_number and not (argument == INDEX and value.ndim > 0)  # which picks elements
                return self._place(self.numbers, "Number", value) if as_number else self._place(self.xs, "X", value)
            case list():
                return f"[{', '.join(self._text(argument, v, as_number) for v in value)}]"
            case tuple():
                return f"({''.join(self._text(argument, v, as_number) + ', ' for v in value)})"
            case slice():
                bounds = (value.start, value.stop, value.step)
                return f"slice({', '.join(self._bound(v) for v in bounds)})"
            case np.dtype():
                return repr(value.name)
            case np.generic():
                return repr(value.item())
            case type():
                return repr(as_dtype(value).name)
            case None | bool() | int() | float() | str():
                return repr(value)
        if value is Ellipsis:
            return "..."
        raise RUN_TIME(
            f"{argument} is a {type(value).__name__}, beside numbers that only a run knows", site=call_site(),
            hint="mg.assign makes a Variable of an array",
        )  # fmt: skip

    def _bound(self, v: Any) -> str:
        text = self._text("", v, True)
        return f"one({text})" if isinstance(v, Variable) else text

    def _place(self, variables: list[Variable], slot: str, v: Variable) -> str:
        at = next((i for i, known in enumerate(variables) if known is v), len(variables))
        if at == len(variables):
            variables.append(v)
        return f"{slot}[{at}]"


def _check_numbers(argument: str, v: Variable) -> None:
    """A Variable in the place of numbers is one number or a vector, of ints but for a few arguments."""
    require(v.ndim <= 1, f"{v} stands where a number is needed, or a vector of such", AttrError)
    require(v.dtype in INTS or argument in FLOATING, f"{argument} takes ints, not {v}", DTypeError, "mg.cast")
    require(v.type.is_static, f"{v} stands where numbers are needed, and only a run knows how many", RUN_TIME,
            "declare its shape")  # fmt: skip


def _without_numbers(name: str, t: TensorType, shape: Any) -> TensorType:
    """The type of a result that has `shape`: sizes that a run decides are not known, whichever were tried."""
    if shape is None:
        return t
    if isinstance(shape, Variable) or len(shape) != t.ndim:  # of a part of the result
        return t.with_shape((-1,) * t.ndim)
    rest = name == "reshape"  # whose -1 takes what the others leave
    waits = [isinstance(v, Variable) or (rest and v == -1) for v in shape]
    return t.with_shape(tuple(-1 if late else n for n, late in zip(t.shape, waits, strict=True)))
