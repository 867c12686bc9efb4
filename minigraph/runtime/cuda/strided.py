"""Which values a GPU need not copy out of others, because whoever reads them takes rows where they lie.

    qkv [B, S, 3, H, D] -> slice -> q [B, S, H, D] -> attention       q shows qkv's memory, in qkv's strides
    gradient of joined weights -> concat_grad -> that of each weight -> fused_adamw

An operator says which inputs its kernels read by strides (`OpDef.strided`). What slices, splits, transposes and
changes of shape give to such inputs, and to nobody else, shows the memory that they were given; else it is copied as
ever, with a remark why. A change of shape alone shows its input's memory to every reader.

What shows another value's memory keeps that alive and unchanged, as every view does: schedule.py. Outputs that are
written by strides and then only joined with others, or turned, lie where that would put them; nobody moves them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from functools import cached_property

from minigraph.kernels.cuda.record.buffer import Buffer, begins
from minigraph.kernels.cuda.record.views import Shows, in_rows, reshaped, shown_from, unfit, whole
from minigraph.opdef import OpDef
from minigraph.runtime.schedule import Layout, Schedule, Step, each, flat
from minigraph.types import TensorType


def joins_alone(opdef: OpDef) -> bool:
    """Whether an operator joins values that have places of their own, and shows nobody's memory."""
    return opdef.joins is not None and opdef.shows is None


def show(schedule: Schedule) -> list[tuple[int, str]]:
    """Let values show the memory of others; (step, why it copies) where a reader would have taken strides."""
    return Views(schedule).remarks


def show_but_lists(schedule: Schedule) -> list[tuple[int, str]]:
    """Likewise, but what is read in a list lies in one piece: updates of some modes move their gradients."""
    return Views(schedule, lists=False).remarks


def show_changes_of_shape(schedule: Schedule) -> list[tuple[int, str]]:
    """Likewise, but all values lie in one piece: only changes of shape are not copied."""
    return Views(schedule, strided=False).remarks


class Views:
    """Values of a Schedule that show others.

    direct    values that are read by strides;  listed: those of them that are read in a list, as rows in equal steps
    taken     {value: how many of its elements are, also as other values that show them}
    apart     {value of these: why it must lie in C order}
    lies      {value: a Buffer that lies in a stand-in for its root as the value lies in the root}
    """

    def __init__(self, schedule: Schedule, strided: bool = True, lists: bool = True) -> None:
        self.values, self.remarks = schedule.values, list[tuple[int, str]]()
        self.direct, self.listed = set[int](), set[int]()
        if strided and lists:
            shown = {i for step in schedule.steps if step.op.opdef.shows is not None for i in step.written}
            self.listed.update(i for step in schedule.steps for i in in_lists(step) if i in shown)
        if strided:
            self.direct.update(i for step in schedule.steps for i in by_strides(step, self.listed))
        self.taken = self._taken(schedule)
        self.apart = self._apart(schedule)
        self.lies: dict[int, Buffer] = {}
        self.current, self.fetched = schedule.current, {*schedule.fetched}
        for position, step in enumerate(schedule.steps):
            shows = step.op.opdef.shows
            if shows is not None:
                self._show(position, step, shows)
        self.reads = Counter(i for step in schedule.steps for i in step.read) if self.direct else Counter()
        self.reads.update(schedule.fetched)
        for step in reversed(schedule.steps) if self.direct else ():
            if step.op.opdef.joins is not None:
                self._join(schedule.steps, step)

    def _taken(self, schedule: Schedule) -> dict[int, int]:
        elements_of = {i: self.values[i].type.size for i in self.direct}
        for step in reversed(schedule.steps) if elements_of else ():
            elements = sum(elements_of.get(i, 0) for i in step.written) if step.op.opdef.shows is not None else 0
            for source in step.read if elements else ():
                elements_of[source] = min(elements_of.get(source, 0) + elements, self.values[source].type.size)
        return elements_of

    def _apart(self, schedule: Schedule) -> dict[int, str]:
        reasons = dict.fromkeys(schedule.fetched, "it is fetched")
        reasons |= {i: "the Scope keeps it" for i in self.taken if self.values[i].persistable}
        for step in schedule.steps if self.taken else ():
            if step.op.opdef.shows is None:
                others = Counter(step.read) - Counter(by_strides(step, self.listed))  # Q may be the Bias, too
                reasons |= dict.fromkeys(others.keys() & self.taken.keys(), f"{step.op.type} reads it, too")
        return reasons

    @cached_property
    def replaced(self) -> set[int]:
        """What the Scope's arrays hold no more at the end, when results are fetched."""
        return {i for i, v in enumerate(self.values) if v.persistable and self.current[v.name] != i}

    def _show(self, position: int, step: Step, shows: Shows) -> None:
        (source,) = step.read
        if shows is whole and source not in self.lies:
            root = self.values[source].root
            for i in step.written:  # the Scope's arrays are places of their own
                if not self.values[i].persistable and not (root in self.replaced and i in self.fetched):
                    self.values[i].root = root
            return
        if self.taken.keys().isdisjoint(step.written):
            return
        opdef = step.op.opdef
        ins = {slot.name: each(i, self._stand_in) for slot, i in zip(opdef.inputs, step.inputs, strict=True)}
        outs = {slot.name: each(i, self._stand_in) for slot, i in zip(opdef.outputs, step.outputs, strict=True)}
        for i, shown in zip(step.written, shows(ins, outs, step.op.attrs), strict=True):
            if not self.taken.get(i):
                continue
            there = reshaped(shown, self.values[i].type.shape)
            why = self._against(i, source, there)
            if there is None or why:
                self.remarks.append((position, f"copies {self.values[i].name}: {why}"))
                continue
            self._lay({i: there}, self.values[source].root)

    def _join(self, steps: list[Step], step: Step) -> None:
        """Let what this step joins or turns be written where it belongs."""
        (out,) = step.written
        root = self.values[out].root
        if self.values[root].persistable:
            return
        for i, there in self._places(step, self._stand_in(out)):
            chain: dict[int, Buffer] = {}
            while there is not None and self._is_passed_on(i):
                chain[i], maker = there, steps[self.values[i].producer]
                if i in by_strides(maker, outputs=True) or joins_alone(maker.op.opdef):
                    parts = self._places(maker, there) if joins_alone(maker.op.opdef) else [(i, there)]
                    if all(part is not None and unfit(part) is None for _, part in parts):
                        self._lay(chain, root)
                    break
                if maker.op.opdef.shows is None or len(maker.written) > 1:
                    break
                (i,) = maker.read
                there = shown_from(maker.op.opdef, there, self.values[i].type.shape, maker.op.attrs)

    def _places(self, step: Step, out: Buffer | None) -> list[tuple[int, Buffer | None]]:
        """The values that a step joins or turns, and where in its output each belongs."""
        ins = {"X": each(step.inputs[0], self._stand_in)}
        assert step.op.opdef.joins is not None
        parts = step.op.opdef.joins(ins, {"Out": out}, step.op.attrs)
        return [(i, reshaped(p, self.values[i].type.shape)) for i, p in zip(step.read, parts, strict=True)]

    def _is_passed_on(self, i: int) -> bool:
        """Whether one step writes value i for one other step, and nobody else sees it."""
        return self.reads[i] == 1 and self.values[i].producer >= 0 and not self.values[i].persistable

    def _lay(self, places: dict[int, Buffer], root: int) -> None:
        """Let values lie in another."""
        for i, there in places.items():
            self.lies[i] = there
            self.values[i].root, self.values[i].layout = root, Layout(begins(there), there.strides)

    def _stand_in(self, i: int | TensorType | None) -> Buffer | None:
        if i is None:
            return None
        t = i if isinstance(i, TensorType) else self.values[i].type
        there = None if isinstance(i, TensorType) else self.lies.get(i)
        return there or Buffer(t.shape, t.dtype)

    def _against(self, i: int, source: int, there: Buffer | None) -> str | None:
        """Why value i cannot lie there."""
        if i in self.apart:
            return self.apart[i]
        if there is None:
            return "strides cannot say where its elements lie"
        root = self.values[self.values[source].root]
        taken = self.taken[self.values[source].root]
        if not root.persistable and 2 * taken < root.type.size:
            return f"it would keep {root.name}, of which {taken} of {root.type.size} elements are read so"
        if i in self.listed and there.steps is None:
            there = there.view((there.size,))  # an update sees no rows in what lies in one piece
        elif i in self.listed and in_rows(there) is None:
            return "its rows do not lie in equal steps"
        return unfit(there) if i in self.direct else None


def by_strides(step: Step, listed: Container[int] | None = None, outputs: bool = False) -> Iterator[int]:
    """The values that a step reads, or writes, by strides; of lists, such as all gradients, those that are `listed`."""
    opdef = step.op.opdef
    slots, given = (opdef.outputs, step.outputs) if outputs else (opdef.inputs, step.inputs)
    for slot, i in zip(slots, given, strict=True) if opdef.strided else ():
        if slot.name in opdef.strided:
            yield from (j for j in flat([i]) if listed is None or not slot.variadic or j in listed)


def in_lists(step: Step) -> Iterator[int]:
    """The values that a step reads by strides in lists."""
    opdef = step.op.opdef
    for slot, i in zip(opdef.inputs, step.inputs, strict=True) if opdef.strided else ():
        if slot.variadic and slot.name in opdef.strided:
            yield from flat([i])
