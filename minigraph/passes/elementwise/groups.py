"""Groups of operators that become one fused operator: who belongs together, and how much memory traffic that saves.

A group has one shape, in which its members work element by element or on rows. It has a place in the schedule: all
values that it reads are computed before, all its readers come after. So no path leaves the group and comes back.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import OpDef
from minigraph.opdef.body import ROW, SUM, WHOLE, BodyLayout, Member, is_pointwise, layout_of
from minigraph.passes.engine.lives import FREE, Lives
from minigraph.passes.engine.log import bytes_text
from minigraph.passes.engine.rule import Refused, refuse_unless
from minigraph.types import TensorType

MOST_MEMBERS, MOST_INPUTS, MOST_OUTPUTS = 32, 16, 8  # what one kernel can keep in registers, and its arguments
MOST_READERS = 16  # of a value that are looked at for a common kernel
LEAST_SAVED = 1e-3  # of what both move: a scale that two norms share is no reason to compute one with the other

Slots = tuple[tuple[Any, ...], ...]  # (slot, number, ...)


class NeedsMemory(Refused):
    """Both would fit, and the program would need more memory."""


FIRST: Rank = (-1,)
LAST: Rank = (1 << 62,)
_rank = attrgetter("rank")


class FusionGroup:
    """Operators in the order of the schedule.

    layout  how the values of all members lie beside each other
    moved   bytes that they read and write one by one; a size of -1 counts as 1
    """

    def __init__(self, ops: list[OpNode], layout: BodyLayout, moved: int) -> None:
        self.ops, self.layout, self.moved, self.inside = ops, layout, moved, {*ops}
        self._reads: list[VarNode] | None = None
        self._written: list[VarNode] | None = None

    @property
    def role(self) -> str:
        return self.ops[0].role

    @property
    def reads(self) -> list[VarNode]:
        """The values from outside that members read, in the order of their first use; as they were at first."""
        if self._reads is None:
            values: dict[VarNode, None] = {}
            inside = self.inside
            for op in self.ops:
                for vs in op.inputs.values():
                    for v in vs:
                        if v not in values and v.producer not in inside and op.reads_values_of(v):
                            values[v] = None
            self._reads = list(values)
        return self._reads

    @property
    def written(self) -> list[VarNode]:
        """The values that are read outside the group; as they were at first."""
        if self._written is None:
            made, inside = [v for op in self.ops for vs in op.outputs.values() for v in vs], self.inside
            self._written = [v for v in made if not inside.issuperset(v.read_by) or v.pinned is not None]
        return self._written

    @property
    def saved(self) -> int:
        """Bytes that the members would move one by one, less what the group moves."""
        return self.moved - sum(map(nbytes, self.reads)) - sum(map(nbytes, self.written))


def is_candidate(op: OpNode) -> bool:
    """Whether an operator works element by element, or on rows that are the last axes."""
    if op.opdef.rows is not None:
        return op.opdef.rows.start(op.attrs, op.inputs[op.opdef.row_slot][0].type.ndim) is not None
    if "elementwise" in op.opdef.traits or not is_pointwise(op.opdef):
        return "elementwise" in op.opdef.traits
    shapes = {v.type.shape for v in op.input_vars if op.reads_values_of(v)}  # a gradient may be nothing but a sum
    return any(v.type.shape in shapes or not shapes for v in op.output_vars)


def start_group(op: OpNode) -> FusionGroup:
    """A group of one candidate; refuses an operator that cannot be in any group."""
    for vs in op.outputs.values():
        for v in vs:
            if v.next_version is not None or _is_update(v):
                raise Refused("{} is updated in place", v.name)
    numbers: dict[VarNode, int] = {}
    slots = [
        tuple([(s, *[numbers.setdefault(v, len(numbers)) for v in vs]) for s, vs in own.items()])
        for own in (op.inputs, op.outputs)
    ]
    layout = _layout_alone(op.opdef, *slots, tuple([v.type for v in numbers]), tuple(op.attrs.items()))
    if isinstance(layout, str):
        raise Refused(layout)
    return FusionGroup([op], layout, moved_bytes(op))


@lru_cache(maxsize=4096)
def _layout_alone(
    opdef: OpDef, inputs: Slots, outputs: Slots, types: tuple[TensorType, ...], attrs: Any
) -> BodyLayout | str:
    """The layout of one operator, or why it has none; layers ask the same. Slots hold numbers of values."""

    def names(slots: Slots) -> dict[str, list[str]]:
        return {slot: [f"t{i}" for i in own] for slot, *own in slots}

    member = Member(opdef, names(inputs), names(outputs), dict(attrs))
    try:
        return layout_of([member], {f"t{i}": t for i, t in enumerate(types)})
    except MinigraphError as no:
        return no.fact


def _is_update(v: VarNode) -> bool:
    """Whether the variable's former value is read; a persistable one has a value before the run."""
    before = v.previous_version
    return before is not None and (not before.given or bool(before.consumers))


def joined(a: FusionGroup, b: FusionGroup, lives: Lives | None = None) -> FusionGroup:
    """Both groups as one; refuses where they do not fit or nothing is saved.

    lives   refuses also where the graph would need more memory
    """
    if a.role != b.role and "optimize" in (a.role, b.role):
        raise Refused("{} is part of {}, {} of {}", a.ops[-1], a.role, b.ops[-1], b.role)
    refuse_unless(len(a.ops) + len(b.ops) <= MOST_MEMBERS, "a kernel has at most {} members", MOST_MEMBERS)
    layout = _common_layout(a.layout, b.layout)
    if layout is None:
        raise Refused("{} works on {}, {} on {}", a.ops[-1], [*a.layout.shape], b.ops[-1], [*b.layout.shape])
    for op in a.ops if a.layout.shape != layout.shape else b.ops if b.layout.shape != layout.shape else ():
        refuse_unless("random" not in op.opdef.traits, "{} draws for its own shape, which is smaller", op)
    group = FusionGroup(sorted((*a.ops, *b.ops), key=_rank), layout, a.moved + b.moved)
    inside = group.inside
    for v in {v: None for op in group.ops for v in op.input_vars} if layout.row is not None else ():
        if not _fits(layout, v, inside):
            raise Refused(f"{v.name} is one element for each row or column to one member only")
    before, after = span(group)
    if not before < after:  # as of most
        raise Refused("others run between {} and {}", a.ops[-1], b.ops[-1])
    refuse_unless(len(group.reads) <= MOST_INPUTS, "a kernel has at most {} inputs", MOST_INPUTS)
    refuse_unless(len(group.written) <= MOST_OUTPUTS, "a kernel has at most {} outputs", MOST_OUTPUTS)
    if group.saved - a.saved - b.saved <= LEAST_SAVED * group.moved:
        raise Refused("no bytes to speak of are saved by {} with {}", a.ops[-1], b.ops[-1])
    if a.role != b.role and not _meet(a, b, group):
        raise Refused("{} runs long before {}, what it reads would be kept", a.ops[-1], b.ops[-1])
    if lives is not None and _something_waits(group):
        more = lives.more_as_one(group.ops, group.reads, group.written)
        if more > FREE:
            raise NeedsMemory("with {} {} needs more memory: {}", a.ops[-1], b.ops[-1], bytes_text(more))
    return group


def _something_waits(group: FusionGroup) -> bool:
    """Whether the group reads what is free before its last member runs, for which nothing of its type stays inside."""
    last, inside = group.ops[-1], group.inside
    early = [v.type for v in group.reads if not v.given and last not in v.read_by]
    if early:
        inner = [v.type for v in {*last.input_vars} if v.producer in inside and inside.issuperset(v.read_by)]
        for t in early:
            if t not in inner:
                return True
            inner.remove(t)
    return False


def _meet(a: FusionGroup, b: FusionGroup, both: FusionGroup) -> bool:
    """Whether forward and backward touch here, as at the loss, so that one kernel needs no more memory than two.

    What runs between writes less than is saved; and what others read before `b`, and would be free by then, is no
    more than what `b` reads of `a`, which need not be kept until then.
    """
    ops, written = next(a.ops[0].output_vars).graph.ops, 0
    at, end = bisect.bisect_right(ops, a.ops[-1].rank, key=_rank), b.ops[0].rank
    while written <= both.saved and ops[at].rank < end:
        written += sum(map(nbytes, ops[at].output_vars)) if ops[at] not in both.inside else 0
        at += 1
    outer, made = {*both.written}, [v for op in a.ops for v in op.output_vars if v.pinned is None]
    beside = [v for v in made if v in outer and all(c.rank < end for c in v.read_by if c.reads_values_of(v))]
    kept = [v for v in made if v not in outer and not b.inside.isdisjoint(v.read_by)]
    return written <= both.saved and sum(map(nbytes, beside)) <= sum(map(nbytes, kept))


def _common_layout(a: BodyLayout, b: BodyLayout) -> BodyLayout | None:
    """The layout of two groups of one shape, or of which one has an element for each row of the other."""
    if None not in (a.row, b.row) and a.row != b.row:
        return None
    row = a.row if a.row is not None else b.row
    if a.shape == b.shape:
        return BodyLayout(a.shape, row, {})
    for one, other in ((a, b), (b, a)) if row is not None else ():
        whole = BodyLayout(one.shape, row, {})
        if other.row is None and other.shape == whole.row_shape:
            return whole
    return None


def _fits(layout: BodyLayout, v: VarNode, inside: Collection[OpNode]) -> bool:
    """Whether members see `v` in one way, those that read it and the one that writes it."""
    kinds = {_kind(layout, reader, v, reader.inputs) for reader in v.graph.readers(v) if reader in inside}
    producer = v.producer
    if producer is not None and producer in inside:
        kinds.add(_kind(layout, producer, v, producer.outputs))
    return len(kinds) == 1 and SUM not in kinds


def _kind(layout: BodyLayout, op: OpNode, v: VarNode, slots: dict[str, list[VarNode]]) -> str:
    """How an operator sees one of its values."""
    slot = next(s for s, vs in slots.items() if any(x is v for x in vs))
    kind = WHOLE if op.opdef.rows is None else op.opdef.rows.kind(slot, op.attrs)
    return ROW if kind == WHOLE and v.type.shape == layout.row_shape != layout.shape else kind


def span(group: FusionGroup) -> tuple[Rank, Rank]:
    """The ranks between which the group can stand: after its operands, before its readers and updates of an operand."""
    inside, before, after = group.inside, FIRST, LAST
    for op in group.ops:
        for vs in op.inputs.values():
            for v in vs:
                writer, newer = v.producer, v.next_version
                if writer in inside:
                    continue
                if writer is not None and writer.rank > before:
                    before = writer.rank
                if newer is not None and newer.producer is not None:
                    after = min(after, newer.producer.rank)
        for vs in op.outputs.values():
            for v in vs:
                if not inside.issuperset(v.read_by):
                    for reader in v.read_by:
                        if reader.rank < after and reader not in inside:
                            after = reader.rank
    return before, after


def moved_bytes(op: OpNode) -> int:
    """Bytes that an operator reads and writes."""
    read = [v for v in {*op.input_vars} if op.reads_values_of(v)]
    return sum(map(nbytes, read)) + sum(map(nbytes, op.output_vars))


def nbytes(v: VarNode) -> int:
    return v.type.least_bytes


def neighbours(op: OpNode) -> list[OpNode]:
    """Operators before `op` that write its operands, or read them too; the largest values first."""
    others: dict[OpNode, None] = {}
    for v in sorted({*op.input_vars}, key=lambda v: (-nbytes(v), v.name)):
        if not op.reads_values_of(v):
            continue
        if v.producer is not None:
            others[v.producer] = None
        readers = v.graph.readers(v)
        if len(readers) <= MOST_READERS:
            others.update(dict.fromkeys(c for c in readers if c.rank < op.rank))
    return list(others)


class SameShapes:
    """Which values have one shape at run time although a size is unknown while compiling."""

    def __init__(self, graph: Graph) -> None:
        self._parent: dict[VarNode, VarNode] = {}
        for op in graph.ops:
            for out, like in _alike(op):
                if out.type.shape == like.type.shape and not like.type.is_static:
                    self._parent[self._root(out)] = self._root(like)

    def _root(self, v: VarNode) -> VarNode:
        while v in self._parent and self._parent[v] is not v:
            self._parent[v] = self._parent.get(self._parent[v], self._parent[v])
            v = self._parent[v]
        return v

    def same(self, a: VarNode, b: VarNode) -> bool:
        """Whether both have one shape in every run."""
        return a.type.shape == b.type.shape and (a.type.is_static or self._root(a) is self._root(b))


def _alike(op: OpNode) -> Iterable[tuple[VarNode, VarNode]]:
    """(output, input) pairs of one shape, by what the operators' inference says."""
    if (pairs := _gradients(op.opdef)) is not None:
        for slot, source in pairs:
            if slot in op.outputs:
                yield from zip(op.outputs[slot], op.inputs.get(source, ()), strict=False)
        return
    first = next(iter(op.inputs.values()), [])
    if not first:
        return
    operands = [*op.input_vars]
    for slot, vs in op.outputs.items():
        kind = WHOLE if op.opdef.rows is None else op.opdef.rows.kind(slot, op.attrs)
        if kind != WHOLE:
            continue
        for like in operands if op.opdef.rows is None else first:
            if all(_broadcasts_into(x.type.shape, like.type.shape) for x in operands if x is not like):
                yield vs[0], like
                break


@cache
def _gradients(opdef: OpDef) -> list[tuple[str, str]] | None:
    """(output slot, the input slot of which it is the gradient) of a grad operator; what outputs of others are like.

    None where outputs may be like any input: of operators that work on elements or rows.
    """
    if opdef.type.endswith("_grad"):
        return [(s, s.removesuffix("_grad")) for s in opdef.output_names if _is_gradient(opdef, s)]
    return None if opdef.traits & {"elementwise", "pointwise"} or opdef.rows else []


def is_gradient_of_input(op: OpNode, slot: str) -> bool:
    """Whether an output slot holds the gradient of an input that has a place in the operator, with its shape."""
    return _is_gradient(op.opdef, slot)


def _is_gradient(opdef: OpDef, slot: str) -> bool:
    return slot.endswith("_grad") and slot.removesuffix("_grad") in opdef.input_names


def _broadcasts_into(shape: Sequence[int], into: Sequence[int]) -> bool:
    """Whether `shape` broadcasts to `into` for all values of the unknown sizes."""
    tail = into[len(into) - len(shape) :] if len(shape) <= len(into) else ()
    return len(shape) == len(tail) and all(a == 1 or (a == b != -1) for a, b in zip(shape, tail, strict=True))
