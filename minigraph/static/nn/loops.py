"""`while_loop`: a function is applied to variables as long as another one says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError, call_site, require, shortened
from minigraph.errors.kinds import BLOCKS, FOREIGN, MIXED_TYPES, RANK, WRONG_OBJECT
from minigraph.opdef.inner import check_flag, joined
from minigraph.program import Variable, default_main_program, unique_name
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.builder import Builder, whole
from minigraph.tensor.arguments import is_number
from minigraph.tensor.creation import assign
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
    The results are new variables; loop_vars stay what they were. Sizes that change from round to round are -1 in the
    results. Both functions may read variables from outside, body may write them. Gradients flow to loop_vars and to
    what body reads.
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
    test, flag = SubProgram.traced(
        f"{base}.cond", block.program, lambda *own: cond(*packed(loop_vars, iter(own))), first, _flag
    )
    rounds, result = SubProgram.traced(
        f"{base}.body", block.program, lambda *own: body(*packed(loop_vars, iter(own))), first,
        lambda sub, result: _round(sub, result, loop_vars, first),
    )  # fmt: skip
    changed = test.written()
    require(not changed, f"cond writes {changed and changed[0]}, only body may", BLOCKS)
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
    made = packed(loop_vars, iter(results))
    return list(made)


def _loop_variable(value: Any) -> Variable:
    if isinstance(value, Variable):
        own = default_main_program().current_block().program.captured(value)
        require(own is not None, f"loop variable {value} belongs to another program", FOREIGN)
        return own if own is not None else value
    fits = is_number(value) or isinstance(value, np.ndarray)
    require(fits, f"loop_vars holds {shortened(repr(value))}, which is no variable", BLOCKS)
    return assign(np.asarray(value) if isinstance(value, int) and not isinstance(value, bool) else value)


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


__all__ = ["while_loop"]
