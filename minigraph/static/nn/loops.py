"""`while_loop`: a function is applied to variables as long as another one says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError, call_site, require, shortened
from minigraph.errors.kinds import BLOCKS, FOREIGN, MIXED_TYPES, RANK, WRONG_OBJECT
from minigraph.opdef.inner import check_flag, joined
from minigraph.program import (
    Block,
    Variable,
    default_main_program,
    default_startup_program,
    unique_name,
)
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.blocks.succession import succeed
from minigraph.program.builder import Builder, whole
from minigraph.tensor.arguments import is_number
from minigraph.tensor.creation import from_value
from minigraph.types import TensorType

from .branches import as_own, hand_over
from .structure import described, leaves, packed, shape_of


@whole
def while_loop(
    cond: Callable[..., Variable], body: Callable[..., Any], loop_vars: Sequence[Any], is_test: bool = False,
    name: str | None = None,
) -> list[Any]:  # fmt: skip
    """What `loop_vars` become: `loop_vars = body(*loop_vars)` as long as `cond(*loop_vars)` is True.

    cond       returns a bool variable of one element
    body       returns new values in the structure of loop_vars, of the same types and ranks
    loop_vars  list or tuple of variables, numbers, and lists, tuples and dicts of such
    is_test    says nothing: what gradients need is kept only where a run computes them
    As in Paddle, loop_vars are the results from here on; what read them before keeps the values from before. Data,
    parameters and numbers among them stay what they were, their results are new variables. Sizes that change from round
    to round are -1 in the results. Both functions may read variables from outside, body may write them. Gradients flow
    to what loop_vars were and to what body reads.
    Errors: ProgramError, ShapeError or DTypeError where cond or body return something else.
    """
    for what, function in (("cond", cond), ("body", body)):
        require(callable(function), f"{what} is no function: {function!r}", WRONG_OBJECT)
    is_list = isinstance(loop_vars, (list, tuple))
    require(is_list, f"loop_vars is a list, not {shortened(repr(loop_vars))}", WRONG_OBJECT)
    require(len(loop_vars) > 0, "loop_vars is empty: nothing would change from round to round", BLOCKS)
    base = name or unique_name.generate("while_loop")
    block = default_main_program().current_block()
    first = [_loop_variable(v) for v in leaves(loop_vars)]
    rounds, result, types = _rounds(base, block, body, loop_vars, first)
    test, flag = SubProgram.traced(
        f"{base}.cond", block.program, lambda *own: cond(*packed(loop_vars, iter(own))), first, _flag, types
    )
    changed = test.written()
    require(not changed, f"cond writes {changed and changed[0]}, only body may", BLOCKS)
    results = append_loop(base, block, (test, flag), (rounds, result), first)
    made = packed(loop_vars, iter(_taken_over(block, leaves(loop_vars), results)))
    return list(made)


def append_loop(
    base: str, block: Block, tested: tuple[SubProgram, Variable], repeated: tuple[SubProgram, list[Variable]],
    first: list[Variable],
) -> list[Variable]:  # fmt: skip
    """Append the loop: results of the loop variables `first`; variables outside that the body writes are written.

    tested    the block of the condition, and the flag that it computes
    repeated  the block of the body, and what the loop variables become in it
    """
    (test, flag), (rounds, result) = tested, repeated
    written, arguments = rounds.written(), [*test.inputs[: len(first)], *rounds.inputs[: len(first)]]
    outside = hand_over(Builder(block), (test, rounds), arguments, written)
    test.fetched = (flag.name,)
    rounds.fetched = tuple(v.name for v in (*result, *map(rounds.captured, written)) if v is not None)
    carried, more = [*first, *outside[: len(written)]], outside[len(written) :]
    _settle_sizes(test, rounds, [v.type for v in carried], [v.type for v in more])
    results = [
        block.create_var(unique_name.generate(f"{base}.tmp"), type=t, stop_gradient=not t.is_float)
        for t in (joined([v.type, t]) for v, t in zip(carried, rounds.output_types, strict=True))
    ]
    block.append_op(
        "while_loop", {"X": carried, "Input": more}, {"Out": results}, {"cond_block": test, "body_block": rounds}
    )
    for v, new in zip(written, results[len(first) :], strict=True):
        Builder(block).assign(new, out={"Out": v})
    return results[: len(first)]


def _taken_over(block: Block, loop_vars: Sequence[Any], results: Sequence[Variable]) -> list[Variable]:
    """The results, with each loop variable in the place of its own where it is a value of this block.

    What it was gets another name; so nothing is written twice, and gradients find what they need.
    """
    found: list[Variable] = []
    for v, result in zip(loop_vars, results, strict=False):
        own = isinstance(v, Variable) and v.block is block and (not v.is_data or isinstance(block.program, SubProgram))
        if own and v.persistable and not v.is_parameter:
            Builder(block).assign(result, out={"Out": v})
        elif own and not v.persistable and all(v is not other for other in found):
            succeed(v, result)
            result = v
        found.append(result)
    return found


class _OtherSizes(Exception):
    """Sizes change from round to round: the body is to be built for other types of the loop variables."""

    def __init__(self, types: list[TensorType]) -> None:
        super().__init__(types)
        self.types = types


def _rounds(
    base: str, block: Block, body: Callable[..., Any], loop_vars: Sequence[Any], first: list[Variable]
) -> tuple[SubProgram, list[Variable], list[TensorType]]:  # fmt: skip
    """The block of body, its results, and the types of the loop variables with which it was built.

    Python code in body may look at sizes, as x[-1:] does. So where sizes change, body is called again with -1 there,
    and what it built first is taken back.
    """
    types = [v.type for v in first]
    while True:
        try:
            with default_main_program().global_block().whole(), default_startup_program().undone_on_error():
                rounds, result = SubProgram.traced(
                    f"{base}.body", block.program, lambda *own: body(*packed(loop_vars, iter(own))), first,
                    lambda sub, result: _round(sub, result, loop_vars, first), types,
                )  # fmt: skip
                after = [joined([t, v.type]) for t, v in zip(types, result, strict=True)]
                if after == types:
                    return rounds, result, types
                raise _OtherSizes(after)
        except _OtherSizes as other:
            types = other.types


def _loop_variable(value: Any) -> Variable:
    if isinstance(value, Variable):
        own = default_main_program().current_block().program.captured(value)
        require(own is not None, f"loop variable {value} belongs to another program", FOREIGN)
        return own if own is not None else value
    fits = is_number(value) or isinstance(value, np.ndarray)
    require(fits, f"loop_vars holds {shortened(repr(value))}, which is no variable", BLOCKS)
    return from_value(np.asarray(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _flag(sub: SubProgram, result: Any) -> Variable:
    """The result of cond."""
    require(
        isinstance(result, Variable), f"cond returns {shortened(repr(result))}, not a variable", WRONG_OBJECT,
        "compare loop variables: lambda i, x: i < 10",
    )  # fmt: skip
    flag = as_own(sub, result, result)
    try:
        check_flag(f"what cond returns, {flag.name},", flag.type)
    except MinigraphError as error:
        raise error.at("while_loop", call_site()) from None
    return flag


def _round(sub: SubProgram, result: Any, loop_vars: Sequence[Any], first: Sequence[Variable]) -> list[Variable]:
    """The results of body in the order of the loop variables."""
    if len(loop_vars) == 1 and shape_of(result) == shape_of(loop_vars[0]):
        result = [result]
    require(
        shape_of(result) == shape_of(loop_vars), f"body returns {described(result)}, loop_vars are"
        f" {described(list(loop_vars))}", BLOCKS, "body returns a new value for each loop variable",
    )  # fmt: skip
    values = [as_own(sub, v, result) for v in leaves(result)]
    for i, (v, old) in enumerate(zip(values, first, strict=True)):
        same = f"loop variable {i} is {old}, body makes it {v}"
        require(v.dtype == old.dtype, f"{same}: two data types", MIXED_TYPES, f"mg.cast(x, {old.dtype.name!r})")
        require(v.ndim == old.ndim, f"{same}: two ranks", RANK, "mg.reshape it")
    return values


def _settle_sizes(test: SubProgram, rounds: SubProgram, carried: list[TensorType], more: list[TensorType]) -> None:
    """Sizes that change from round to round are not known; then others that follow from them are not either."""
    while True:
        after = [joined([a, b]) for a, b in zip(carried, rounds.output_types, strict=True)]
        if after == carried:
            break
        carried = after
        rounds.take_types([*carried, *more])
    if carried != test.input_types[: len(carried)]:
        test.take_types([*carried, *more])
