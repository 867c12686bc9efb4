"""recompute: values that only backward would still read are computed again instead of kept.

    forward:  a | b | c      backward:  c's gradients, b's gradients, a's gradients
    ->        a | b | c                 c's gradients, b again, b's gradients, a again, a's gradients

Forward is cut into segments. What one segment hands on to another is kept, and what backward reads of the last one.
All else is gone when forward has passed, and copies of the operators compute it again just before backward's first
reader. Memory becomes that of the cuts and of one segment, for about one more forward run. Results stay the same bits:
a copy has its operator's number, so it draws the same random numbers.

A cut is the narrowest place near each n-th part of what forward writes: where the fewest bytes are handed on. Operators
that cannot run twice, those with side effects or that update a persistable or read what forward updates behind them,
are not copied; what they write is kept.
Gradients are linked to the copies, so that other rules take both.

Source: Chen and others, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.program.variable import AGAIN_SUFFIX

from .engine.log import Applied, PassReport

TWICE_NEVER = ("side_effect", "optimizer")  # traits
_rank = attrgetter("rank")


class Segments:
    """The operators of forward, cut into segments behind the operators at `cuts`."""

    def __init__(self, graph: Graph, cuts: Iterable[int]) -> None:
        self.graph, self.forward = graph, forward_of(graph)
        self.of, ends = {}, sorted(cuts)
        for at, op in enumerate(self.forward):
            self.of[op] = bisect.bisect_left(ends, at)
        self.last = max(self.of.values(), default=0)

    def is_kept(self, v: VarNode) -> bool:
        """Whether a value must stay from forward to backward."""
        op = v.producer
        if op is None or v.pinned is not None or not runs_twice(op) or self._reads_old(op):
            return True
        own = self.of.get(op, self.last)
        if own == self.last:
            return True
        return any(self.of.get(reader, own) != own for reader in v.read_by)

    def _reads_old(self, op: OpNode) -> bool:
        """Whether it reads what forward updates later, as the running averages of a norm."""
        return any(v.next_version is not None and v.next_version.producer in self.of for v in op.input_vars)

    def needed(self, number: int) -> tuple[list[OpNode], OpNode | None]:
        """The operators of a segment whose values backward reads and nobody keeps; the first that needs them."""
        readers: list[OpNode] = []
        stack: list[OpNode] = []
        for op in self.forward:
            for v in op.output_vars if self.of[op] == number else ():
                later = [r for r in v.consumers if r not in self.of and r.reads_values_of(v)]
                if later and not self.is_kept(v):
                    readers += later
                    stack.append(op)
        wanted: dict[OpNode, None] = {}
        while stack:
            op = stack.pop()
            if op not in wanted:
                wanted[op] = None
                stack += [v.producer for v in op.input_vars if not self.is_kept(v) and v.producer is not None]
        readers += [grad for op in wanted for grad in op.grads]
        return sorted(wanted, key=_rank), min(readers, key=_rank, default=None)


def forward_of(graph: Graph) -> list[OpNode]:
    """The operators of forward, those before the first gradient."""
    ops = graph.ops
    end = next((i for i, op in enumerate(ops) if op.role != "forward"), 0)
    return ops[:end]


def runs_twice(op: OpNode) -> bool:
    """Whether a second run of an operator changes nothing but its own results."""
    if any(trait in op.opdef.traits for trait in TWICE_NEVER):
        return False
    return not any(v.persistable or v.version or v.next_version is not None for v in op.output_vars)


def recompute(graph: Graph, report: PassReport, recompute_segments: int | None = None) -> int:
    """Cut forward into so many segments, for None into the root of the number of its operators; copies as above."""
    return recomputed(graph, report, narrow_cuts(forward_of(graph), recompute_segments))


def recomputed(graph: Graph, report: PassReport, cuts: Sequence[int]) -> int:
    """Compute again what lies in the segments that end behind the operators of forward at `cuts`; how many there are.

    From the last segment to the first, as backward needs them.
    """
    segments, applied = Segments(graph, cuts), 0
    for number in reversed(range(segments.last)):
        again, first = segments.needed(number)
        if first is None:
            continue
        place = _before(graph, first)
        problem = _problem(graph, again, place)
        if problem is not None:
            report.refuse("Recompute", f"segment {number}", problem, again[0].site)
            continue
        labels = [op.label() for op in again]
        shown = labels if len(labels) < 4 else [labels[0], f"{len(labels) - 2} others", labels[-1]]
        entry = Applied(
            "Recompute", f"segment {number} again before {first.label()}", tuple(shown), again[-1].site, "backward"
        )
        _copy(graph, again, place, segments)
        report.applied.append(entry)
        applied += 1
    if not segments.last:
        report.missed("Recompute", 0, "forward has one segment, and the last one is never computed again", None)
    return applied


def _before(graph: Graph, op: OpNode) -> Rank:
    """A rank between `op` and the operator before it; longer ones that begin so lie there, too."""
    ops = graph.ops
    return (*ops[bisect.bisect_left(ops, op.rank, key=_rank) - 1].rank, -1)  # tickets are not negative


def _problem(graph: Graph, again: Sequence[OpNode], place: Rank) -> str | None:
    """Why what a segment reads is not there any more where backward begins to need it."""
    inside = {*again}
    return graph.order_problem(place, [v for op in again for v in op.input_vars if v.producer not in inside])


def _copy(graph: Graph, again: Sequence[OpNode], place: Rank, segments: Segments) -> None:
    """Copies of operators at `place`; backward reads what they write, and gradients are theirs."""
    copies: dict[VarNode, VarNode] = {}
    made: list[OpNode] = []
    for op in again:
        inputs = {slot: [copies.get(v, v) for v in vs] for slot, vs in op.inputs.items()}
        outputs = {
            slot: [graph.add_var(graph.fresh_name(f"{v.name}{AGAIN_SUFFIX}"), v.type) for v in vs]
            for slot, vs in op.outputs.items()
        }
        copy = OpNode(
            op.opdef, inputs, outputs, dict(op.attrs), rank=(*place, graph.ticket()), role="backward", site=op.site,
            number=op.number, scope_name=op.scope_name, rewriter="recompute",
        )  # fmt: skip
        graph.add_op(copy)
        made.append(copy)
        for grad in list(op.grads):
            graph.link(grad, copy)
        written = zip(op.output_vars, copy.output_vars, strict=True)
        copies |= {v: new for v, new in written if not segments.is_kept(v)}
    for v, new in copies.items():
        for reader in [r for r in v.consumers if r not in segments.of and r.rank > place]:
            for slot, i in list(v.read_by[reader]):
                graph.set_input(reader, slot, i, new)
    for op in made:
        for slot in op.opdef.outputs:
            if slot.optional and slot.name in op.outputs and not any(v.consumers for v in op.outputs[slot.name]):
                graph.drop_output(op, slot.name)


def narrow_cuts(forward: Sequence[OpNode], segments: int | None = None) -> list[int]:
    """Positions of operators behind which forward is cut: the narrowest place near each n-th part of its bytes."""
    count = segments if segments is not None else math.isqrt(len(forward))
    written = [sum(_bytes(v) for v in op.output_vars) for op in forward]
    total, done, ends = sum(written), 0, []
    for size in written:
        done += size
        ends.append(done)
    handed = _handed_on(forward)
    cuts = []
    for part in range(1, count):
        low, high = (total * (2 * part + sign) / (2 * count) for sign in (-1, 1))
        near = range(bisect.bisect_left(ends, low), min(bisect.bisect_right(ends, high), len(forward) - 1))
        if near:
            cuts.append(min(near, key=lambda at: (handed[at], abs(ends[at] - total * part / count))))
    return sorted(set(cuts))


def _handed_on(forward: Sequence[OpNode]) -> list[int]:
    """Bytes that forward's operators behind each position read of what those up to it have written."""
    position = {op: at for at, op in enumerate(forward)}
    changes = [0] * (len(forward) + 1)
    for at, op in enumerate(forward):
        for v in op.output_vars:
            end = max((position[r] for r in v.read_by if r in position), default=at)
            changes[at] += _bytes(v)
            changes[end] -= _bytes(v)
    sums, now = [], 0
    for change in changes[:-1]:
        now += change
        sums.append(now)
    return sums


def _bytes(v: VarNode) -> int:
    """Bytes of a value; sizes that are known only at run time count as 1."""
    return math.prod(abs(size) for size in v.type.shape) * v.type.dtype.itemsize
