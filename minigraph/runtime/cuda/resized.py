"""Schedules for other sizes of feeds: steps and which values they read stay, types are found anew.

Where the sizes of values follow from those of the feeds as they did for others, nothing is inferred (symbolic.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from minigraph.kernels.cuda.record.symbolic import NO_SYMBOLS, SizeSymbol, Trace, Values
from minigraph.kernels.cuda.record.templates import Templates, values_of
from minigraph.runtime.kinds import check_accepted, inferred
from minigraph.runtime.schedule import Layout, Schedule, Show, Step, Value, flat
from minigraph.types import TensorType

from .operators import Outline
from .values import Sharing

Share = Callable[[Schedule], Sharing]
Holes = list[tuple[int, Any]]  # for each of some sizes the node of a trace, or -1 and the size


class ScheduleTemplate:
    """The values of a Schedule, and how they share buffers, with symbols for sizes.

    same      the values; of those that change, with sizes of no use
    changing  the numbers of these, with their shape, and where they lie in the memory that they show
    outline   what plans that were made of it know of their operators
    """

    def __init__(self, trace: Trace, schedule: Schedule, sharing: Sharing) -> None:
        self.sharing, self.outline = sharing, Outline()
        self.remarks = [(step, trace.text(text)) for step, text in schedule.remarks]
        self.steps = list(trace.steps)
        self.same, self.changing = list[Value](), list[tuple[int, Holes, Holes | None]]()
        for i, v in enumerate(schedule.values):
            shape, lies = _holes(v.type.shape), None
            if v.layout is not None:
                lies = _holes((v.layout.start, *v.layout.strides))
            if any(node >= 0 for node, _ in (*shape, *(lies or ()))):
                self.changing.append((i, shape, lies))
                v = replace(v, type=TensorType((), v.type.dtype), layout=None)
            self.same.append(v)

    def filled(self, found: Values) -> list[Value]:
        """The values for these sizes."""
        values = self.same.copy()
        for i, shape, lies in self.changing:
            v, layout = values[i], None
            if lies is not None:
                start, *strides = _sizes(lies, found)
                layout = Layout(start, tuple(strides))
            own = TensorType(tuple(_sizes(shape, found)), v.type.dtype)
            values[i] = Value(v.name, own, v.producer, v.persistable, v.last_use, v.root, layout)
        return values


def _holes(sizes: Sequence[Any]) -> Holes:
    return [(n.node, 0) if isinstance(n, SizeSymbol) else (-1, n) for n in sizes]


def _sizes(holes: Holes, found: Values) -> list[int]:
    return [found[node] if node >= 0 else size for node, size in holes]


def resized(
    like: Schedule, feeds: Mapping[str, TensorType], show: Show, share: Share, known: Templates[ScheduleTemplate]
) -> tuple[Schedule, Sharing, Outline | None] | None:  # fmt: skip
    """What `Schedule` and `share` make of these feeds, and an Outline of plans that share buffers in the same way.

    None where values would show other memory than in `like`; no Outline where none is known.

    like   of the same program, fetches and names of feeds, with the same `show`
    known  for these; it gets what can be kept
    """
    made = copy(like)
    sizes = tuple([n for name in like.feeds for n in feeds[name].shape])
    found = known.fitting(sizes)
    if found is not None:
        template, nodes = found
        made.values, made.remarks = template.filled(nodes), template.remarks
        made.steps = [_with_types(step, made.values) if step.typed else step for step in like.steps]
        return made, template.sharing, template.outline
    made.values = _values(like)
    if not _retyped(made, like, [feeds[name] for name in like.feeds], show):
        return None
    sharing = share(made)
    _learn(known, like, sizes, show, share, made, sharing)
    return made, sharing, None


def _retyped(made: Schedule, like: Schedule, feeds: Sequence[TensorType], show: Show) -> bool:
    """Find types, and what shows other memory, anew; whether that is the same memory as before."""
    for index, found in zip(like.feeds.values(), feeds, strict=True):
        if made.values[index].type != found:  # else the same object, so that readers need not look closely
            made.values[index].type = found
    made.steps = [_again(step, made.values, like.values) for step in like.steps]
    made.remarks = show(made)
    for new, old in zip(made.values, like.values, strict=True):
        if new.root != old.root:
            return False  # other lives, and others that may be overwritten
        new.last_use = old.last_use
    return True


def _values(like: Schedule) -> list[Value]:
    """New values with the types of these."""
    return [Value(v.name, v.type, v.producer, v.persistable, -1, i) for i, v in enumerate(like.values)]


def _learn(
    known: Templates[ScheduleTemplate], like: Schedule, sizes: tuple[int, ...], show: Show, share: Share,
    found: Schedule, sharing: Sharing,
) -> None:  # fmt: skip
    """Keep a template of what was found for these sizes of feeds."""
    traced = known.trace(sizes)
    if traced is None:
        return
    trace, symbols = traced
    left, made = iter(symbols), copy(like)
    made.values = _values(like)
    feeds = [
        TensorType(tuple([next(left) for _ in t.shape]), t.dtype)
        for t in (like.values[index].type for index in like.feeds.values())
    ]  # fmt: skip
    try:
        if not _retyped(made, like, feeds, show):
            return
        one = ScheduleTemplate(trace, made, share(made))
    except NO_SYMBOLS:
        return
    again = values_of(one, trace)
    if (one.filled(again), one.remarks, one.sharing) == (found.values, found.remarks, sharing):
        known.keep(one)


def _with_types(step: Step, values: Sequence[Value]) -> Step:
    """The step with the types of the values in slots that are not read."""
    inputs = list(step.inputs)
    for number, indices in (step.typed or {}).items():
        types = [values[i].type for i in indices]
        inputs[number] = types if step.op.opdef.inputs[number].variadic else types[0]
    return replace(step, inputs=inputs)


def _again(step: Step, values: list[Value], before: list[Value]) -> Step:
    """The step for inputs of these types; the values that it writes get theirs."""
    typed = step.typed or {}
    given = [*step.read, *(i for indices in typed.values() for i in indices)]
    if all(values[i].type is before[i].type for i in given) and "control" not in step.op.opdef.traits:
        return step
    types: dict[str, list[TensorType]] = {}
    for number, slot in enumerate(step.op.opdef.inputs):
        indices = typed.get(number) or flat([step.inputs[number]])
        if indices:
            types[slot.name] = [values[i].type for i in indices]
    found = inferred(step.op, types)
    for slot, output in zip(step.op.opdef.outputs, step.outputs, strict=True):
        if output is None:
            continue
        for i, v, t in zip(flat([output]), step.op.outputs[slot.name], found[slot.name], strict=True):
            if t != values[i].type:
                check_accepted(step.op, v, t, types)
                values[i].type = t
    return _with_types(step, values) if typed else step
