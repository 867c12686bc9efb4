"""Guards: recorded calls that leave the Scope alone where a run has a fault.

They look whether a kernel before them has reported a value that it could not take. What is written before the last
report lies apart until then: `ValueBuffers.keep_apart`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigraph.kernels.cuda.record.binder import i64
from minigraph.kernels.cuda.record.calls import Launch

from .recording import Recorded


def guards(recorded: Recorded, position: int) -> dict[int, Any]:
    """The guards of a step, or of the end, by their positions among the calls."""
    if not recorded.looking:
        return {}
    span = recorded.spans[position] if position < len(recorded.spans) else recorded.rest
    return _looking(recorded, span if position not in recorded.binder.wrong else _common(span, recorded.stores))


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _looking(recorded: Recorded, positions: Iterable[int]) -> dict[int, Any]:
    """The launches that are given the record of faults."""
    calls, looking, agreed = recorded.binder.calls, recorded.looking, recorded.agreed
    return {i: calls[i] for i in positions if i in looking and i not in agreed} if looking else {}


def check_guards(recorded: Recorded) -> None:
    """What is written in place where others may have reported looks at faults, as its definition says."""
    values = recorded.values
    first = min(recorded.binder.wrong, default=len(recorded.spans))
    for step, span in list(zip(values.schedule.steps, recorded.spans, strict=True))[first:]:
        stored = ((values.buffers[i], values.outside[n]) for i, n in step.stored if n not in values.in_pieces)
        if any(b.size and b is own for b, own in stored):
            own = [i for i in span if i not in recorded.stores]
            assert _looking(recorded, own), f"{step.op.type} is guarded, but looks at no faults"


Told = list[tuple[int, bool]]  # guards by position, and whether no kernel that may report comes after them


def told_guards(recorded: Recorded) -> Told:
    """What guards are told: that others come after, with kernels between that may report, needs the answer again."""
    if not recorded.looking:
        return []
    before = max((p for p in recorded.binder.wrong if p <= recorded.last), default=0)
    if any(b.size for b, _ in recorded.values.results):
        before = len(recorded.spans)
    return [(i, position >= before) for position in range(len(recorded.spans)) for i in guards(recorded, position)]


def tell_guards(recorded: Recorded, told: Told) -> None:
    """Tell the guards so, by their last argument."""
    fault, calls = recorded.binder.fault, recorded.binder.calls
    for i, last in told:
        for call in calls[i].leaves():
            if isinstance(call, Launch) and call.looks_at(fault):
                call.args = *call.args[:-1], i64(last)
