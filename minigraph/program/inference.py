"""The part of a program that computes fetched values from fed ones, as a program of its own."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.errors import ProgramError
from minigraph.errors.kinds import FOREIGN

from .operator import Operator
from .program import Parameter, Program
from .prune import pruned_ops
from .variable import Variable, check_is_of


def inference_program(program: Program, feeds: Sequence[Variable], fetches: Sequence[Variable]) -> Program:
    """A test program of what `fetches` need; data variables are in the order of `feeds`, `fetched` has the fetches.

    A computed variable among the feeds becomes data, and what only it needed is left out.
    Errors: ProgramError where a fetched value needs another data variable.
    """
    for what, variables in (("feed_vars", feeds), ("fetch_vars", fetches)):
        for v in variables:
            check_is_of(v, program, what, ProgramError)
            if v.name not in program.vars:
                raise FOREIGN(f"{what} holds {v}, which is not in program {program.name}", site=v.site)
        if len({v.name for v in variables}) != len(variables):
            raise ProgramError(f"{what} holds a variable twice: {', '.join(v.name for v in variables)}")
    test = program.clone(for_test=True)
    missing = next((v for v in fetches if v.name not in test.vars), None)
    if missing is not None:
        raise ProgramError(f"{missing} is computed for training only", site=missing.site)
    fed = [v.name for v in feeds]
    test.block0.ops = _needed(test, fed, [v.name for v in fetches])  # pyright: ignore[reportAttributeAccessIssue]
    used = {v.name for op in test.ops for v in (*op.input_vars, *op.output_vars)} | {v.name for v in fetches}
    for name in [n for n in test.vars if n not in used and n not in fed]:
        del test.vars[name]
    _order(test, fed)
    test.fetched = tuple(v.name for v in fetches)
    return test


def _needed(test: Program, fed: Sequence[str], fetched: Sequence[str]) -> list[Operator]:
    kept = pruned_ops(test.ops, fetched, prune=(), fed=fed)
    written = {name for op in kept for name in op.output_arg_names}
    read = {v.name: v for op in kept for v in op.input_vars} | {n: test.vars[n] for n in fetched}
    for name, v in read.items():
        if v.is_data and name not in fed and name not in written:
            raise ProgramError(
                f"{', '.join(fetched)} needs {v}, which feed_vars does not hold", site=v.site,
                hint="put it into feed_vars, or take out of fetch_vars what needs it",
            )  # fmt: skip
    return kept


def _order(test: Program, fed: Sequence[str]) -> None:
    """Fed variables are data, stand first, and in this order."""
    for name in fed:
        v = test.vars.get(name)
        if v is None or isinstance(v, Parameter) or v.persistable:
            raise ProgramError(f"feed_vars holds {name}, whose value is kept between runs")
        v.is_data = True
    rest = {n: v for n, v in test.vars.items() if n not in set(fed)}
    first = {n: test.vars[n] for n in fed}
    dict.clear(test.vars)
    dict.update(test.vars, first | rest)
    test.version += 1
