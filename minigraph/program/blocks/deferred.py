"""Calls that wait for numbers: a function whose sizes or axes only a run knows is called when they are known.

    values, places = mg.topk(x, k)      k is fed, or computed
    deferred(X=[x], Number=[k], function="topk", arguments="x=X[0], k=Number[0]", ...)

The operator holds the name of the function and its arguments as text. In a run the host reads the numbers, and the
function builds a block for them and for the shapes of X. Decision 063 says why it is so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from minigraph.errors import AttrError, CallSite, ShapeError, raise_unknown, require
from minigraph.errors.kinds import COUNT, UNKNOWN_NAME
from minigraph.program import unique_name
from minigraph.program.builder import as_list
from minigraph.program.default_dtype import used_dtype
from minigraph.program.program import Program, Variable, program_guard
from minigraph.types import TensorType

from .subprogram import SubProgram, being_built

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # those that can wait, by the name that the operator has for them
CONSTANTS = {"inf": float("inf"), "nan": float("nan")}

Numbers = tuple[Any, ...]  # an int or float, or a tuple of them, for each Variable in the place of numbers


def numbers_of(arrays: Sequence[np.ndarray]) -> Numbers:
    """What Variables in the place of numbers hold, in a form that can be a key."""
    return tuple(a.item() if a.ndim == 0 else tuple(a.reshape(-1).tolist()) for a in arrays)


def block_of(
    attrs: Mapping[str, Any], types: Sequence[TensorType], numbers: Numbers, site: CallSite | None = None,
    note: Callable[[Any], None] = lambda made: None,
) -> SubProgram:  # fmt: skip
    """The block that the function builds for X of these types and for these numbers.

    attrs   function, arguments, dtype of the operator; with is_test the block is in its form for tests
    site    the user's line, for errors inside
    note    is called with what the function returned
    Errors: those of the function.
    """
    function = FUNCTIONS.get(attrs["function"])
    if function is None:
        raise_unknown("function that can wait for numbers", attrs["function"], FUNCTIONS, UNKNOWN_NAME)
    sub = SubProgram(attrs["function"])
    given = [sub.block0.create_var(f"x{i}", type=t, stop_gradient=False, is_data=True) for i, t in enumerate(types)]
    with ExitStack() as inside:
        for guard in (unique_name.guard(), program_guard(sub, Program()), being_built(sub), used_dtype(attrs["dtype"]),
                      sub.emitting("forward", site=site)):  # fmt: skip
            inside.enter_context(guard)
        made = function(**read_arguments(attrs["arguments"], given, numbers))
        note(made)
        results = [_own(sub.block0, v) if v.is_data else v for v in as_list(made)]
    sub.fetched = tuple(v.name for v in results)
    return sub.clone(for_test=True) if attrs.get("is_test") else sub


def gradient_block(attrs: Mapping[str, Any], types: Sequence[TensorType], numbers: Numbers,
                   site: CallSite | None = None) -> SubProgram:  # fmt: skip
    """The block of the gradients of X[i] for i in `wanted`; it takes X and the gradients of the float results."""
    block = block_of(attrs, types, numbers, site)
    outputs = [k for k, t in enumerate(block.output_types) if t.is_float]
    return block.gradient(attrs["wanted"], outputs)


def check_results(block: SubProgram, declared: Sequence[TensorType]) -> None:
    """A block has the results that were declared when the program was built."""
    found = block.output_types
    require(len(found) == len(declared), f"{block.name} has {len(found)} results for these numbers, not "
            f"{len(declared)}", COUNT)  # fmt: skip
    for i, (t, wanted) in enumerate(zip(found, declared, strict=True)):
        require(wanted.accepts(t), f"result {i} of {block.name} is {t} for these numbers, declared is {wanted}",
                ShapeError)  # fmt: skip


def _own(block: Any, v: Variable) -> Variable:
    """A copy of what a function gave back as it was."""
    out = block.create_var(type=v.type)
    block.append_op("assign", {"X": v}, {"Out": out})
    return out


# Arguments as text


def read_arguments(text: str, given: Sequence[Variable], numbers: Numbers) -> dict[str, Any]:
    """{name: value} of `x=X[0], k=Number[0], axis=-1`, with these in the places of X and Number.

    Errors: AttrError for what is no such text.
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        places = {"X": given, "Number": numbers}
        return {str(k.arg): _read(k.value, places) for k in call.keywords}
    except (SyntaxError, AssertionError, ValueError, LookupError, TypeError):
        raise AttrError(f"arguments {text!r} are no list such as x=X[0], k=Number[0], axis=-1") from None


def _read(node: ast.expr, places: Mapping[str, Sequence[Any]]) -> Any:
    """The value of one argument."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return CONSTANTS[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_read(operand, places)
        case ast.Subscript(ast.Name(name), ast.Constant(int(place))):
            value = places[name][place]
            return list(value) if isinstance(value, tuple) else value
        case ast.List(entries):
            return _flat(entries, places)
        case ast.Tuple(entries):
            return tuple(_flat(entries, places))
        case ast.Call(ast.Name("slice"), bounds):
            return slice(*(_one(_read(bound, places)) for bound in bounds))
        case ast.Call(ast.Name("one"), [entry]):
            return _one(_read(entry, places))
    raise ValueError


def _flat(entries: Sequence[ast.expr], places: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The entries of a list; a Variable of several numbers stands for all of them."""
    found = []
    for entry in entries:
        value = _read(entry, places)
        spread = isinstance(entry, ast.Subscript) and isinstance(value, list)
        found += value if spread else [value]
    return found


def _one(value: Any) -> Any:
    """A number where one is wanted: Paddle's have the shape [1]."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
