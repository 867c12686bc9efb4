"""Recording: the calls of each step of a Schedule, and of the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minigraph.kernels.cuda.collective.faults import agree_on_faults
from minigraph.kernels.cuda.optimizer.foreach import store
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.calls import Copy
from minigraph.kernels.cuda.record.moved import Repeats
from minigraph.kernels.groups import present
from minigraph.runtime.schedule import Schedule, Step

from .checks import Checks
from .operators import Operators, Outline
from .values import ValueBuffers


@dataclass(frozen=True)
class Recorded:
    """The calls of a program, in `binder.calls`.

    spans    for each step the range of its calls;  rest: that of the calls at the end
    stores   that of the calls which bring to the Scope what was kept apart, in the last step that writes there
    agreed   that of the calls by which ranks know of each other's faults, behind the last step that may report one
    repeats  which calls are copies of others
    last     the step after which nothing is written that the Scope keeps; -1 where no step writes such
    outline  that of plans for other sizes, and `patterns` of the steps, which say what their calls touch; None where
             not all of that is known
    """

    schedule: Schedule
    binder: Binder
    values: ValueBuffers
    spans: list[range]
    stores: range
    agreed: range
    rest: range
    repeats: Repeats
    last: int
    outline: Outline | None
    patterns: tuple[str | None, ...]

    @cached_property
    def looking(self) -> frozenset[int]:
        """The positions of the launches that are given the record of faults."""
        fault, touched_by = self.binder.fault, self.repeats.touched_by
        calls = enumerate(self.binder.calls)
        return frozenset([i for i, call in calls if fault in touched_by(call) and call.looks_at(fault)])


def record(
    schedule: Schedule, operators: Operators, reports: int, checks: Checks | None = None
) -> Recorded:  # fmt: skip
    """Record all steps in order.

    reports  the last step that may refuse values; -1 where none does
    """
    binder, values = operators.binder, operators.values
    steps, stores, agreed, spans = schedule.steps, range(0), range(0), list[range]()
    stored = next((i for i in range(len(steps) - 1, -1, -1) if _writes(schedule, steps[i])), -1)
    stored = max(stored, reports) if stored >= 0 else -1  # what is written before waits for it
    for position, step in enumerate(steps):
        first = len(binder.calls)
        binder.stored = position > stored
        values.keep_apart(step, bool(binder.wrong), later=position < reports)
        _record_step(position, step, operators, checks)
        assert position not in binder.wrong or position <= reports, f"{step.op.type} lacks `reports`"
        if position in binder.wrong and values.keep_apart(step, True):  # its own kernels may report
            del binder.calls[first:], binder.scratches[-1], operators.patterns[-1]
            _record_step(position, step, operators, checks)
        if position == reports and stored >= 0 and binder.wrong and _among_ranks(steps):
            start = len(binder.calls)
            agree_on_faults(binder)
            agreed = range(start, len(binder.calls))
        if position == stored and values.apart:
            start = len(binder.calls)
            store(binder, [(values.outside[name], b) for name, b in values.apart.items()])
            stores = range(start, len(binder.calls))
        spans.append(range(first, len(binder.calls)))
    rest = _record_end(binder, values)
    told = operators.as_laid and checks is None and not (stores or agreed or rest) and None not in operators.patterns
    return Recorded(
        schedule, binder, values, spans, stores, agreed, rest, operators.repeats, stored,
        operators.outline if told else None, tuple(operators.patterns),
    )  # fmt: skip


def _among_ranks(steps: Sequence[Step]) -> bool:
    """Whether all of several ranks run these steps together."""
    return present().size > 1 and any("collective" in step.op.opdef.traits for step in steps)


def _writes(schedule: Schedule, step: Step) -> bool:
    """Whether a step writes elements that the Scope keeps."""
    return any(schedule.values[i].type.size for i, _ in step.stored)


def _record_end(binder: Binder, values: ValueBuffers) -> range:
    """The calls that copy into the Scope's arrays at the end."""
    first, pairs = len(binder.calls), [(values.outside[name], b) for b, name in values.results]
    if binder.wrong:
        store(binder, pairs)
    else:
        binder.calls += [Copy(to, b) for to, b in pairs]
    return range(first, len(binder.calls))


def _record_step(position: int, step: Step, operators: Operators, checks: Checks | None) -> None:
    binder, values = operators.binder, operators.values
    inputs = checks.before(binder, position, step, values.buffers) if checks is not None else []
    binder.begin(position, step.op.number, step.op.opdef.reference)
    operators.record(position, step)
    if checks is not None:
        checks.after(binder, position, step, values.buffers, inputs)
