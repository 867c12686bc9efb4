"""check_nan_inf: which results are refused, and the error that names the operator. The same for all devices.

An operator is refused if one of its float results holds
    NaN, in any case;
    inf or -inf, unless one of its inputs holds the same infinity or an attribute that the user gave is it.
So masks of -inf that are fed or made by `full` pass, and so does what they are added to, until they give NaN or
infinity of the other sign. Operators of parameter updates are not excused by their inputs. LogSumExp of attention is
infinite where a query sees no key, by definition, and passes.

The first operator of the program that is refused is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import NonFiniteError
from minigraph.program import Operator, Program
from minigraph.program.variable import AGAIN_SUFFIX
from minigraph.types import FLOATS, float32

from .schedule import Schedule, Step, Value, flat

NAN, PLUS, MINUS = 1, 2, 4
INFINITE = PLUS | MINUS
KINDS = {NAN: "nan", PLUS: "inf", MINUS: "-inf"}
SHOWN = 8  # members of a fused operator that an error lists


class Seen(NamedTuple):
    """What an array holds that is not finite: for NaN, inf and -inf how often, and the position of the first one."""

    counts: tuple[int, int, int] = (0, 0, 0)
    firsts: tuple[int, int, int] = (0, 0, 0)

    @property
    def kinds(self) -> int:
        """The bits of what there is."""
        return sum(kind for kind, count in zip(KINDS, self.counts, strict=True) if count)

    def first(self, kinds: int = NAN | INFINITE) -> tuple[int, int]:
        """(kind, position in C order) of the first element of these kinds."""
        own = zip(self.firsts, KINDS, self.counts, strict=True)
        position, kind = min((at, kind) for at, kind, count in own if count and kind & kinds)
        return kind, position


FINITE = Seen()


def look(array: Any) -> Seen:
    """What an array of floats holds that is not finite."""
    if np.isfinite(array).all():
        return FINITE
    x = (array.astype(float32) if array.dtype.itemsize == 2 else array).reshape(-1)
    masks = np.isnan(x), x == math.inf, x == -math.inf
    counts, firsts = [int(m.sum()) for m in masks], [int(m.argmax()) for m in masks]
    return Seen((counts[0], counts[1], counts[2]), (firsts[0], firsts[1], firsts[2]))


def looked_at(value: Value) -> bool:
    """Whether a value can be other than finite."""
    return value.type.dtype in FLOATS and value.type.size > 0


def excused(op: Operator) -> dict[str, int]:
    """For each output slot the infinities that it may hold whatever the inputs are."""
    given = 0
    for name, attr in op.opdef.attrs.items():
        if op.attrs.get(name) != attr.default:
            given |= _infinities(op.attrs.get(name))
    own = INFINITE if "infinite" in op.opdef.traits else 0
    return {slot.name: given | (own if slot.optional else 0) for slot in op.opdef.outputs}


def inputs_excuse(op: Operator) -> bool:
    """Whether an infinity of the inputs may go on into the outputs: not into parameters and their states."""
    return op.role != "optimize"


def _infinities(value: Any) -> int:
    """The infinities in an attribute; in a body they are words."""
    if isinstance(value, str):
        return (PLUS if re.search(r"(?<!-)\bInfinity\b", value) else 0) | (MINUS if "-Infinity" in value else 0)
    if isinstance(value, float) and math.isinf(value):
        return PLUS if value > 0 else MINUS
    kinds = 0
    for one in value if isinstance(value, (list, tuple)) else ():
        kinds |= _infinities(one)
    return kinds


class Finding(NamedTuple):
    """An operator that is refused.

    value    the number of the output;  seen: what it holds;  kinds: for which of it it is refused
    source   the number of an input that is not finite, with what it holds; None where all are finite
    run      how often the program had run before
    """

    value: int
    seen: Seen
    kinds: int
    source: tuple[int, Seen] | None
    run: int


def judged(step: Step, seen: dict[int, Seen], results: dict[int, Seen], run: int) -> Finding | None:
    """Whether a step is refused: `seen` is what its inputs hold, `results` what it wrote."""
    source, given = None, 0
    for i, state in seen.items():
        if state.kinds and (source is None or (state.kinds & NAN and not given & NAN)):
            source = i, state
        given |= state.kinds
    excuses = excused(step.op)
    from_inputs = given & INFINITE if inputs_excuse(step.op) else 0
    for slot, i in outputs(step):
        kinds = results[i].kinds & ~(excuses[slot] | from_inputs) if i in results else 0
        if kinds:
            return Finding(i, results[i], kinds, source, run)
    return None


def check_host(op: Operator, inputs: Iterable[Any], results: Iterable[Any], run: int, program: Program) -> None:
    """As for a step, of an operator that the host computes between two plans: arrays of the host."""
    given = 0
    for x in inputs:
        given |= look(x).kinds if x.dtype in FLOATS else 0
    for v, x in zip(op.output_vars, results, strict=True):
        seen = look(x) if x.dtype in FLOATS else FINITE
        if not (kinds := seen.kinds & ~(given & INFINITE)):
            continue
        kind, position = seen.first(kinds)
        index = tuple(int(n) for n in np.unravel_index(position, x.shape))
        what = f"{v.name} is {KINDS[kind]}{f' at {list(index)}' if index else ''}"
        when = f"step {run} of {program.name}"
        facts = f"{_counts(seen)} of {x.size} elements; its inputs are {'not ' if given else ''}all finite"
        problem = NonFiniteError(f"{what} in {when}, counted from 0; {facts}", call=op.call(), site=op.site)
        problem.operator, problem.variable, problem.index, problem.step = op.type, v.name, index, run
        problem.what, problem.when = f"{what}; {facts}", when
        raise problem


def _counts(seen: Seen) -> str:
    return ", ".join(f"{n} {KINDS[kind]}" for n, kind in zip(seen.counts, KINDS, strict=True) if n)


def outputs(step: Step) -> Iterator[tuple[str, int]]:
    """(slot, value) of all that a step writes."""
    for slot, indices in zip(step.op.opdef.outputs, step.outputs, strict=True):
        yield from ((slot.name, i) for i in flat([indices]))


def _named(slots: Iterable[Any], given: Sequence[Any], i: int) -> str:
    """The slot that holds value i."""
    return next(slot.name for slot, indices in zip(slots, given, strict=True) if i in flat([indices]))


def _at(schedule: Schedule, i: int, seen: Seen, kinds: int = NAN | INFINITE) -> tuple[int, tuple[int, ...], str]:
    """(kind, index, the index as text) of the first such element of value i."""
    kind, position = seen.first(kinds)
    index = tuple(int(n) for n in np.unravel_index(position, schedule.values[i].type.shape))
    return kind, index, f" at {list(index)}" if index else ""


def error(
    schedule: Schedule, step: Step, finding: Finding, program: Program, hint: str | None = None
) -> NonFiniteError:
    """What is said of an operator that is refused."""
    value, opdef = schedule.values[finding.value], step.op.opdef
    kind, index, place = _at(schedule, finding.value, finding.seen, finding.kinds)
    what = f"{_named(opdef.outputs, step.outputs, finding.value)}={value.name} is {KINDS[kind]}{place}"
    facts = f"{_counts(finding.seen)} of {value.type.size} elements; {_of_inputs(schedule, step, finding)}"
    when = f"step {finding.run} of {program.name}"
    fact = f"{what} in {when}, counted from 0; {facts}"
    members = members_of(step.op, value.name, program)
    if members:
        fact += "; made of " + ", ".join(f"{op.type} {op.output_arg_names[0]} ({op.site})" for op in members[-SHOWN:])
    problem = NonFiniteError(
        fact, call=schedule.call(step), site=step.op.site, hint=hint or _hint(schedule, step, finding)
    )
    problem.operator, problem.variable, problem.index, problem.step = opdef.type, value.name, index, finding.run
    problem.what, problem.when = f"{what}; {facts}", when
    return problem


def _of_inputs(schedule: Schedule, step: Step, finding: Finding) -> str:
    if finding.source is None:
        return "all inputs are finite" if step.read else "it reads nothing"
    i, seen = finding.source
    kind, _, place = _at(schedule, i, seen, NAN if seen.counts[0] else INFINITE)
    name = _named(step.op.opdef.inputs, step.inputs, i)
    return f"its input {name}={schedule.values[i].name} is {KINDS[kind]}{place}"


def _hint(schedule: Schedule, step: Step, finding: Finding) -> str | None:
    if finding.source is None:
        read = [schedule.values[i] for i in step.read]
        names = dict.fromkeys(as_user_names_it(v.name, schedule.program) for v in read if looked_at(v))
        if names and schedule.program.parent is not None:  # what a block computes cannot be fetched
            return f"call {', '.join(f'static.Print({name})' for name in list(names)[:3])} to see what it was given"
        return f"fetch {', '.join(list(names)[:3])} to see what it was given" if names else None
    value, program = schedule.values[finding.source[0]], schedule.program
    if value.persistable:
        where = "in the Scope: it was so before this run"
    elif value.producer >= 0 or not program.vars[value.name].is_data:  # by this plan, or that of another piece
        return f"{value.name} is computed from an infinity that is fed, or an attribute; a large finite number may do"
    else:
        where = "in what is fed" if program.parent is None else f"where it is handed to {program.name}"
    return f"{value.name} is not finite {where}"


def as_user_names_it(name: str, program: Program) -> str:
    """The name that a value has in the user's program: a pass gives another one to what it computes a second time."""
    known = program.before.vars if program.before is not None else {name}
    while name not in known and AGAIN_SUFFIX in name:
        name = name.rpartition(AGAIN_SUFFIX)[0]
    return name


def members_of(op: Operator, name: str, program: Program) -> list[Operator]:
    """The operators of the user's program that a rewritten one stands for, as far as they lead to output `name`.

    They end where a value is read that has been looked at: an input, or what an operator before this one has written.
    """
    before = program.before
    if before is None:
        return []
    earlier = list(takewhile(lambda other: other is not op, program.ops))
    known = {v.name for other in earlier for v in (*other.input_vars, *other.output_vars)} | set(op.input_arg_names)
    members, _ = back(before.ops, as_user_names_it(name, program), {as_user_names_it(n, program) for n in known})
    same = len(members) == 1 and members[0].type == op.type
    return [] if same else members


def back(ops: Sequence[Operator], name: str, known: Collection[str]) -> tuple[list[Operator], list[str]]:
    """The operators that compute `name`, back to values that are `known`; others of which they need the types."""
    wanted, above, typed = {name}, list[Operator](), dict[str, None]()
    for op in reversed(ops):
        if wanted.isdisjoint(op.output_arg_names):
            continue
        wanted.difference_update(op.output_arg_names)
        unread = op.opdef.unread([slot for slot, vs in op.outputs.items() if vs])
        for slot, vs in op.inputs.items():
            names = [v.name for v in vs if v.name not in known]
            if slot in unread:
                typed.update(dict.fromkeys(names))
            else:
                wanted.update(names)
        above.append(op)
    made = {n for op in above for n in op.output_arg_names}
    return above[::-1], [n for n in typed if n not in made]
