"""Recording: the calls of each step of a Schedule, and of the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.collective.faults import agree_on_faults
from minigraph.kernels.cuda.optimizer.foreach import store
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Call
from minigraph.kernels.cuda.record.calls import Copy
from minigraph.kernels.cuda.record.moved import Earlier, Key, Repeats, given_in
from minigraph.kernels.cuda.record.templates import Known, Resized
from minigraph.kernels.groups import present
from minigraph.runtime.schedule import Schedule, Step
from minigraph.types import TensorType

from .checks import Checks
from .values import ValueBuffers

Settle = Callable[[Sequence[Call], Callable[[str], None]], list[Call]]


@dataclass(frozen=True)
class Recorded:
    """The calls of a program, in `binder.calls`.

    spans    for each step the range of its calls;  rest: that of the calls at the end
    stores   that of the calls which bring to the Scope what was kept apart, in the last step that writes there
    agreed   that of the calls by which ranks know of each other's faults, behind the last step that may report one
    repeats  which calls are copies of others
    last     the step after which nothing is written that the Scope keeps; -1 where no step writes such
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

    @cached_property
    def looking(self) -> frozenset[int]:
        """The positions of the launches that are given the record of faults."""
        fault, touched_by = self.binder.fault, self.repeats.touched_by
        calls = enumerate(self.binder.calls)
        return frozenset([i for i, call in calls if fault in touched_by(call) and call.looks_at(fault)])


def record(
    schedule: Schedule, binder: Binder, values: ValueBuffers, settle: Settle, reports: int,
    checks: Checks | None = None, earlier: Earlier | None = None, known: Known | None = None,
) -> Recorded:  # fmt: skip
    """Record all steps in order.

    settle   says which of an operator's calls will run
    reports  the last step that may refuse values; -1 where none does
    """
    steps, stores, agreed, spans = schedule.steps, range(0), range(0), list[range]()
    stored = next((i for i in range(len(steps) - 1, -1, -1) if _writes(schedule, steps[i])), -1)
    stored = max(stored, reports) if stored >= 0 else -1  # what is written before waits for it
    repeats, resized = Repeats(binder, earlier), Resized(binder, known)
    for position, step in enumerate(steps):
        first = len(binder.calls)
        binder.stored = position > stored
        values.keep_apart(step, bool(binder.wrong), later=position < reports)
        _record_step(position, step, binder, values, repeats, resized, settle, checks)
        assert position not in binder.wrong or position <= reports, f"{step.op.type} lacks `reports`"
        if position in binder.wrong and values.keep_apart(step, True):  # its own kernels may report
            del binder.calls[first:], binder.scratches[-1]
            _record_step(position, step, binder, values, repeats, resized, settle, checks)
        if position == reports and stored >= 0 and binder.wrong and _among_ranks(steps):
            start = len(binder.calls)
            agree_on_faults(binder)
            agreed = range(start, len(binder.calls))
        if position == stored and values.apart:
            start = len(binder.calls)
            store(binder, [(values.outside[name], b) for name, b in values.apart.items()])
            stores = range(start, len(binder.calls))
        spans.append(range(first, len(binder.calls)))
    return Recorded(schedule, binder, values, spans, stores, agreed, _record_end(binder, values), repeats, stored)


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


def _record_step(
    position: int, step: Step, binder: Binder, values: ValueBuffers, repeats: Repeats, resized: Resized,
    settle: Settle, checks: Checks | None,
) -> None:  # fmt: skip
    inputs = checks.before(binder, position, step, values.buffers) if checks is not None else []
    binder.begin(position, step.op.number, step.op.opdef.reference)
    _record_operator(step, binder, values, repeats, resized, settle)
    if checks is not None:
        checks.after(binder, position, step, values.buffers, inputs)


def _record_operator(
    step: Step, binder: Binder, values: ValueBuffers, repeats: Repeats, resized: Resized, settle: Settle
) -> None:
    """The operator's own calls: copies of those of one like it, those of a template, or what its definition records."""
    opdef, first, guarded = step.op.opdef, len(binder.calls), bool(binder.wrong)
    buffers = values.buffers
    slots = [buffers[i] if type(i) is int else _buffer(values, i) for i in (*step.inputs, *step.outputs)]
    what, given = (opdef, step.attrs, guarded, binder.stored), given_in(slots, binder.outside)
    key = Key(what, given)
    known = repeats.again(key, given.roots)
    if known is not None:
        binder.calls += known
        return
    templates = resized.templates(what, given)
    notes = len(binder.notes)
    filled = resized.filled(templates, given)
    ins = dict(zip(opdef.input_names, slots, strict=False))
    outs = dict(zip(opdef.output_names, slots[len(ins) :], strict=True))

    def bind(binder: Binder, given: Sequence[Buffer]) -> None:
        left = iter(given)
        opdef.gpu_bind(binder, _given(ins, left), _given(outs, left), step.op.attrs)

    try:
        if filled is None:
            opdef.gpu_bind(binder, ins, outs, step.op.attrs)
            texts = [text for _, text in binder.notes[notes:]]
            resized.learn(templates, given, bind, binder.calls[first:], texts)
        else:
            binder.calls += [call for call, _ in filled]
        binder.calls[first:] = settle(binder.calls[first:], binder.note)
    except MinigraphError as error:
        raise error.at(step.op.call(), step.op.site) from None
    calls, texts = binder.calls[first:], [text for _, text in binder.notes[notes:]]
    if filled is None:
        repeats.keep(key, given.roots, calls, texts)
    else:
        repeats.remember(key, given.roots, filled, calls, texts)


def _given(slots: Mapping[str, Any], left: Iterator[Buffer]) -> dict[str, Any]:
    """The same slots with other buffers, in their order."""
    return {
        name: [next(left) for _ in slot] if isinstance(slot, list) else None if slot is None else next(left)
        for name, slot in slots.items()
    }  # fmt: skip


def _buffer(values: ValueBuffers, index: Any) -> Any:
    """What stands in a slot, as buffers; a value that is not read has one of its own."""
    if isinstance(index, list):
        return [values.buffers[i] if type(i) is int else _buffer(values, i) for i in index]
    if isinstance(index, TensorType):
        return Buffer(index.shape, index.dtype)
    return None if index is None else values.buffers[index]
