"""Lives: an estimate of the memory that a graph needs, by which a pass decides whether a rewrite takes more.

Values live from their writer to their last reader. Views lie in what they show, and what an operator may write over
an input that dies there takes its place. Beside them are what kernels need for themselves (`OpDef.beside`) and, where
the graph will run on a GPU, the workspaces of its library. Left out are layout, and parameters, states and feeds, which
no rewrite changes. A size of -1 counts as 1.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, groupby
from operator import add
from typing import NamedTuple

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.kernels.chunks import Beside

FREE = 64 << 10  # bytes by which an estimate may grow: memory of plans is not shared in smaller pieces
LITTLE = 64  # one part of so many is less than an estimate of products and their gradients tells
NOTHING = Beside()


Pairs = Sequence[tuple[VarNode, VarNode]]
"""Values that are written, and values that are read."""


class LiveStep(NamedTuple):
    """What runs at one place: an operator, several as one, or nothing.

    beside  what the kernels need for themselves
    pairs   of which the one may lie where the other did; None for what is known of one operator, and for any of
            several, which run element by element
    apart   of which a GPU need not have both at once, as another kernel writes the one; this holds for one pair, and
            instead of `pairs`
    """

    rank: Rank
    ops: Sequence[OpNode]
    reads: Sequence[VarNode]
    writes: Sequence[VarNode]
    beside: Beside = NOTHING
    pairs: Pairs | None = None
    apart: Pairs = ()

    def over(self, dying: Collection[VarNode]) -> list[VarNode]:
        """The inputs over which outputs are written, of those that die here."""
        named, op = self.pairs, self.ops[0] if len(self.ops) == 1 else None
        if named is None and op is not None and (op.opdef.inplace or "in_place" not in op.opdef.traits):
            slots = [(op.outputs.get(o, ()), op.inputs.get(i, ())) for o, i in op.opdef.inplace.items()]
            named = [pair for vs, xs in slots for pair in zip(vs, xs, strict=False)]
        if named is not None:
            fits = {v: x for v, x in reversed(named) if x in dying and x.type == v.type and not v.persistable}
            return [*fits.values()]
        free, taken = [*dying], list[VarNode]()
        for v in self.writes if free else ():
            x = next((x for x in free if x.type == v.type), None)
            if x is not None and not v.persistable:
                free.remove(x)
                taken.append(x)
        return taken


def step_of(op: OpNode, without: str = "") -> LiveStep:
    """The step of an operator by itself; of what is left of it where nobody needs an output slot."""
    if not without:
        reads, outputs = [v for v in op.input_vars if op.reads_values_of(v)], op.outputs
    else:
        outputs = {slot: vs for slot, vs in op.outputs.items() if slot != without}
        unread = op.opdef.unread(outputs)
        reads = [v for slot, vs in op.inputs.items() if slot not in unread for v in vs] if outputs else []
    writes = [v for vs in outputs.values() for v in vs]
    if (ask := op.opdef.beside) is None or not outputs:
        return LiveStep(op.rank, (op,), reads, writes)
    types = {slot: vs[0].type for slots in (op.inputs, outputs) for slot, vs in slots.items() if vs}
    beside = ask(types, op.attrs)
    apart = [(outputs[out][0], op.inputs[x][0]) for out, x in beside.apart]
    return LiveStep(op.rank, (op,), reads, writes, beside, None, apart)


def bytes_at(
    steps: Sequence[LiveStep], on_gpu: bool = False, gone: Collection[OpNode] | None = None,
    touched: Collection[VarNode] = (),
) -> list[int]:  # fmt: skip
    """What the values that `steps` touch take at each of them; others may run between, where their ranks say.

    on_gpu   with the workspaces of its library
    gone     the operators that run here no more, those of `steps` for None
    touched  other values that count: as long as operators outside read them
    """
    ranks, spans = [step.rank for step in steps], dict[VarNode, list[int]]()
    for at, step in enumerate(steps):
        for v in map(_root, step.reads):
            if v in spans:
                spans[v][1] = at
            elif not (v.given or v.persistable or v.producer is None):
                spans[v] = [bisect.bisect_left(ranks, v.producer.rank), at]
        for v in step.writes:
            if not v.persistable and _root(v) is v:
                spans[v] = [at, at]
    inside = {op for step in steps for op in step.ops} if gone is None else gone
    for v in touched:
        if v not in spans and not (v.given or v.persistable or v.producer is None or v.producer in inside):
            spans[v] = [bisect.bisect_left(ranks, v.producer.rank), -1]
    change, dying = [0] * (len(steps) + 1), dict[int, dict[VarNode, None]]()
    for v, (first, last) in spans.items():
        last = max(last, _last_outside(v, inside, ranks))
        if last < first:
            continue
        change[first] += v.type.least_bytes
        if last < len(steps):
            change[last + 1] -= v.type.least_bytes
            dying.setdefault(last, {})[v] = None
    beside = [step.beside.own + step.beside.library if on_gpu else step.beside.own for step in steps]
    for at, values in dying.items():
        step = steps[at]
        over = sum(v.type.least_bytes for v in step.over(values.keys() & {*step.reads}))
        change[at] -= over
        change[at + 1] += over
        if on_gpu and step.apart:
            spared = [min(v.type.least_bytes, x.type.least_bytes) for v, x in step.apart if x in values]
            beside[at] -= max(0, max(spared, default=0) - over)
    return [*map(add, accumulate(change), beside)]


def _root(v: VarNode) -> VarNode:
    """The value in whose memory `v` lies."""
    while v.producer is not None and v.producer.opdef.shows is not None:
        v = next(v.producer.input_vars)
    return v


def _readers(v: VarNode) -> Iterator[OpNode]:
    """The operators that read the memory of `v`, through views, too; those that came last first."""
    for op in reversed(v.read_by):
        if op.opdef.shows is not None:
            for view in op.output_vars:
                yield from _readers(view)
        if op.reads_values_of(v):
            yield op


def _last_outside(v: VarNode, inside: Collection[OpNode], ranks: Sequence[Rank]) -> int:
    """The last step at which others need `v`; -1 where none do, one behind all for what is needed later."""
    if v.pinned is not None:
        return len(ranks)
    last: Rank = ()
    for op in _readers(v):
        if op.rank > last and op not in inside:
            last = op.rank
            if last > ranks[-1]:  # of many readers the others need no look
                return len(ranks)
    return bisect.bisect_right(ranks, last) - 1


class Place(NamedTuple):
    """Operators from number `start` to before `end`: one of this rank, or all that run behind it, `between` two."""

    rank: Rank
    start: int
    end: int
    between: bool = False


class Lives:
    """The bytes that live at each operator of a graph, as it is when they are asked for first, where it will run."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.on_gpu = graph, graph.on_gpu

    @cached_property
    def ops(self) -> list[OpNode]:
        """All operators, in order."""
        return [*self.graph.ops]

    @cached_property
    def ranks(self) -> list[Rank]:
        """Their ranks, which rewrites may change later."""
        return [op.rank for op in self.ops]

    @cached_property
    def live(self) -> list[int]:
        """The bytes at each operator."""
        live = bytes_at([step_of(op) for op in self.ops], self.on_gpu)
        if self.on_gpu and any("reports" in op.opdef.traits for op in self.ops):
            self._add_waiting(live)
        return live

    def _add_waiting(self, live: list[int]) -> None:
        """Where a run may have a fault, what a GPU writes over states waits until all of it is there.

        But for kernels that look at faults.
        """
        begin, waiting = 0, 0
        for at, op in enumerate(self.ops):
            if op.opdef.inplace and "guarded" not in op.opdef.traits and any(v.persistable for v in op.output_vars):
                for i in range(begin, at):
                    live[i] += waiting
                begin, waiting = at, waiting + sum([v.type.least_bytes for v in op.output_vars if v.persistable])
        if waiting:
            live[begin] += waiting

    @cached_property
    def peak(self) -> int:
        """The most at one operator: what a rewrite must not exceed."""
        return max(self.live, default=0)

    @cached_property
    def little(self) -> int:
        """Bytes by which the peak may grow where a rewrite saves much time."""
        return self.peak // LITTLE

    def more(self, before: Sequence[LiveStep], after: Sequence[LiveStep], alone: bool = False) -> int:
        """The bytes by which the most that is needed may grow where `after` runs instead of `before`.

        The most of the graph is looked for only where these steps themselves grow by more than FREE. What runs between
        two steps, whose values do not change, is a step, too.

        alone   also the bytes by which the most of these steps grows, but for a little: later passes may make less of
                what is the most of the graph now
        """
        rows = self._places({step.rank for step in chain(before, after)})
        gone = {op for step in chain(before, after) for op in step.ops}
        touched = {_root(v) for step in chain(before, after) for v in chain(step.reads, step.writes)}
        old, new = (self._aligned(rows, steps, gone, touched) for steps in (before, after))
        if (growth := _growth(rows, old, new)) <= FREE:
            return growth
        grown = [max(new) - max(old) - max(old) // LITTLE] if alone else []
        for place, own in groupby(range(len(rows)), lambda i: rows[i][1:]):
            at = [*own]  # several where a rewrite puts several steps at the place of one
            beside = max(self.live[place[0] : place[1]], default=0) - max(old[at[0] : at[-1] + 1])
            grown.append(beside + max(new[at[0] : at[-1] + 1]) - self.peak)
        return max(grown)

    def _aligned(
        self, rows: Sequence[Place], steps: Sequence[LiveStep], gone: Collection[OpNode], touched: Collection[VarNode]
    ) -> list[int]:
        """The bytes at each place, where these steps run at some of them."""
        known = {step.rank: step for step in steps}
        aligned = [known.get(row.rank) or LiveStep(row.rank, (), (), ()) for row in rows]
        return bytes_at(aligned, self.on_gpu, gone, touched)

    def _places(self, ranks: Collection[Rank]) -> list[Place]:
        """The places of these ranks and, between two of them, one of all that runs there."""
        found, ordered = list[Place](), sorted(ranks)
        numbers = [max(0, bisect.bisect_right(self.ranks, rank) - 1) for rank in ordered]
        for rank, at, following in zip(ordered, numbers, [*numbers[1:], 0], strict=True):
            found.append(Place(rank, at, at + 1))
            if at + 1 < following:
                found.append(Place((*rank, -1), at + 1, following, between=True))
        return found

    def more_as_one(self, ops: Sequence[OpNode], reads: Sequence[VarNode], writes: Sequence[VarNode]) -> int:
        """The same where all these operators run as one, element by element, at the place of the last.

        What they read waits until then, beside what runs in between.
        """
        before, one = [step_of(op) for op in ops], LiveStep(ops[-1].rank, ops, reads, writes)
        if bytes_at([one])[0] <= max(bytes_at(before)):  # as of most
            return 0
        return self.more(before, [one])


def _growth(rows: Sequence[Place], old: Sequence[int], new: Sequence[int]) -> int:
    """The most by which steps grow; those that stand next to each other lie beside the same values, so count as one."""
    growth, begin = list[int](), 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at].between or rows[at - 1].between:
            growth.append(max(new[begin:at]) - max(old[begin:at]))
            begin = at
    return max(growth)
