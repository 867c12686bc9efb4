"""Lives: an estimate of the memory that a graph needs, by which a pass decides whether a rewrite takes more.

Values live from their writer to their last reader. Views lie in what they show, and what an operator may write over
an input that dies there takes its place. Left out are layout, what kernels need for themselves, and parameters, states
and feeds, which no rewrite changes. A size of -1 counts as 1.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode

FREE = 64 << 10  # bytes by which an estimate may grow: memory of plans is not shared in smaller pieces
_rank = attrgetter("rank")


class LiveStep(NamedTuple):
    """What runs at one place: an operator, several as one element by element, or nothing."""

    rank: Rank
    ops: Sequence[OpNode]
    reads: Sequence[VarNode]
    writes: Sequence[VarNode]

    def over(self, dying: Collection[VarNode]) -> list[VarNode]:
        """The inputs over which outputs are written, of those that die here."""
        op = self.ops[0] if len(self.ops) == 1 else None
        if op is not None and "in_place" not in op.opdef.traits and op.type != "fused_elementwise":
            pairs = [(op.outputs.get(o, ()), op.inputs.get(i, ())) for o, i in op.opdef.inplace.items()]
            named = [pair for vs, xs in pairs for pair in zip(vs, xs, strict=False)]
            return [x for v, x in named if x in dying and x.type == v.type and not v.persistable]
        free, taken = [*dying], list[VarNode]()
        for v in self.writes if free else ():
            x = next((x for x in free if x.type == v.type), None)
            if x is not None and not v.persistable:
                free.remove(x)
                taken.append(x)
        return taken


def step_of(op: OpNode) -> LiveStep:
    """The step of an operator by itself."""
    return LiveStep(op.rank, (op,), [v for v in op.input_vars if op.reads_values_of(v)], [*op.output_vars])


def bytes_at(steps: Sequence[LiveStep]) -> list[int]:
    """What the values that `steps` touch take at each of them; others may run between, where their ranks say."""
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
    inside = {op for step in steps for op in step.ops}
    change, dying = [0] * (len(steps) + 1), dict[int, dict[VarNode, None]]()
    for v, (first, last) in spans.items():
        last = max(last, _last_outside(v, inside, ranks))
        change[first] += v.type.least_bytes
        if last < len(steps):
            change[last + 1] -= v.type.least_bytes
            dying.setdefault(last, {})[v] = None
    for at, values in dying.items():
        step = steps[at]
        for v in step.over(values.keys() & {*step.reads}):
            change[at] -= v.type.least_bytes
            change[at + 1] += v.type.least_bytes
    return [*accumulate(change[:-1])]


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
    """The last step at which others need `v`; one behind all for what is needed later."""
    if v.pinned is not None:
        return len(ranks)
    last = ranks[0]
    for op in _readers(v):
        if op not in inside and op.rank > last:
            last = op.rank
            if last > ranks[-1]:  # of many readers the others need no look
                return len(ranks)
    return bisect.bisect_right(ranks, last) - 1


class Lives:
    """The bytes that live at each operator of a graph, as it is when they are asked for first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def steps(self) -> list[LiveStep]:
        """All operators, in order."""
        return [step_of(op) for op in self.graph.ops]

    @cached_property
    def live(self) -> list[int]:
        """The bytes at each operator."""
        return bytes_at(self.steps)

    @cached_property
    def peak(self) -> int:
        """The most of them: what a rewrite must not exceed."""
        return max(self.live, default=0)

    def place(self, rank: Rank) -> int:
        """The number of the first operator that does not stand before this rank."""
        return bisect.bisect_left(self.steps, rank, key=_rank)

    def room(self, steps: Sequence[LiveStep]) -> int:
        """The bytes that what operators touch that stand next to each other may take without a higher peak."""
        return self.peak - (self.live[self.place(steps[0].rank)] - bytes_at(steps)[0])

    def more_as_one(self, ops: Sequence[OpNode], reads: Sequence[VarNode], writes: Sequence[VarNode]) -> int:
        """The bytes by which the peak grows where all these operators run as one at the place of the last.

        What they read waits until then, beside what runs in between.
        """
        before = [step_of(op) for op in ops]
        one = LiveStep(ops[-1].rank, ops, reads, writes)
        if bytes_at([one])[0] <= max(bytes_at(before)):  # as of most
            return 0
        places = [self.place(op.rank) for op in ops]
        for at in reversed(range(len(ops) - 1)):
            if places[at] + 1 < places[at + 1]:  # others run between
                before.insert(at + 1, LiveStep((*ops[at].rank, -1), (), (), ()))
        starts = [self.place(step.rank) for step in before]
        ends = [next_start if not step.ops else start + 1
                for step, start, next_start in zip(before, starts, [*starts[1:], 0], strict=True)]  # fmt: skip
        after = [*[step._replace(reads=(), writes=()) for step in before[:-1]], one]
        changes = zip(bytes_at(before), bytes_at(after), strict=True)
        live = [max(self.live[start:end], default=0) for start, end in zip(starts, ends, strict=True)]
        return max(beside + new - old for beside, (old, new) in zip(live, changes, strict=True)) - self.peak
