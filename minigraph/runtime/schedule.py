"""Schedule: what a Program does in one run, for feeds of known types, independent of the device.

With the feeds' shapes known, all shapes are: types are inferred once more, every write becomes a
value of its own, and the life of each value is computed. Plans turn a Schedule into bound kernels.

    value   one version of a variable; a step that updates `w` in place reads one, writes the next
    root    the value whose memory a view shows; its life covers the lives of its views
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from minigraph.errors import UninitializedError
from minigraph.errors.kinds import COMPUTED_FEED, MISSING_FEED
from minigraph.opdef import Slot
from minigraph.program import Operator, Program, Variable
from minigraph.program.prune import Prune, pruned_ops
from minigraph.types import TensorType

from .kinds import StepKind, described

WIDE = 100  # inputs; with more of them, as updates of all parameters have, a step is like no other


class Layout(NamedTuple):
    """Where a value lies in the memory that it shows: its first element, elements from one index to the next."""

    start: int
    strides: tuple[int, ...]


@dataclass(slots=True)
class Value:
    """One version of a variable during a run."""

    name: str
    type: TensorType
    producer: int  # step that writes it, -1 for feeds and persistables
    persistable: bool = False
    last_use: int = -1
    root: int = -1  # index of the value whose memory this one shows; itself if none
    layout: Layout | None = None  # where there, unless it is all of it in C order
    buffer: int | None = None  # number of the shared buffer it lies in


@dataclass(slots=True)
class Step:
    """One operator with its values: an index, a list of them, or None for each slot.

    A slot whose values are not read (`OpDef.unread`) holds the TensorType instead of the index, which is in `typed`, by
    the number of the slot.
    """

    op: Operator
    kind: StepKind
    inputs: list[Any]
    outputs: list[Any]
    read: list[int]  # the values that are read
    written: list[int]  # the values that are written
    in_place: list[Any] = field(default_factory=list)  # as outputs: the value whose array is updated, or None
    stored: list[tuple[int, str]] = field(default_factory=list)  # persistables written: value, name
    freed: list[int] = field(default_factory=list)  # values nobody reads after this step
    shown: tuple[dict[int, int], frozenset[int]] | None = None  # how many values that are read show each root; these
    typed: dict[int, list[int]] | None = None
    _updates: tuple[list[Any], list[tuple[int, int]]] | None = None  # for which `in_place`

    @property
    def attrs(self) -> str:
        """The attributes of the operator as a text, which is made once."""
        return self.kind.attrs

    @property
    def updates(self) -> list[tuple[int, int]]:
        """(value written, value whose array it takes over)."""
        if self._updates is None or self._updates[0] is not self.in_place:
            if self.in_place.count(None) == len(self.in_place):  # as of most
                self._updates = self.in_place, []
                return self._updates[1]
            slots = zip(self.outputs, self.in_place, strict=True)
            lists = [(o, i) if isinstance(o, list) else ([o], [i]) for o, i in slots]
            pairs = ((o, i) for os, sources in lists for o, i in zip(os, sources or (), strict=False))
            self._updates = self.in_place, [(o, i) for o, i in pairs if i is not None]
        return self._updates[1]

    @property
    def needs(self) -> frozenset[str]:
        """The output slots that are computed."""
        return frozenset(s.name for s, o in zip(self.op.opdef.outputs, self.outputs, strict=True) if o is not None)


Show = Callable[["Schedule"], list[tuple[int, str]]]


def show_views(schedule: Schedule) -> list[tuple[int, str]]:
    """Let the values show the memory of others that NumPy computes without a copy."""
    for step in schedule.steps:
        if step.op.opdef.shows is None:
            continue
        viewed = next((i for i in step.inputs if isinstance(i, int)), None)
        if viewed is not None:
            for i in step.written:
                schedule.values[i].root = schedule.values[viewed].root
    return []


class Schedule:
    """Values and steps of `program` for feeds of the given types.

    show      finds which values show the memory of others on this device; what it remarks is kept: (step, text)
    inplace   whether an operator may write over the value that it updates
    lineage   the same object for all that were made of one Schedule for other sizes (cuda/resized.py)
    """

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune = False,
        show: Show = show_views, inplace: bool = True,
    ) -> None:  # fmt: skip
        self.inplace, self.lineage = inplace, object()
        self.program, self.fetches = program, tuple(fetches)
        self.values: list[Value] = []
        self.current: dict[str, int] = {}
        self.feeds = {name: self._fed(name, type) for name, type in feeds.items()}
        self.persistables: dict[str, int] = {}
        self.steps: list[Step] = []
        self._kinds: dict[tuple[Any, ...], StepKind] = {}  # while types and attributes are what they are
        computed = {name for name in feeds if not program.vars[name].is_data}
        ops = pruned_ops(program.ops, self.fetches, prune, computed) if prune is not False else program.ops
        self.advice = None
        if prune and any(op.role == "optimize" for op in ops):
            self.advice = "with use_prune=True updates run too, and need it; run program.clone(for_test=True) without"
        self.read = {v for op in ops for vs in op.inputs.values() for v in vs}
        for op in ops:
            self._add_step(op)
        self._kinds.clear()  # from here on types may be others
        self.fetched = [self._read(name) for name in self.fetches]
        self.remarks = show(self)
        _find_lives(self)

    def _fed(self, name: str, type: TensorType) -> int:
        """The value of a feed."""
        index = self.current[name] = len(self.values)
        self.values.append(Value(name, type, -1, False, -1, index))
        return index

    def _read(self, name: str) -> int:
        """The present value of a variable."""
        return self.current[name] if name in self.current else self._first(self.program.vars[name])

    def _first(self, v: Variable) -> int:
        """What a variable holds that no operator has written yet: persistables come from the Scope."""
        name = v._name
        if v._persistable:
            if not v.type.is_static:
                raise UninitializedError(
                    f"{v} is read before an operator writes it, and not all of its sizes are declared", site=v.site
                )
            index = self.current[name] = self.persistables[name] = len(self.values)
            self.values.append(Value(name, v.type, -1, True, -1, index))
            return index
        if v.is_data:
            raise MISSING_FEED(f"feed {name!r} is missing: the program reads {v}", site=v.site, hint=self.advice)
        raise MISSING_FEED(f"{v} has no value: it is not fed and no operator that runs before writes it", site=v.site)

    def _add_step(self, op: Operator) -> None:
        values, current, variables_of = self.values, self.current, op.inputs.get
        slots = [variables_of(name) or () for name in op.opdef.input_names]
        given = [current[n] if (n := v._name) in current else self._first(v) for vs in slots for v in vs]
        kind = self._kind(op, slots, given)
        read = given if kind.read is None else [given[place] for place in kind.read]
        position = len(self.steps)
        for i in read:
            values[i].last_use = position
        inputs: list[Any] = [given[place] for place in kind.slots]
        for number, other in kind.others:
            inputs.insert(number, other)
        typed = {number: given[own] for number, own in kind.typed} if kind.typed else None
        step = Step(op, kind, inputs, [], read, [], [], [], [], None, typed)
        self._write(step)
        self.steps.append(step)

    def _kind(self, op: Operator, slots: Sequence[Sequence[Variable]], given: Sequence[int]) -> StepKind:
        """That of the step of an operator: its input slots, and the values that stand in them."""
        outputs, opdef, values = op.outputs, op.opdef, self.values
        idle = [s for s in opdef.optional_outputs if outputs.get(s.name) and self._is_idle(op, s)]
        key: tuple[Any, ...] | None = None
        if len(given) < WIDE:
            written = [outputs.get(name) or () for name in opdef.output_names]
            key = (
                opdef, *op.attrs, *map(id, op.attrs.values()), *idle, *map(len, slots), *map(len, written),
                *[id(values[i].type) for i in given], *[id(v.type) for vs in written for v in vs],
            )  # fmt: skip
            if (known := self._kinds.get(key)) is not None:
                return known
        left = iter(given)
        read = zip(opdef.input_names, slots, strict=True)
        types = {name: [values[next(left)].type for _ in vs] for name, vs in read if vs}
        computed = [s for s in opdef.outputs if outputs.get(s.name) and s not in idle]
        kind = StepKind(op, types, computed)
        if key is not None:
            self._kinds[key] = kind
        return kind

    def _write(self, step: Step) -> None:
        """New values of what a step computes, and the values whose arrays these take over, if any."""
        op, position, feeds, values = step.op, len(self.steps), self.feeds, self.values
        current, known = self.current, self.persistables
        seen = {*step.read} if op.opdef.inplace and known else ()
        for slot in step.kind.outputs:
            if slot is None:
                step.outputs.append(None)
                step.in_place.append(None)
                continue
            source = slot.source
            sources = op.inputs.get(source, ()) if source is not None else ()
            first, in_place = len(values), []
            for v, t in zip(op.outputs[slot.name], slot.types, strict=True):
                name, persistable, index, taken = v._name, v._persistable, len(values), None
                if name in feeds:
                    self._check_feed_is_used(op, v)
                if source is not None:
                    own = persistable and index - first < len(sources) and sources[index - first]._name == name
                    if own or (name in known and current[name] not in seen):
                        taken = current[name]
                in_place.append(taken)
                values.append(Value(name, t, position, persistable, -1, index))
                current[name] = index
                if persistable:
                    step.stored.append((index, name))
            indices = [*range(first, len(values))]
            step.written += indices
            step.outputs.append(indices if slot.variadic else first)
            step.in_place.append(in_place if slot.variadic else in_place[0])

    def _is_idle(self, op: Operator, slot: Slot) -> bool:
        """Whether this optional output stands beside the result and nobody reads it: it is not computed."""
        if op.opdef.all_optional:
            return False
        outputs = op.outputs.get(slot.name, ())
        return not any(v in self.read or v.persistable or v.name in self.fetches for v in outputs)

    def _check_feed_is_used(self, op: Operator, written: Variable) -> None:
        """A value that is fed for a computed variable must be read before it is overwritten."""
        fed = self.feeds[written.name]
        if not written.is_data and self.values[fed].last_use < 0:
            raise COMPUTED_FEED(
                f"feed {written.name!r} would have no effect: {op.type} computes it", site=op.site,
                hint="with use_prune=True the operators before a fed value are left out",
            )  # fmt: skip

    def call(self, step: Step) -> str:
        """The call with the types of this run, as errors show it."""
        lists = [s if isinstance(s, list) else [s] for s in step.inputs]
        return described(step.op, {
            slot.name: [i if isinstance(i, TensorType) else self.values[i].type for i in indices]
            for slot, indices in zip(step.op.opdef.inputs, lists, strict=True) if indices != [None]
        })  # fmt: skip

    @property
    def random(self) -> bool:
        """Whether a step draws random numbers."""
        return any("random" in step.op.opdef.traits for step in self.steps)

    def types(self, output: Any) -> Any:
        """The TensorType of a value, a list of them for a list, None for None."""
        if isinstance(output, list):
            return [self.values[i].type for i in output]
        return None if output is None else self.values[output].type


def _find_lives(schedule: Schedule) -> None:
    """last_use of every root covers its views; fetched values live to the end."""
    end, values, steps = len(schedule.steps), schedule.values, schedule.steps
    for i in schedule.fetched:
        values[i].last_use = end
    for i in range(len(values) - 1, -1, -1):
        value = values[i]
        root = value if value.root == i else values[value.root]
        latest = value.last_use if value.last_use > value.producer else value.producer
        if latest > root.last_use:
            root.last_use = latest
    for i, value in enumerate(values):
        last = value.last_use
        if value.root != i:
            if last < end:
                steps[max(last, value.producer)].freed.append(i)
        elif last < end and not value.persistable and value.producer >= 0:
            steps[last].freed.append(i)
    for position, step in enumerate(steps):  # a view that is read later keeps the old value
        if step.in_place.count(None) < len(step.in_place):
            overwritten = partial(_overwritten, schedule, step, position)
            step.in_place = [slot if slot is None else each(slot, overwritten) for slot in step.in_place]


def _overwritten(schedule: Schedule, step: Step, position: int, i: int | None) -> int | None:
    """Value i if this step, which updates it, may write over its memory."""
    if i is None or not schedule.inplace or schedule.values[schedule.values[i].root].last_use > position:
        return None
    return i if shown_once(step, schedule.values, i) else None


def shown_once(step: Step, values: Sequence[Value], i: int) -> bool:
    """Whether no input but value i itself shows its memory: another one would be overwritten before it is read."""
    if step.shown is None:
        showing: dict[int, int] = {}
        for j in step.read:
            root = values[j].root
            showing[root] = showing.get(root, 0) + 1
        step.shown = showing, frozenset(step.read)
    roots, read = step.shown
    return roots.get(values[i].root, 0) <= (i in read)


def dies(step: Step, position: int, values: Sequence[Value], i: int) -> bool:
    """Whether nobody reads value i after this step, and no other input of it shows the same memory."""
    return values[i].root == i and values[i].last_use <= position and shown_once(step, values, i)


def named_input(step: Step, slot: int) -> Any:
    """What stands in the input that the operator names for output number `slot` (`OpDef.inplace`); None for none."""
    opdef = step.op.opdef
    name = opdef.inplace.get(opdef.outputs[slot].name)
    return step.inputs[opdef.input_names.index(name)] if name is not None else None


def each(slot: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of what stands in a slot, of each entry of a list."""
    return [function(i) for i in slot] if isinstance(slot, list) else function(slot)


def flat(slots: Sequence[Any]) -> list[Any]:
    """What stands in the slots, lists opened, None left out."""
    return [i for s in slots if s is not None for i in (s if isinstance(s, list) else [s])]
