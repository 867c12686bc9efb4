"""Which Buffer each value of a Schedule lies in, before calls are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.runtime.schedule import Schedule, Step, dies, flat, named_input
from minigraph.runtime.undo import last_report

SMALL = 16 << 10  # bytes of a value up to which it is kept, or travels with others in one copy


@dataclass
class ValueBuffers:
    """Buffers of the values of a Schedule.

    buffers   by number of the value
    outside   buffers whose memory the Scope owns, by name
    results   (buffer, name): temporary values that are copied to persistables at the end
    apart     buffers, by name, that hold what a step writes until it is known that the run has no fault
    views     by the value whose memory they show
    in_pieces names of the Scope's arrays that are updated piece by piece before they are gathered: gpu_pieces.py
    """

    schedule: Schedule
    buffers: list[Buffer]
    outside: dict[str, Buffer] = field(default_factory=dict)
    results: list[tuple[Buffer, str]] = field(default_factory=list)
    apart: dict[str, Buffer] = field(default_factory=dict)
    views: dict[int, list[int]] = field(default_factory=dict)
    in_pieces: set[str] = field(default_factory=set)

    def lay(self, index: int, buffer: Buffer) -> None:
        """Let a value, and those that show its memory, lie in another buffer."""
        self.buffers[index] = buffer
        for i in self.views.get(index, ()):
            self.buffers[i] = self._shown(i, buffer)

    def keep_apart(self, step: Step, reported: bool, later: bool = False) -> bool:
        """Let what a step writes into the Scope's arrays lie elsewhere until it is known that the run has no fault.

        Not where no kernel has `reported`, nor will one `later`, nor for kernels that look (trait `guarded`) in place.
        """
        if not step.stored or not (reported or later or self.apart):
            return False
        read = {id(self.buffers[i]) for i in step.read}
        stored = [
            (i, name) for i, name in step.stored
            if self.buffers[i] is self.outside[name] and name not in self.in_pieces
        ]  # fmt: skip
        guarded = "guarded" in step.op.opdef.traits and all(id(self.buffers[i]) in read for i, _ in stored)
        apart = later or any(name in self.apart for _, name in stored)
        if (guarded and not later) or not stored or not (reported or apart):
            return False
        for index, name in stored:
            type = self.schedule.values[index].type
            self.apart[name] = made = Buffer(type.shape, type.dtype)
            self.lay(index, made)
        return True

    def _shown(self, index: int, root: Buffer) -> Buffer:
        """The buffer of a value that shows memory of another's."""
        shape, lies = self.schedule.values[index].type.shape, self.schedule.values[index].layout
        return root.spread(shape, lies.strides, lies.start) if lies is not None else root.view(shape)


def constant_steps(schedule: Schedule) -> tuple[int, ...]:
    """Positions of the steps that give the same in every run and are small enough to be kept."""
    fetched = {*schedule.fetched}

    def is_constant(step: Step) -> bool:
        values = [schedule.values[i] for i in step.written]
        return (
            not step.stored and step.op.opdef.traits.isdisjoint({"random", "side_effect"})
            and all(v.type.nbytes <= SMALL for v in values) and fetched.isdisjoint(step.written)
        )  # fmt: skip

    return tuple([i for i, step in enumerate(schedule.steps) if not step.read and is_constant(step)])


class Sharing(NamedTuple):
    """Which values of a Schedule lie in one buffer, by their numbers.

    constant  positions of the steps whose results are kept from run to run
    reports   that of the last step that may refuse values; -1 where none does
    lies_in   for each value the first of those that lie in its buffer
    outside   {name of what the Scope owns: (value, whether it lies in the buffer of this one, or in another like it)}
    results   (value, name): temporary values that are copied to persistables at the end
    views     by the value whose memory they show
    """

    constant: tuple[int, ...]
    reports: int
    lies_in: list[int]
    outside: dict[str, tuple[int, bool]]
    results: list[tuple[int, str]]
    views: dict[int, list[int]]


def sharing_of(schedule: Schedule, checking: bool = False, inplace: bool = True) -> Sharing:
    """Which values shall lie in one buffer; `checking`: all results are looked at for NaN."""
    lies_in, steps = [*range(len(schedule.values))], schedule.steps
    constant = constant_steps(schedule) if not checking else ()
    reports = len(steps) - 1 if checking else last_report(steps)
    made = Sharing(constant, reports, lies_in, {name: (i, True) for name, i in schedule.persistables.items()}, [], {})
    latest, several = dict[str, int](), set[str]()  # writers of what the Scope owns
    for position, step in enumerate(steps):
        for written, updated in step.updates:
            lies_in[written] = lies_in[updated]
        if inplace and (step.op.opdef.is_expression or "in_place" in step.op.opdef.traits):
            _take_over(schedule, made, position, step)
        for index, name in step.stored:
            if name in latest:
                several.add(name)
            latest[name] = index
    for name, last in latest.items():
        if name not in made.outside and name not in several:  # written once, never read before: in its place
            made.outside[name] = last, True
            continue
        own, within = made.outside.setdefault(name, (last, False))
        if not within or lies_in[last] != lies_in[own]:
            made.results.append((last, name))
    for index, value in enumerate(schedule.values):
        if value.root != index:
            made.views.setdefault(value.root, []).append(index)
    return made


def value_buffers(schedule: Schedule, sharing: Sharing) -> ValueBuffers:
    """A buffer for each value."""
    values, buffers = schedule.values, list[Buffer]()
    for i, first in enumerate(sharing.lies_in):
        buffers.append(buffers[first] if first < i else Buffer((own := values[i].type).shape, own.dtype))
    outside = {
        name: buffers[i] if within else Buffer(values[i].type.shape, values[i].type.dtype)
        for name, (i, within) in sharing.outside.items()
    }  # fmt: skip
    results = [(buffers[i], name) for i, name in sharing.results]
    made = ValueBuffers(schedule, buffers, outside, results, views=sharing.views)
    for root in made.views:
        made.lay(root, buffers[root])
    return made


def _freed_by(step: Step, slot: int) -> int:
    """The value that need not be kept when output number `slot` is written (`OpDef.frees`); -1 for none."""
    opdef = step.op.opdef
    name = opdef.frees.get(opdef.outputs[slot].name)
    found = step.inputs[opdef.input_names.index(name)] if name is not None else None
    return found if isinstance(found, int) else -1


def _take_over(schedule: Schedule, made: Sharing, position: int, step: Step) -> None:
    """Let outputs of a pointwise kernel be the memory of inputs that nobody reads later.

    Each of its threads reads all that it needs before it writes; kernels of other forms may not, but for those of
    operators with the trait in_place. An output that frees a larger input is better off somewhere else.
    """
    values, opdef = schedule.values, step.op.opdef

    def is_temporary(i: int) -> bool:
        """Whether the memory of value i may hold something else; what is fed may lie where its owner wants it again."""
        producer = values[i].producer
        return not values[i].persistable and producer >= 0 and producer not in made.constant

    free = [i for i in dict.fromkeys(step.read) if is_temporary(i) and dies(step, position, values, i)]
    for slot, output in enumerate(step.outputs):
        named = named_input(step, slot)
        others = [] if opdef.inplace and not opdef.is_expression else free
        freed = _freed_by(step, slot)
        for place, index in enumerate(flat([output])):
            if values[index].persistable:
                continue
            if freed in free and values[freed].type.nbytes > values[index].type.nbytes:
                continue
            own = named[place : place + 1] if isinstance(named, list) else flat([named])
            fitting = (i for i in (*own, *others) if i in free and values[i].type == values[index].type)
            source = next(fitting, None)
            if source is not None:
                made.lies_in[index] = made.lies_in[source]
                free.remove(source)
