"""Graph: a Program as a bipartite graph of operators and versioned variables, for passes.

    VarNode -> OpNode -> VarNode      edges carry (slot, index) as their key

A variable that is updated in place has one VarNode per version: the optimizer reads `w` version 0
and writes `w` version 1. So every version has one producer, and the graph has no cycle. Edges do not
show one order: a version is overwritten only after all its readers ran. `Graph.order_problem` checks
it. Operators have a `rank`, a tuple, and ranks in ascending order are
always a valid schedule: new operators take the place of those they replace.

`graph.nx` is a networkx graph for who wants one; its nodes are the OpNode and VarNode objects themselves.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from minigraph.errors import CallSite
from minigraph.opdef import OpDef
from minigraph.program import Variable, describe_call
from minigraph.types import DType, TensorType

from .adjacency import Adjacency, Edges

Rank = tuple[int, ...]
_rank, _chained = attrgetter("rank"), itertools.chain.from_iterable


class VarNode:
    """One version of a variable.

    source                          the Program's Variable, None for one that a pass made
    given                           the value exists before the first operator: fed, or persistable
    previous_version, next_version  the versions before and after this one, None where there is none
    producer                        the operator that writes it; None for feeds and first versions of persistables
    read_by                         the operators that read it and where, {operator: positions (slot, index)}
    """

    __slots__ = (
        "given", "graph", "name", "next_version", "persistable", "previous_version", "producer", "read_by", "source",
        "type", "version",
    )  # fmt: skip

    def __init__(
        self, graph: Graph, name: str, type: TensorType, source: Variable | None = None, before: VarNode | None = None
    ) -> None:
        """The version of a variable that follows `before`, the first one for None."""
        self.graph, self.name, self.type, self.source = graph, name, type, source
        self.persistable = source is not None and source._persistable
        self.given = False
        self.previous_version = before
        self.next_version: VarNode | None = None
        self.producer: OpNode | None = None
        self.read_by: dict[OpNode, Edges] = {}
        if before is None:
            self.version = 0
        else:
            self.version = before.version + 1
            before.next_version = self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def consumers(self) -> list[OpNode]:
        """The operators that read this version, each once, in rank order."""
        readers = self.read_by
        return sorted(readers, key=_rank) if len(readers) > 1 else list(readers)

    @property
    def users(self) -> list[OpNode]:
        """The operator that writes this version, then those that read it, in no particular order."""
        return [self.producer, *self.read_by] if self.producer is not None else list(self.read_by)

    @property
    def pinned(self) -> str | None:
        """Why this value must exist after any rewrite: it is fetched or persistable; None if it need not."""
        if self.persistable:
            return "persistable"
        if self.name in self.graph.fetched and self.next_version is None:
            return "fetched"
        return None

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

    def __repr__(self) -> str:
        return f"<VarNode {self.name}#{self.version}>"


class OpNode:
    """One operator; the fields mean what they mean in program.Operator.

    grads     the grad operators that are linked to this one, in the order of their links
    rewriter  the pass that made this operator, None if the user's program did
    """

    __slots__ = (
        "attrs", "forward", "grad_slot", "grads", "inputs", "number", "opdef", "outputs", "rank", "rewriter", "role",
        "scope_name", "site", "type",
    )  # fmt: skip

    def __init__(
        self, opdef: OpDef, inputs: dict[str, list[VarNode]], outputs: dict[str, list[VarNode]],
        attrs: dict[str, Any], rank: Rank, role: str = "forward", forward: OpNode | None = None,
        grad_slot: str | None = None, site: CallSite | None = None, number: int = 0,
        scope_name: str = "", rewriter: str | None = None,
    ) -> None:  # fmt: skip
        self.opdef, self.type, self.inputs, self.outputs, self.attrs = opdef, opdef.type, inputs, outputs, attrs
        self.rank, self.role, self.forward, self.grad_slot = rank, role, forward, grad_slot
        self.site, self.number, self.scope_name, self.rewriter = site, number, scope_name, rewriter
        self.grads: dict[OpNode, None] = {}

    @property
    def input_vars(self) -> Iterator[VarNode]:
        return _chained(self.inputs.values())

    @property
    def output_vars(self) -> Iterator[VarNode]:
        return _chained(self.outputs.values())

    @property
    def layer(self) -> str:
        """Its name scope; that of its forward operator for a gradient, which has none."""
        return self.scope_name or (self.forward.scope_name if self.forward is not None else "")

    def reads_values_of(self, v: VarNode) -> bool:
        """Whether the values of `v` matter to this operator, not only its shape and type."""
        opdef, read = self.opdef, v.read_by.get(self)
        if opdef.reads_all or read is None:
            return read is not None
        shapes_only = opdef.unread(self.outputs)
        return not shapes_only.issuperset([slot for slot, _ in read])

    def call(self) -> str:
        return describe_call(self.type, self.inputs)

    def label(self) -> str:
        """`matmul t0`: the type and the first output, as reports name an operator."""
        for vs in self.outputs.values():
            for v in vs:
                return f"{self.type} {v.name}"
        return self.type

    __str__ = label

    def __repr__(self) -> str:
        return f"<OpNode {self.label()}>"


class Graph(Adjacency):
    """Operators and variables of one program.

    nodes       its operators, in no particular order, as keys
    newest      the newest version of each variable by its name; the versions before it are linked
    fetched     names whose final values the run must give
    declared    names of the Program's variables, which new ones must not take
    changed     what was touched since `verify` looked last, operators and variables
    awaits_gradients  append_backward comes later, so new operators write what their gradients read
    on_gpu      passes weigh memory as a GPU needs it, not as a CPU does
    """

    def __init__(self, name: str = "graph", fetched: Iterable[str] = (), declared: Iterable[str] = ()) -> None:
        super().__init__(declared)
        self.name, self.fetched = name, frozenset(fetched)
        self.changed: dict[OpNode | VarNode, None] = {}
        self.awaits_gradients = False
        self.on_gpu = False
        self._sorted: list[OpNode] | None = None
        self.nodes: dict[OpNode, None] = {}
        self._by_type: defaultdict[str, dict[OpNode, None]] = defaultdict(dict)
        self._tickets = itertools.count()

    @property
    def ops(self) -> list[OpNode]:
        """All operators in the order of their ranks, a valid schedule."""
        if self._sorted is None:
            self._sorted = sorted(self.nodes, key=_rank)
        return self._sorted

    def ops_of(self, types: Iterable[str]) -> list[OpNode]:
        """The operators of these types in the order of their ranks; looks at no others."""
        return sorted([op for t in types for op in self._by_type.get(t, ())], key=_rank)

    def has(self, op_type: str) -> bool:
        """Whether there is an operator of this type."""
        return bool(self._by_type.get(op_type))

    def add_var(self, name: str, type: TensorType, source: Variable | None = None) -> VarNode:
        """A new variable, or the next version of one that exists."""
        v = self.put_var(name, type, source)
        self.changed[v] = None
        return v

    def put_var(self, name: str, type: TensorType, source: Variable | None = None) -> VarNode:
        """As `add_var`, of what counts as no change: the graph of a program is made so."""
        v = self.newest[name] = VarNode(self, name, type, source, self.newest.get(name))
        return v

    def add_op(self, op: OpNode) -> OpNode:
        """Put an operator in at its rank; its variables are in the graph already."""
        self._wrote(op, op.output_vars)
        self.put(op)
        return op

    def put(self, op: OpNode) -> None:
        """As `add_op`, of what counts as no change: the graph of a program is made so."""
        self.nodes[op] = self._by_type[op.type][op] = None
        self._sorted, single = None, self._single
        for slot, vs in op.inputs.items():
            edges = single[slot] if len(vs) == 1 else single.first(slot, len(vs))
            for i, v in enumerate(vs):
                readers = v.read_by
                readers[op] = edges[i] if op not in readers else self._with(readers[op], (slot, i))
        for vs in op.outputs.values():
            for v in vs:
                v.producer = op
        if op.forward is not None:
            op.forward.grads[op] = None

    def _wrote(self, op: OpNode, outputs: Iterable[VarNode]) -> None:
        """Note `op`, the versions that it writes, who wrote them so far, and who must run before or after it."""
        changed = self.changed
        changed[op] = None
        for v in outputs:
            changed[v] = None
            if v.producer is not None:
                changed[v.producer] = None
            if v.previous_version is not None and (readers := v.previous_version.read_by):
                changed.update(dict.fromkeys(readers))
            if v.next_version is not None and (writer := v.next_version.producer) is not None:
                changed[writer] = None

    def link(self, op: OpNode, forward: OpNode | None) -> None:
        """Make `op` a grad operator of `forward`, or of no operator for None, which leaves it its name scope."""
        self.changed[op] = None
        op.scope_name = op.layer if forward is None else op.scope_name
        if op.forward is not None:
            del op.forward.grads[op]
        op.forward = forward
        if forward is not None:
            forward.grads[op] = None
        else:
            op.grad_slot = None

    def move_op(self, op: OpNode, rank: Rank) -> None:
        """Give an operator another place."""
        op.rank = rank
        self._sorted = None
        self._wrote(op, op.output_vars)

    def remove_op(self, op: OpNode) -> None:
        """Take an operator out; its variables stay."""
        changed = self.changed
        del self.nodes[op], self._by_type[op.type][op]
        self._sorted = None
        for vs in op.inputs.values():
            for v in vs:
                v.read_by.pop(op, None)
        changed.pop(op, None)
        for vs in op.outputs.values():
            for v in vs:
                changed[v] = None
                if v.producer is op:
                    v.producer = None
        for grad in op.grads:
            changed[grad] = None
        if op.forward is not None:
            del op.forward.grads[op]

    def remove_var(self, v: VarNode) -> None:
        """Take out the newest version of a variable, which has no producer and no reader any more."""
        assert v.producer is None and not v.read_by, f"{v} is still used"
        assert v.next_version is None, f"{v} has a newer version"
        before = v.previous_version
        self.changed.pop(v, None)
        if before is not None:
            before.next_version = None
            self.newest[v.name] = before
        else:
            del self.newest[v.name]

    def drafted(self, op: OpNode) -> None:
        """An operator was made that may come in later: a RecordedGraph keeps the order."""

    def exchange(
        self, made: Iterable[OpNode], gone: Iterable[OpNode], dead: Iterable[VarNode], grads: Mapping[OpNode, OpNode]
    ) -> None:
        """Put operators in the place of others, with which the values `dead` go; `enter_var` names new ones.

        grads   {grad operator of one that goes: the new one whose it will be}
        """
        for op in made:
            self.add_op(op)
        for op, forward in grads.items():
            self.link(op, forward)
        for op in gone:
            self.remove_op(op)
        for v in dead:
            self.remove_var(v)

    def merge_var(self, v: VarNode, into: VarNode) -> None:
        """Let the operators that write and read `v` do so with another variable, and take `v` out."""
        if (writer := v.producer) is not None:
            for vs in writer.outputs.values():
                vs[:] = [into if x is v else x for x in vs]
            self._wrote(writer, (into,))
            v.producer, into.producer = None, writer
        readers = into.read_by
        for op, positions in v.read_by.items():
            for slot, i in positions:
                op.inputs[slot][i] = into
            readers[op] = dict.fromkeys((*readers[op], *positions)) if op in readers else positions
            self.changed[op] = None
        v.read_by.clear()
        self.remove_var(v)

    def set_input(self, op: OpNode, slot: str, index: int, v: VarNode) -> None:
        """Let `op` read `v` at this position instead."""
        self._disconnect(op.inputs[slot][index], op, slot, index)
        op.inputs[slot][index] = v
        self._connect(v, op, slot, index)
        self.changed[op] = None

    def set_output(self, op: OpNode, slot: str, index: int, v: VarNode) -> None:
        """Let `op` write `v` at this position; appends an output where `index` is the next free one."""
        vs = op.outputs.setdefault(slot, [])
        if index < len(vs):
            vs[index].producer = None
            self.changed[vs[index]] = None
            vs[index] = v
        else:
            vs.append(v)
        self._wrote(op, [v])
        v.producer = op

    def drop_output(self, op: OpNode, slot: str) -> None:
        """Let `op` write this optional slot no more; its variable stays, without a writer."""
        self.changed[op] = None
        for v in op.outputs.pop(slot):
            v.producer = None
            self.changed[v] = None

    def ticket(self) -> int:
        """Ascending numbers that make ranks of new operators unique."""
        return next(self._tickets)

    def count(self) -> Mapping[str, int]:
        """Number of operators by type."""
        return {op_type: len(ops) for op_type, ops in self._by_type.items() if ops}
