"""How passes emit operators: GraphBuilder puts them into a Graph at once, a Draft holds them until all is checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import OpDef, get_op
from minigraph.program.builder import GradNeeds

from .log import Reason


class Refused(Reason):
    """A rule or the engine says no, and why."""


def refuse_unless(condition: object, reason: str, *about: object) -> None:
    """Refuse with `reason`, its {} filled with `about`, unless `condition` holds."""
    if not condition:
        raise Refused(reason, *about)


class GraphBuilder(GradNeeds):
    """`g.<op type>(...)` on a Graph: emits at the place of the operators that are replaced.

    training  whether the matched operators have grad operators, or will have
    replaced  the values that the pattern returned, None for outputs that are absent here
    layer     the name scope of new operators that have no forward operator
    """

    def __init__(self, graph: Graph, place: Rank, like: OpNode, rewriter: str) -> None:
        self.graph, self.place, self.like, self.rewriter = graph, place, like, rewriter
        self.training = False
        self.replaced: tuple[VarNode | None, ...] = ()
        self.emitted: list[OpNode] = []
        self.created: list[VarNode] = []
        self.forward, self.layer = like.forward, like.layer
        self.needs: Collection[str] = ()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("__"):
            raise AttributeError(op_type)
        return partial(self.emit, op_type)

    def emit(self, op_type: str, *args: Any, needs: Collection[str] = (), **kwargs: Any) -> Any:
        """Add an operator; returns its outputs as Builder.emit does."""
        opdef = get_op(op_type)
        inputs = opdef.bind_inputs(args, kwargs)
        attrs, types = opdef.resolved(inputs, kwargs)
        outputs: dict[str, list[VarNode]] = {}
        results: list[Any] = []
        for name, optional, variadic in opdef.outputs:
            made: list[VarNode] = []
            if (own := types.get(name)) is not None and (not optional or self.wanted(name, needs)):
                for t in own:
                    made.append(self.new_var(f"{op_type}.{name}", t))
                outputs[name] = made
            results.append(made if variadic else made[0] if made else None)
        op = self.node(opdef, inputs, outputs, attrs)
        self.check_place(op, op.input_vars)
        self.put(op)
        self.emitted.append(op)
        return results[0] if len(results) == 1 else tuple(results)

    def node(
        self, opdef: OpDef, inputs: dict[str, list[VarNode]], outputs: dict[str, list[VarNode]], attrs: dict[str, Any]
    ) -> OpNode:  # fmt: skip
        """A new operator for this place, behind those that were emitted."""
        like, forward = self.like, self.forward
        scope = like.scope_name if forward is not None else self.layer
        return OpNode(
            opdef, inputs, outputs, attrs, (*self.place, self.graph.ticket()), like.role, forward, None, like.site,
            like.number, scope, self.rewriter,
        )  # fmt: skip

    def check_place(self, op: OpNode, reads: Iterable[VarNode]) -> None:
        """Refuse where a new operator cannot read these at its place."""
        problem = self.graph.order_problem(op.rank, reads)
        if problem:
            raise Refused(f"{op.type} cannot stand here: {problem}")

    def new_var(self, name: str, type: Any) -> VarNode:
        v = self.graph.add_var(self.graph.fresh_name(name), type)
        self.created.append(v)
        return v

    def put(self, op: OpNode) -> None:
        self.graph.add_op(op)

    def undo(self) -> None:
        """Take everything out that was emitted."""
        for op in reversed(self.emitted):
            self.graph.remove_op(op)
        for v in self.created:
            self.graph.remove_var(v)


class Draft(GraphBuilder):
    """Operators that are not in the graph yet, with values that are not either: `Graph.exchange` puts them there.

    What is refused leaves nothing behind, and a value that only stands for one of the graph never gets there.
    """

    def new_var(self, name: str, type: Any) -> VarNode:
        v = VarNode(self.graph, name, type)
        self.created.append(v)
        return v

    def put(self, op: OpNode) -> None:
        for vs in op.outputs.values():
            for v in vs:
                v.producer = op
        self.graph.drafted(op)

    def undo(self) -> None:
        """Nothing is in the graph."""

    def let_write(self, new: Iterable[VarNode], old: Iterable[VarNode]) -> None:
        """Let the operators write and read values of the graph instead of their own."""
        instead = dict(zip(new, old, strict=True))
        for op in self.emitted:
            for slots in (op.inputs, op.outputs):
                for vs in slots.values():
                    if not instead.keys().isdisjoint(vs):
                        vs[:] = [instead.get(v, v) for v in vs]
        self.created = [v for v in self.created if v not in instead]
