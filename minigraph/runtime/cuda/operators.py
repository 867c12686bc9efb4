"""Operators: how each operator of a plan gets its calls, and what a plan for other sizes need not find out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_not
from typing import Any

from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.cuda.record.call import Call
from minigraph.kernels.cuda.record.calls import are_fixed
from minigraph.kernels.cuda.record.moved import Earlier, GivenBuffers, Key, Repeats, given_in, taken
from minigraph.kernels.cuda.record.templates import CallTemplate, Known, Resized, Templates
from minigraph.runtime.schedule import Step, flat
from minigraph.types import TensorType

from .values import ValueBuffers

Settle = Callable[[Sequence[Call], Callable[[str], None]], list[Call]]


@dataclass(slots=True)
class StepOutline:
    """What an operator is given, by numbers of values.

    what, facts   what a bind function can tell of it but sizes;  key: that of the plan that found this
    take          takes what it is given of a list with one thing for each value
    unread        (place, value) of those given of which only the type is there: they have buffers of their own
    roots         takes, of what it is given, the first that shows each memory
    templates     those for its sizes;  copied: whether its calls were copies of others when they were last asked for
    """

    what: tuple[Any, ...]
    key: Key
    facts: tuple[Any, ...]
    take: Callable[[Sequence[Any]], Sequence[Any]]
    unread: list[tuple[int, int]]
    roots: Callable[[Sequence[Any]], Sequence[Any]]
    templates: Templates[CallTemplate]
    copied: bool


@dataclass(eq=False)
class Outline:
    """What is the same for plans whose values share buffers, and lie in each other, in the same way.

    views       how those lie that show others: their alignment, and whether in one piece
    steps       by their positions, of those that nothing was moved for
    structures  what follows from which of its buffers the calls touch, by patterns: layout/units.py
    """

    views: Sequence[Any] | None = None
    steps: dict[int, StepOutline] = field(default_factory=dict)
    structures: dict[Any, Any] = field(default_factory=dict)



class Operators:
    """The operators of one plan: their calls are copies of others, those of a template, or what they record.

    settle    says which of an operator's recorded calls will run
    outline   that of plans for other sizes; None where none is known to be alike
    patterns  for each step until now which of its buffers its calls touch, as a text; None where that is not known
    """

    def __init__(
        self, binder: Binder, values: ValueBuffers, settle: Settle, earlier: Earlier | None = None,
        known: Known | None = None, outline: Outline | None = None,
    ) -> None:  # fmt: skip
        self.binder, self.values, self.settle = binder, values, settle
        self.repeats, self.resized = Repeats(binder, earlier), Resized(binder, known)
        self.patterns: list[str | None] = []
        self.outline: Outline | None = None
        if outline is not None:
            views = [(b.alignment, b.steps is None) for b in values.buffers if b.owner is not None]
            outline.views = views if outline.views is None else outline.views
            self.outline = outline if outline.views == views else None
            self.sizes = [(0, *b.shape) if b.owner is None else _lies(b) for b in values.buffers]

    @property
    def as_laid(self) -> bool:
        """Whether values lie where they did before anything was recorded."""
        return not (self.values.apart or self.values.in_pieces or self.binder.arenas)

    def record(self, position: int, step: Step) -> None:
        """Record the calls of an operator."""
        binder, outline = self.binder, self.outline if self.as_laid else None
        what = step.op.opdef, step.attrs, bool(binder.wrong), binder.stored
        known = outline.steps.get(position) if outline is not None else None
        if known is not None and known.what == what:
            self._again(known, step)
            return
        slots = self._slots(step)
        given = given_in(slots, binder.outside)
        key = Key(what, given)
        copied = self._copied(key, given)
        if copied and outline is None:
            return
        templates = self.resized.templates(what, given)
        if not copied and not self._sized(templates, what, given, step):
            self._bound(templates, key, given, step, slots)
        if outline is not None and self.as_laid:
            outline.steps[position] = _outline(what, key, given, step, templates, copied)

    def _again(self, known: StepOutline, step: Step) -> None:
        """The calls of an operator that is given what it is known to be given."""
        given, templates = self._given(known), known.templates
        if not known.copied and self._sized(templates, known.what, given, step):
            return
        key, copied = known.key if known.key.sizes == given.sizes else Key(known.what, given), known.copied
        known.copied = self._copied(key, given)
        if known.copied or (copied and self._sized(templates, known.what, given, step)):
            return
        slots = self._slots(step)
        self._bound(templates, key, given_in(slots, self.binder.outside), step, slots)  # with buffers of these slots

    def _given(self, known: StepOutline) -> GivenBuffers:
        """As `given_in`, for what an operator is known to be given."""
        buffers, sizes = [*known.take(self.values.buffers)], [*known.take(self.sizes)]
        for place, value in known.unread:
            own = self.values.schedule.values[value].type
            buffers[place], sizes[place] = Buffer(own.shape, own.dtype), (0, *own.shape)
        roots = [b if b.owner is None else owner(b) for b in known.roots(buffers)]
        return GivenBuffers(buffers, known.facts, tuple(chain.from_iterable(sizes)), roots)

    def _copied(self, key: Key, given: GivenBuffers) -> bool:
        """Copies of the calls of an operator like this one, where one is known."""
        found = self.repeats.again(key, given.roots)
        if found is None:
            return False
        self.binder.calls += found[0]
        self.patterns.append(found[1])
        return True

    def _sized(
        self, templates: Templates[CallTemplate], what: tuple[Any, ...], given: GivenBuffers, step: Step
    ) -> bool:  # fmt: skip
        """Calls of a template, where one fits."""
        binder, noted = self.binder, len(self.binder.notes)
        found = self.resized.filled(templates, given)
        if found is None:
            return False
        one, filled = found
        calls = [call for call, _ in filled]
        if not one.fixed:
            try:
                calls = self.settle(calls, binder.note)
            except MinigraphError as error:
                raise error.at(step.op.call(), step.op.site) from None
        binder.calls += calls
        kept = self.repeats.remember(what, given, filled, calls, self._told(noted), one.pattern)
        self.patterns.append(one.pattern if kept else None)
        return True

    def _bound(
        self, templates: Templates[CallTemplate], key: Key, given: GivenBuffers, step: Step, slots: Sequence[Any]
    ) -> None:  # fmt: skip
        """What the operator's definition records."""
        binder, opdef, first, noted = self.binder, step.op.opdef, len(self.binder.calls), len(self.binder.notes)
        ins = dict(zip(opdef.input_names, slots, strict=False))
        outs = dict(zip(opdef.output_names, slots[len(ins) :], strict=True))

        def bind(binder: Binder, given: Sequence[Buffer]) -> None:
            left = iter(given)
            opdef.gpu_bind(binder, _given(ins, left), _given(outs, left), step.op.attrs)

        try:
            opdef.gpu_bind(binder, ins, outs, step.op.attrs)
            calls, fixed = binder.calls[first:], are_fixed(binder.calls[first:])
            if not fixed:  # of other sizes a template gives what is to be settled
                self.resized.learn(templates, given, bind, calls, self._told(noted))
            running = self.settle(calls, binder.note)
            if fixed:
                opened = len(running) != len(calls) or any(map(is_not, running, calls))
                self.resized.learn(templates, given, bind, running, self._told(noted), opened)
        except MinigraphError as error:
            raise error.at(step.op.call(), step.op.site) from None
        binder.calls[first:] = running
        self.repeats.keep(key, given.roots, running, self._told(noted))
        self.patterns.append(None)

    def _told(self, noted: int) -> list[str]:
        """The notes from this number on."""
        return [text for _, text in self.binder.notes[noted:]]

    def _slots(self, step: Step) -> list[Any]:
        """What stands in the slots of a step, as buffers."""
        buffers = self.values.buffers
        return [buffers[i] if type(i) is int else _buffer(buffers, i) for i in (*step.inputs, *step.outputs)]


def _outline(
    what: tuple[Any, ...], key: Key, given: GivenBuffers, step: Step, templates: Templates[CallTemplate], copied: bool
) -> StepOutline:  # fmt: skip
    """That of a step which was given these buffers."""
    places: list[int] = []
    unread: list[tuple[int, int]] = []
    for number, slot in enumerate((*step.inputs, *step.outputs)):
        own = step.typed.get(number) if step.typed and number < len(step.inputs) else None
        if own is not None:
            unread += [(len(places) + i, value) for i, value in enumerate(own)]
        places += flat([slot]) if own is None else own
    first: dict[int, int] = {}
    for place, b in enumerate(given.buffers):
        first.setdefault(id(owner(b)), place)
    return StepOutline(
        what, key, given.facts, taken(places), unread, taken([first[id(b)] for b in given.roots]), templates, copied
    )


def _lies(b: Buffer) -> tuple[int, ...]:
    """Where a buffer begins in the memory that it shows, its shape, its steps: as GivenBuffers has them."""
    return root_and_offset(b)[1], *b.shape, *(b.steps or ())


def _given(slots: Mapping[str, Any], left: Iterator[Buffer]) -> dict[str, Any]:
    """The same slots with other buffers, in their order."""
    return {
        name: [next(left) for _ in slot] if isinstance(slot, list) else None if slot is None else next(left)
        for name, slot in slots.items()
    }  # fmt: skip


def _buffer(buffers: Sequence[Buffer], index: Any) -> Any:
    """What stands in a slot, as buffers; a value that is not read has one of its own."""
    if isinstance(index, list):
        return [buffers[i] if type(i) is int else _buffer(buffers, i) for i in index]
    if isinstance(index, TensorType):
        return Buffer(index.shape, index.dtype)
    return None if index is None else buffers[index]
