"""BoundProgram: a Schedule bound to recorded GPU calls and laid out in memory. Needs no GPU.

    Schedule -> a Buffer for each value -> bind functions record calls -> offsets in one arena

Binding needs shapes only; addresses come when the arena is allocated and the Scope's arrays are known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.optimizer.foreach import store
from minigraph.kernels.cuda.record.binder import Binder, Call, Copy, Device, HostCall, Launch, i64
from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.kernels.cuda.record.moved import Repeats
from minigraph.kernels.cuda.record.workspace import Settling
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.runtime.memory import Life, apart, in_a_row, layout, most_live, rounded
from minigraph.runtime.options import DEFAULT, RunOptions
from minigraph.runtime.schedule import Schedule, Step, flat, shown_once
from minigraph.runtime.undo import last_report
from minigraph.types import TensorType

from .joins import Joins, candidates, joins
from .lanes import Turn, turns
from .order import Unit, dependencies, late, lives, most_needed, thrifty, touched
from .strided import show

AS_RECORDED = Settling()
SMALL = 16 << 10  # bytes of a feed or fetched value up to which it travels with others in one copy


class BoundProgram:
    """A Schedule with Buffers and recorded calls.

    outside   buffers whose memory the Scope owns, by name
    results   (buffer, name): temporary values that are copied to persistables at the end
    apart     likewise, by name, after the last step that writes one: where a run has a fault they are not, by `stores`
    spans     for each step the range of its calls in `binder.calls`
    order     positions of calls in the order in which they run
    blocks    (buffer, numbers of the calls in this order during which it is needed) of what lies in the arena;
              `live_bytes` at most at once
    offsets   (buffer, offset) of the same; a run does not keep its content
    letters   (buffer, offset) of what lies in the mailbox: the run counter and small feeds, `inbox_bytes` in
              all, which the host writes in one copy; then the fault record and small fetched values, which it reads
    once      positions of calls that depend on shapes only: they run once, and `constants` holds what they write
    checks    what reads the record of one that checks for NaN: bind_checked.py
    """

    show, checks = staticmethod(show), None

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune = False,
        device: Device | None = None, seed: int = 0, options: RunOptions = DEFAULT,
        settling: Settling = AS_RECORDED, tf32: bool = False,
    ) -> None:  # fmt: skip
        """`settling` says what will run of the recorded calls of an operator: kernels/cuda/record/workspace.py."""
        self.program, self.options, self.settle = program, options, settling.settle
        self.schedule = Schedule(program, feeds, fetches, prune, show=self.show, inplace=options.inplace)
        self.binder = Binder(
            device or Device(), seed=seed, multi_tensor=options.multi_tensor, tf32=tf32, attention=options.attention,
            autotune=options.autotune, sure=settling.sure,
        )  # fmt: skip
        self.binder.notes += self.schedule.remarks
        self.repeats = Repeats(self.binder)
        self.outside: dict[str, Buffer] = {}
        self.results: list[tuple[Buffer, str]] = []
        self.apart: dict[str, Buffer] = {}
        self.stores = range(0)
        self.views: dict[int, list[int]] = {}  # by the value whose memory they show
        self.constant_steps = {i: None for i, step in enumerate(self.schedule.steps) if self._is_constant(step)}
        self.last_stored = max((i for i, step in enumerate(self.schedule.steps) if self._stores(step)), default=-1)
        self.last_report = last_report(self.schedule.steps)  # what is written before it waits for it
        self.last_stored = max(self.last_stored, self.last_report) if self.last_stored >= 0 else -1
        self.buffers = self._make_buffers()
        self.binder.outside = frozenset(id(b) for b in self.outside.values())
        self.spans = [self._bind(position, step) for position, step in enumerate(self.schedule.steps)]
        self.rest = self._store_results()
        self._tell_guards()
        self.joins = Joins()
        self.constant_steps = {position: None for position in self.constant_steps if self._lies_alone(position)}
        self.once = frozenset(i for position in self.constant_steps for i in self.spans[position])
        self.constants, self.constant_bytes = in_a_row(
            self.buffers[i] for position in self.constant_steps for i in self.schedule.steps[position].written
        )
        self.letters, self.inbox_bytes, self.mailbox_bytes = self._fill_mailbox()
        self._join()
        self._place()

    def _is_constant(self, step: Step) -> bool:
        """Whether a step gives the same in every run and is small enough to be kept."""
        values = [self.schedule.values[i] for i in step.written]
        return (
            not step.read and not step.stored and step.op.opdef.traits.isdisjoint({"random", "side_effect"})
            and all(v.type.nbytes <= SMALL for v in values) and not {*step.written} & {*self.schedule.fetched}
        )  # fmt: skip

    def _stores(self, step: Step) -> bool:
        """Whether a step writes elements that the Scope keeps."""
        return any(self.schedule.values[i].type.size for i, _ in step.stored)

    def _lies_alone(self, position: int) -> bool:
        """Whether no arena of a kernel over lists has taken what a step writes."""
        return all(self.buffers[i].owner is None for i in self.schedule.steps[position].written)

    def _make_buffers(self) -> list[Buffer]:
        values = self.schedule.values
        buffers = [Buffer(v.type.shape, v.type.dtype) for v in values]
        for name, index in self.schedule.persistables.items():
            self.outside[name] = buffers[index]
        writers: dict[str, list[int]] = {}
        for position, step in enumerate(self.schedule.steps):
            for written, updated in step.updates:
                buffers[written] = buffers[updated]
            if self.options.inplace:
                self._take_over(position, step, buffers)
            for index, name in step.stored:
                writers.setdefault(name, []).append(index)
        for name, indices in writers.items():
            if name not in self.outside and len(indices) == 1:  # written once, never read before: in its place
                self.outside[name] = buffers[indices[0]]
                continue
            own = self.outside.setdefault(name, Buffer(values[indices[-1]].type.shape, values[indices[-1]].type.dtype))
            if buffers[indices[-1]] is not own:
                self.results.append((buffers[indices[-1]], name))
        for index, value in enumerate(values):
            if value.root != index:
                self.views.setdefault(value.root, []).append(index)
                buffers[index] = self._shown(index, buffers[value.root])
        return buffers

    def _shown(self, index: int, root: Buffer) -> Buffer:
        """The buffer of a value that shows memory of another's."""
        shape, lies = self.schedule.values[index].type.shape, self.schedule.values[index].layout
        return root.spread(shape, lies.strides, lies.start) if lies is not None else root.view(shape)

    def _take_over(self, position: int, step: Step, buffers: list[Buffer]) -> None:
        """Let outputs of a pointwise kernel be the memory of inputs that nobody reads later.

        Each of its threads reads all that it needs before it writes; kernels of other forms may not.
        """
        values, opdef = self.schedule.values, step.op.opdef
        if not opdef.is_expression and "in_place" not in opdef.traits:
            return
        free = [i for i in dict.fromkeys(step.read) if self._dies(i, position) and shown_once(step, values, i)]
        for slot, output in zip(opdef.outputs, step.outputs, strict=True):
            own = opdef.inplace.get(slot.name)
            named = flat([step.inputs[opdef.input_names.index(own)]]) if own else []
            others = [] if own and not opdef.is_expression else free
            for index in flat([output]):
                if values[index].persistable:
                    continue
                fitting = (i for i in (*named, *others) if i in free and values[i].type == values[index].type)
                source = next(fitting, None)
                if source is not None:
                    buffers[index] = buffers[source]
                    free.remove(source)

    def _dies(self, i: int, position: int) -> bool:
        """Whether nobody reads value i after step `position`, and its memory may hold something else then."""
        value = self.schedule.values[i]
        ends = value.root == i and value.last_use <= position
        fed = value.producer < 0  # it may lie where its owner wants to see it again
        return ends and not value.persistable and not fed and value.producer not in self.constant_steps

    def _bind(self, position: int, step: Step) -> range:
        """The calls of a step; behind the last one that writes what the Scope keeps those that bring it there."""
        first = len(self.binder.calls)
        self.binder.stored = position > self.last_stored
        self._keep_apart(step, position < self.last_report)
        self._record(position, step)
        assert position not in self.binder.wrong or position <= self.last_report, f"{step.op.type} lacks `reports`"
        if position in self.binder.wrong and self._keep_apart(step):  # its own kernels may report
            del self.binder.calls[first:], self.binder.scratches[-1]
            self._record(position, step)
        self._check_guard(step, self.binder.calls[first:])
        if position == self.last_stored and self.apart:
            start = len(self.binder.calls)
            store(self.binder, [(self.outside[name], b) for name, b in self.apart.items()])
            self.stores = range(start, len(self.binder.calls))
        return range(first, len(self.binder.calls))

    def _record(self, position: int, step: Step) -> None:
        opdef, first, guarded = step.op.opdef, len(self.binder.calls), bool(self.binder.wrong)
        self.binder.begin(position, step.op.number, opdef.reference)
        ins = {s.name: self._buffer(i) for s, i in zip(opdef.inputs, step.inputs, strict=True)}
        outs = {s.name: self._buffer(i) for s, i in zip(opdef.outputs, step.outputs, strict=True)}
        key, given = self.repeats.key((opdef, repr(step.op.attrs), guarded), [*ins.values(), *outs.values()])
        known = self.repeats.again(key, given)
        if known is not None:
            self.binder.calls += known
            return
        notes = len(self.binder.notes)
        try:
            opdef.gpu_bind(self.binder, ins, outs, step.op.attrs)
            self.binder.calls[first:] = self.settle(self.binder.calls[first:], self.binder.note)
        except MinigraphError as error:
            raise error.at(step.op.call(), step.op.site) from None
        self.repeats.keep(key, given, self.binder.calls[first:], [text for _, text in self.binder.notes[notes:]])

    def _keep_apart(self, step: Step, later: bool = False) -> bool:
        """Let what a step writes into the Scope's arrays lie elsewhere until it is known that the run has no fault.

        Not where nothing has reported, nor will `later`, nor for kernels that look (trait `guarded`) in place.
        """
        read = {id(self.buffers[i]) for i in step.read}
        stored = [(i, name) for i, name in step.stored if self.buffers[i] is self.outside[name]]
        guarded = "guarded" in step.op.opdef.traits and all(id(self.buffers[i]) in read for i, _ in stored)
        apart = later or any(name in self.apart for _, name in stored)
        if (guarded and not later) or not stored or not (self.binder.wrong or apart):
            return False
        for index, name in stored:
            type = self.schedule.values[index].type
            self.buffers[index] = self.apart[name] = made = Buffer(type.shape, type.dtype)
            for i in self.views.get(index, ()):
                self.buffers[i] = self._shown(i, made)
        return True

    def _check_guard(self, step: Step, calls: Sequence[Call]) -> None:
        """What is written in place where others may have reported looks at faults, as its definition says."""
        stays = self.binder.wrong and any(
            b.size and b is self.outside[name] for b, name in ((self.buffers[i], n) for i, n in step.stored)
        )
        if stays:
            looks = any(a is self.binder.fault for call in calls if isinstance(call, Launch) for a in call.args)
            assert looks, f"{step.op.type} is guarded, but looks at no faults"

    def _store_results(self) -> range:
        """The calls that copy into the Scope's arrays at the end."""
        first, pairs = len(self.binder.calls), [(self.outside[name], b) for b, name in self.results]
        if self.binder.wrong:
            store(self.binder, pairs)
        else:
            self.binder.calls += [Copy(to, b) for to, b in pairs]
        return range(first, len(self.binder.calls))

    def _guards(self, position: int) -> dict[int, Launch]:
        """The calls of a step, or of the end, that leave the Scope alone after a fault."""
        span = self.spans[position] if position < len(self.spans) else self.rest
        own = span if position not in self.binder.wrong else [i for i in span if i in self.stores]
        launches = [(i, call) for i in own if isinstance(call := self.binder.calls[i], Launch)]
        return {i: call for i, call in launches if any(a is self.binder.fault for a in call.args)}

    def _tell_guards(self) -> None:
        """Which guards have others after them with kernels between that may report: the answer is needed again."""
        before = max((p for p in self.binder.wrong if p <= self.last_stored), default=0)
        for position in range(len(self.spans) if any(b.size for b, _ in self.results) else before):
            for call in self._guards(position).values():
                call.args = *call.args[:-1], i64(0)

    def _buffer(self, index: Any) -> Any:
        if isinstance(index, list):
            return [self._buffer(i) for i in index]
        if isinstance(index, TensorType):
            return Buffer(index.shape, index.dtype)
        return None if index is None else self.buffers[index]

    def _fill_mailbox(self) -> tuple[list[tuple[Buffer, int]], int, int]:
        """(letters, bytes of the inbox, bytes in all)"""
        owned = {id(b) for b in self.outside.values()}

        def small(indices: Sequence[int]) -> list[Buffer]:
            own = [self.buffers[i] for i in indices]
            return [b for b in own if b.owner is None and id(b) not in owned and b.nbytes <= SMALL]

        letters: dict[int, tuple[Buffer, int]] = {}
        sizes = []
        end = 0
        for part in (
            [self.binder.counter, *small(list(self.schedule.feeds.values()))],
            [self.binder.fault, *small(self.schedule.fetched)],
        ):
            for b in part:
                if id(b) not in letters:
                    letters[id(b)] = b, end
                    end += rounded(b.nbytes)
            sizes.append(end)
        return list(letters.values()), sizes[0], sizes[1]

    def _units(self) -> tuple[list[Unit], dict[int, Buffer]]:
        """What each call reads and writes, and the buffers by the numbers that units give them."""
        numbers: dict[int, int] = {}
        blocks: dict[int, Buffer] = {}
        ignored = {id(self.binder.fault)}  # every kernel may report; who is first does not matter
        ignored |= {id(b) for b, _ in self.constants}
        tables = {id(t.buffer): t.words.buffers for t in self.binder.tables}

        def number(buffer: Buffer) -> int:
            found = numbers.setdefault(id(buffer), len(numbers))
            blocks[found] = buffer
            return found

        units = []
        reporters, guards = frozenset[int](), list[int]()  # these wait for all of those that were recorded before
        spans = [*zip(self.schedule.steps, self.spans, strict=True), (None, self.rest)]
        for position, (step, span) in enumerate(spans):
            read_only = self._read_only(step) if step is not None else {id(b) for b, _ in self.results}
            read_only.update(tables)
            own = self._guards(position)
            for call in (self.binder.calls[i] for i in span):
                given = {id(b): b for b in map(owner, touched(call))}
                if not tables.keys().isdisjoint(given):
                    given |= {id(b): b for t in given & tables.keys() for b in map(owner, tables[t])}
                unit = Unit(barrier=isinstance(call, HostCall))
                if len(units) in own:
                    unit.after = reporters
                    guards.append(len(units))
                elif id(self.binder.fault) in given:
                    unit.after, reporters = frozenset(guards), reporters | {len(units)}
                unchanged = read_only
                if len(units) in self.stores:  # what its step reads of the Scope's arrays is written here
                    unchanged = read_only - self.binder.outside
                elif isinstance(call, Launch) and call.reads:
                    unchanged = read_only.union(map(id, call.reads))
                for key, b in given.items():
                    if key not in ignored:
                        (unit.reads if key in unchanged else unit.writes).add(number(b))
                units.append(unit)
        self.joins.unite(units)
        return units, blocks

    def _read_only(self, step: Step) -> set[int]:
        """Ids of the buffers that own what a step reads and does not update."""
        read, written = ({id(owner(self.buffers[i])) for i in indices} for indices in (step.read, step.written))
        return (read | {id(self.binder.counter)}) - written

    def _join(self) -> None:
        """Let calls that may be one launch be one."""
        triples = candidates(self.binder.calls, self.once)
        if triples:
            self.joins = joins(self.binder.calls, triples, self._units()[0])
            self.binder.joined, self.binder.gone = self.joins.launches, frozenset(self.joins.taken)

    def _place(self) -> None:
        """The order of calls, and offsets in the arena of what neither Scope nor mailbox holds."""
        units, blocks = self._units()
        elsewhere = self._elsewhere() | {id(t.buffer) for t in self.binder.tables}
        kept = {id(owner(self.buffers[i])) for i in self.schedule.fetched}
        fed = {id(owner(self.buffers[i])) for i in self.schedule.feeds.values()}
        own = {n: b for n, b in blocks.items() if id(b) not in elsewhere and b.ptr is None}
        sizes = {n: rounded(b.nbytes) for n, b in own.items()}
        given, needed = ({n for n, b in own.items() if id(b) in ids} for ids in (fed, kept))
        before = dependencies(units)
        absent = self.once | self.binder.gone
        self.order = [i for i in range(len(units)) if i not in absent]
        if self.options.reuse:
            peak = partial(most_needed, units=units, sizes=sizes, given=given, kept=needed)
            frugal = [i for i in thrifty(units, before, sizes, given, needed) if i not in absent]
            least, self.order = min((peak(self.order), self.order), (peak(frugal), frugal), key=itemgetter(0))
            postponed = late(self.order, units, before, sizes, needed)
            self.order = postponed if peak(postponed) < least else self.order
        self.blocks = self._lives(self.order, units, own, given, needed)
        self.live_bytes = most_live([life for _, life in self.blocks])
        offsets, self.arena_bytes = layout(apart([life for _, life in self.blocks]))
        self.offsets = [(b, o) for (b, _), o in zip(self.blocks, offsets, strict=True)]

    def turns(self) -> list[Turn]:
        """The calls in order with their lanes, for a CUDA graph."""
        units, blocks = self._units()
        start = {id(b): o for b, o in self.offsets if b.nbytes}
        places = {n: (start[id(b)], start[id(b)] + b.nbytes) for n, b in blocks.items() if id(b) in start}
        return turns(self.order, units, places, {n: b.nbytes for n, b in blocks.items()})

    def _elsewhere(self) -> set[int]:
        """Ids of the buffers that have a place outside the arena."""
        placed = (*self.letters, *self.constants)
        return {id(b) for b in self.outside.values()} | {id(b) for b, _ in placed}

    def _lives(
        self, order: Sequence[int], units: Sequence[Unit], own: Mapping[int, Buffer], given: Collection[int],
        kept: Collection[int],
    ) -> list[tuple[Buffer, Life]]:  # fmt: skip
        """Each block of the arena with the calls during which it is needed; also those that no call touches."""
        end, touched_in = len(order), lives(order, units)
        found = {}
        for n, b in own.items():
            first, last = touched_in[n]
            first, last = (-1 if n in given else first), (end if n in kept else last)
            found[id(b)] = b, Life(b.nbytes, first, last) if self.options.reuse else Life(b.nbytes, -1, end)
        elsewhere = self._elsewhere()
        for b in self.buffers:
            if b.owner is None and id(b) not in elsewhere:
                found.setdefault(id(b), (b, Life(b.nbytes, -1, -1)))
        return list(found.values())

    def not_captured(self) -> tuple[int, str] | None:
        """(step, reason) where the calls cannot become a CUDA graph."""
        for position, span in enumerate(self.spans):
            if any(isinstance(self.binder.calls[i], HostCall) for i in span):
                return position, "no CUDA graph of this program: the host takes part in each run"
        return None
