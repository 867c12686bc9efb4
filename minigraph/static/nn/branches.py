"""`cond`, `case` and `switch_case`: which of several functions computes a value is decided while a program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minigraph.errors import DTypeError, MinigraphError, call_site, require, shortened
from minigraph.errors.kinds import BLOCKS, MIXED_TYPES, RANK, WRONG_OBJECT
from minigraph.opdef.inner import check_flag, joined
from minigraph.program import Variable, default_main_program, unique_name
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.builder import Builder, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.tensor.arguments import is_number, plain, variable
from minigraph.types import bool_, int64

from .structure import described, leaves, packed, shape_of

Function = Callable[[], Any]


@whole
def cond(
    pred: Variable, true_fn: Function | None = None, false_fn: Function | None = None, name: str | None = None,
    return_names: Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """What true_fn() returns in a run in which `pred` is True, else what false_fn() returns.

    pred              bool, one element
    true_fn, false_fn functions without arguments that build operators; None does nothing and returns None.
                      They may read variables from outside, and write them (mg.assign(x, output=y))
    return_names      names of the results in errors, one for each
    Both return the same structure (variables and numbers in lists, tuples, dicts) of values of the same types and
    ranks. Where sizes differ the result has -1. Gradients flow through the branch that ran.
    Errors: ProgramError, ShapeError or DTypeError where the branches return other things; DTypeError for another pred.
    """
    pred = _predicate("cond", pred)
    for what, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        require(function is None or callable(function), f"{what} is no function: {function!r}", WRONG_OBJECT)
    base = name or unique_name.generate("cond")
    program = default_main_program().current_block().program
    traced = [
        SubProgram.traced(f"{base}.{kind}", program, function or (lambda: None), finish=returned)
        for kind, function in (("true", true_fn), ("false", false_fn))
    ]
    (true, one), (false, other) = traced
    _check_same_structure(one, other)
    types = _joined_types(leaves(one), leaves(other), return_names)
    written = list({id(v): v for sub in (true, false) for v in sub.written()}.values())
    g = Builder(program.block0)
    inputs = hand_over(g, (true, false), (), written)
    for sub, result in traced:
        sub.fetched = tuple(v.name for v in (*leaves(result), *map(sub.captured, written)) if v is not None)
    stopped = [a.stop_gradient and b.stop_gradient for a, b in zip(leaves(one), leaves(other), strict=True)]
    results = [
        program.block0.create_var(unique_name.generate(f"{base}.tmp"), type=t, stop_gradient=s)
        for t, s in zip(types, stopped, strict=True)
    ]
    after = [program.block0.create_var(unique_name.generate(f"{base}.after"), type=v.type) for v in written]
    program.block0.append_op(
        "cond", {"Pred": pred, "Input": inputs}, {"Out": [*results, *after]} if results or after else {},
        {"true_block": true, "false_block": false},
    )  # fmt: skip
    for v, new in zip(written, after, strict=True):
        g.assign(new, out={"Out": v})
    return packed(one, iter(results)) if one is not None else None


def hand_over(
    g: Builder, blocks: Sequence[SubProgram], arguments: Sequence[Variable], written: Sequence[Variable]
) -> list[Variable]:
    """Let all blocks take the same inputs in one order; the variables outside that they are, copies of those written.

    arguments   inputs of each block that come first: the variables of a loop, one block's behind the other's
    """
    outside = list({id(v): v for sub in blocks for v, _ in sub.captures}.values())
    changed = {id(v) for v in written}
    ordered = [*written, *(v for v in outside if id(v) not in changed)]
    own = len(arguments) // len(blocks)
    for number, sub in enumerate(blocks):
        for v in written:
            sub.captured(v)
            sub.detach(v)
        sub.arrange(arguments[number * own : (number + 1) * own], ordered)
    return [g.assign(v) if id(v) in changed else v for v in ordered]


def _predicate(call: str, pred: Any) -> Variable:
    if isinstance(pred, bool):
        raise WRONG_OBJECT(
            f"pred is {pred}, not a Variable", call=call, site=call_site(),
            hint="a Python if decides while the program is built; mg.full([1], True, 'bool') makes a variable",
        )  # fmt: skip
    pred = variable(pred, call, "pred")
    try:
        check_flag(f"pred {pred.name}", pred.type)
    except MinigraphError as error:
        raise error.at(call, call_site()) from None
    return pred


def returned(sub: SubProgram, result: Any) -> Any:
    """What a function returned, with variables of its block in the places of numbers and of variables outside."""
    if result is None:
        return None
    return packed(result, iter([as_own(sub, v, result) for v in leaves(result)]))


def as_own(sub: SubProgram, value: Any, result: Any) -> Variable:
    """A value that a function returned, as a variable of its block."""
    own = sub.captured(value) if isinstance(value, Variable) else None
    if own is not None:
        return own
    fits = is_number(value)
    require(
        fits, f"{sub.name} returns {shortened(described(result))}, of which {shortened(repr(value))} is neither a"
        " variable of this program nor a number", BLOCKS,
        "a branch that returns nothing returns None, and so does the other one" if value is None else None,
    )  # fmt: skip
    value = plain(value)
    dtype = bool_ if isinstance(value, bool) else int64 if isinstance(value, int) else default_dtype()
    return Builder(sub.block0).fill_constant(shape=[], value=value, dtype=dtype)


def _check_same_structure(one: Any, other: Any) -> None:
    hint = "both functions return the same lists, tuples and dicts of variables"
    if (one is None) != (other is None):
        some, none = ("true_fn", "false_fn") if other is None else ("false_fn", "true_fn")
        raise BLOCKS(f"{some} returns {described(one if other is None else other)}, {none} None", hint=hint)
    require(
        shape_of(one) == shape_of(other), f"true_fn returns {described(one)}, false_fn {described(other)}",
        BLOCKS, hint,
    )  # fmt: skip


def _joined_types(one: Sequence[Variable], other: Sequence[Variable], names: Sequence[str] | None) -> list[Any]:
    """The types of the results."""
    types = []
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        what = f"result {names[i] if names and i < len(names) else i}"
        require(
            a.dtype == b.dtype, f"{what} is {a} in true_fn and {b} in false_fn: two data types", MIXED_TYPES,
            f"cast one of them: mg.cast(x, {a.dtype.name!r})",
        )  # fmt: skip
        ranks = f"{what} is {a} in true_fn and {b} in false_fn: two ranks"
        require(a.ndim == b.ndim, ranks, RANK, "mg.reshape one of them")
        types.append(joined([a.type, b.type]))
    return types


def case(pred_fn_pairs: Any, default: Function | None = None, name: str | None = None) -> Any:
    """What the function of the first pair (pred, fn) returns whose pred is True; else that of `default`.

    pred_fn_pairs   list or tuple of pairs; as in cond
    default         the last pair's function for None
    """
    require(
        isinstance(pred_fn_pairs, (list, tuple)) and pred_fn_pairs, "pred_fn_pairs is a list of pairs (pred, fn), at"
        f" least one, not {shortened(repr(pred_fn_pairs))}", WRONG_OBJECT,
    )  # fmt: skip
    for pair in pred_fn_pairs:
        fits = isinstance(pair, tuple) and len(pair) == 2
        require(fits, f"pred_fn_pairs holds {shortened(repr(pair))}, which is no pair (pred, fn)", WRONG_OBJECT)
        _predicate("case", pair[0])
        require(callable(pair[1]), f"pred_fn_pairs holds {pair[1]!r} as a function", WRONG_OBJECT)
    require(default is None or callable(default), f"default is no function: {default!r}", WRONG_OBJECT)
    *pairs, (last, function) = pred_fn_pairs
    chosen = function if default is None else partial(cond, last, function, default)
    for pred, fn in reversed(pairs):
        chosen = partial(cond, pred, fn, chosen)
    return chosen()


def switch_case(
    branch_index: Variable, branch_fns: Any, default: Function | None = None, name: str | None = None
) -> Any:
    """What the function with the number `branch_index` returns; else that of `default`.

    branch_index   int32, int64 or uint8, one element
    branch_fns     {number: function}, a list of pairs (number, function), or of functions, numbered from 0
    default        the function with the largest number for None
    """
    index = variable(branch_index, "switch_case", "branch_index")
    require(
        index.dtype.name in ("uint8", "int32", "int64"), f"branch_index must be uint8, int32 or int64, is {index}",
        DTypeError,
    )  # fmt: skip
    functions = _numbered(branch_fns)
    require(default is None or callable(default), f"default is no function: {default!r}", WRONG_OBJECT)
    numbers = sorted(functions)
    chosen = functions[numbers[-1]] if default is None else default
    for number in reversed(numbers if default is not None else numbers[:-1]):
        chosen = partial(_one_of, index, number, functions[number], chosen)
    return chosen()


def _one_of(index: Variable, number: int, function: Function, otherwise: Function) -> Any:
    return cond(index == number, function, otherwise)


def _numbered(branch_fns: Any) -> dict[int, Function]:
    """{number: function} of what switch_case is given."""
    require(
        isinstance(branch_fns, (list, tuple, dict)) and branch_fns,
        f"branch_fns is a dict or list of functions, not {shortened(repr(branch_fns))}", WRONG_OBJECT,
    )  # fmt: skip
    pairs = list(branch_fns.items()) if isinstance(branch_fns, dict) else [
        entry if isinstance(entry, tuple) else (number, entry) for number, entry in enumerate(branch_fns)
    ]  # fmt: skip
    functions: dict[int, Function] = {}
    for pair in pairs:
        fits = len(pair) == 2 and isinstance(pair[0], int) and not isinstance(pair[0], bool) and callable(pair[1])
        require(fits, f"branch_fns holds {shortened(repr(pair))}, which is no number with a function", WRONG_OBJECT)
        require(pair[0] not in functions, f"branch_fns has number {pair[0]} twice", BLOCKS)
        functions[pair[0]] = pair[1]
    return functions
