"""Chains: elementwise operators that meet on one tensor, and the order in which chains of many tensors can run.

    level    how often a value has left chains and come back before: what has one level needs nobody else of that level
    chain    operators of one level and shape that meet; it can be one kernel

Operators are ordered by levels, and in a level those that belong to no chain come first. A version is overwritten by
a later level than that of other chains that read it. So chains of one level are independent, whatever they compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from minigraph.ir.graph import OpNode, VarNode
from minigraph.opdef.body import is_pointwise

LISTED = {"p_norm": "foreach_p_norm"}  # operators on one tensor that are no chain with others -> on lists

Shape = tuple[int, ...]


def is_member(op: OpNode) -> bool:
    """Whether an operator works on elements of one shape, beside values of one element, and may be part of a chain."""
    opdef = op.opdef
    if not is_pointwise(opdef) or opdef.traits & {"random", "side_effect"} or op.attrs.get("axis", -1) != -1:
        return False
    shapes = {v.shape for v in op.output_vars}
    if (opdef.cuda is None and op.type != "sum") or len(shapes) != 1 or not op.inputs:
        return False
    if "reports" in opdef.traits and not all(v.type.is_float for v in op.input_vars):
        return False
    return all(v.type.is_static and (v.shape in shapes or v.type.size == 1) for v in (*op.input_vars, *op.output_vars))


def is_listed(op: OpNode) -> bool:
    """Whether an operator has a form for lists, and is a chain by itself."""
    return op.type in LISTED


@dataclass(frozen=True)
class Chain:
    """Operators on one tensor, in order."""

    ops: tuple[OpNode, ...]

    @property
    def shape(self) -> Shape:
        return next(self.ops[0].output_vars).shape

    @property
    def size(self) -> int:
        return next(self.ops[0].output_vars).type.size

    @cached_property
    def inside(self) -> frozenset[OpNode]:
        return frozenset(self.ops)

    @cached_property
    def writes(self) -> list[VarNode]:
        """The values that others read or that must exist; first those that take the place of a value that is read."""
        outer = [
            v for op in self.ops for v in op.output_vars
            if v.pinned is not None or any(c not in self.inside for c in v.read_by)
        ]  # fmt: skip
        read = {v for op in self.ops for v in op.input_vars}
        return sorted(outer, key=lambda v: v.previous_version not in read)

    @cached_property
    def updated(self) -> list[VarNode]:
        """The values that the first of `writes` take the place of."""
        read = {v for op in self.ops for v in op.input_vars}
        before = [v.previous_version for v in self.writes]
        return [v for v in before if v is not None and v in read]

    @cached_property
    def reads(self) -> list[VarNode]:
        """The values from outside, those first that are updated, in the order of `writes`."""
        values = dict.fromkeys(self.updated)
        for op in self.ops:
            values.update(dict.fromkeys(v for v in op.input_vars if v.producer not in self.inside))
        return list(values)


class Chains:
    """The chains of operators that stand next to each other, `ops`, by levels.

    order   `ops` in an order in which the operators of each chain stand together
    """

    def __init__(self, ops: Sequence[OpNode]) -> None:
        self.ops, self.place = ops, {op: i for i, op in enumerate(ops)}
        self.members = {op for op in ops if is_member(op) or is_listed(op)}
        self.root: dict[OpNode, OpNode] = {op: op for op in self.members}
        self.numbers: dict[VarNode, bool] = {}
        for op in self.members:
            for other in self._met(op):
                self.root[self._root(op)] = self._root(other)
        self.level = self._levels()
        found: dict[tuple[int, OpNode], list[OpNode]] = {}
        for op in ops:
            if op in self.members:
                found.setdefault((self.level[op], self._root(op)), []).append(op)
        self.chains = [(level, Chain(tuple(chain))) for (level, _), chain in found.items()]
        self.order = sorted(ops, key=lambda op: (self.level[op], op in self.members, self.place[op]))

    def _met(self, op: OpNode) -> Iterator[OpNode]:
        """Members on the tensor of `op`: they write what it reads, or read what it writes over."""
        shape = next(op.output_vars).shape
        if is_listed(op):
            return
        for v in op.input_vars:
            writer = v.producer
            if writer in self.members and not is_listed(writer) and v.shape == shape and not self._is_number(v):
                yield writer
        for before in [v.previous_version for v in op.output_vars if v.previous_version is not None]:
            for reader in before.read_by:
                own = reader in self.members and not is_listed(reader)
                if own and next(reader.output_vars).shape == before.shape == shape:
                    yield reader

    def _is_number(self, v: VarNode) -> bool:
        """Whether larger tensors read `v`, too: then it is computed for itself."""
        if v not in self.numbers:
            sizes = (next(c.output_vars).type.size for c in v.read_by if c in self.members)
            self.numbers[v] = v.type.size == 1 and any(size != 1 for size in sizes)
        return self.numbers[v]

    def _root(self, op: OpNode) -> OpNode:
        while self.root[op] is not op:
            self.root[op] = self.root[self.root[op]]
            op = self.root[op]
        return op

    def _before(self, op: OpNode) -> Iterator[OpNode]:
        """The operators here that must run before this one: they write what it reads, or use what it overwrites."""
        for v in op.input_vars:
            if v.producer is not None:
                yield v.producer
        for v in op.output_vars:
            if v.previous_version is not None:
                yield from v.previous_version.users

    def _step(self, first: OpNode, second: OpNode) -> int:
        """How many levels lie between two operators at the least, of which one must run before the other."""
        if first not in self.members:
            return 0
        return int(second not in self.members or self._root(first) is not self._root(second))

    def _levels(self) -> dict[OpNode, int]:
        """Of each operator: as early as can be, then members as late as those that wait for them allow."""
        edges = [(a, b) for b in self.ops for a in dict.fromkeys(self._before(b)) if a in self.place and a is not b]
        level = dict.fromkeys(self.ops, 0)
        for a, b in edges:
            level[b] = max(level[b], level[a] + self._step(a, b))
        latest: dict[OpNode, int] = {}
        for a, b in sorted(edges, key=lambda edge: -self.place[edge[1]]):
            if b in self.members:
                level[b] = latest.get(b, level[b])
            latest[a] = min(latest.get(a, level[b]), level[b] - self._step(a, b))
        for op in self.members:
            level[op] = latest.get(op, level[op])
        return level
