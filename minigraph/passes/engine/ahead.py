"""Computing a value earlier in the program, such as the gradient of a loss before the loss.

The gradient of a loss is mostly known before the loss is: a mean's is 1 / count, a weighted sum's the weights, and a
loss scale multiplies it. Operators that depend only on values that are known there are moved. An operator that needs
just the shape of a later value is emitted once more, with an earlier value of that shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from minigraph.ir.graph import OpNode, Rank, VarNode

from .rule import GraphBuilder, refuse_unless

LIMIT = 64  # operators that are moved or emitted at most
FIXED = frozenset({"random", "side_effect", "optimizer"})  # traits of operators that stay where they are


class Ahead:
    """Brings values to the place of `g`.

    hidden   {value that is not known there: one that has its type and shape}
    moved    {operator: its place and role before}
    origins  {emitted value: the one that it stands for}
    """

    def __init__(self, g: GraphBuilder) -> None:
        self.g = g
        self.hidden: dict[VarNode, VarNode] = {}
        self.moved: dict[OpNode, tuple[Rank, str]] = {}
        self.origins: dict[VarNode, VarNode] = {}
        self._known: dict[tuple[VarNode, bool], VarNode] = {}
        self._dependent: dict[VarNode, bool] = {}

    def value(self, v: VarNode) -> VarNode:
        """v or an equal value; refused where v depends on hidden values."""
        return self._value(v, False)

    def _value(self, v: VarNode, shape_only: bool) -> VarNode:
        if v in self.hidden:
            refuse_unless(shape_only, f"it depends on the value of {v.name}")
            return self.hidden[v]
        if self._is_there(v):
            return v
        if not self.depends(v):
            self._move(v)
            return v
        if (v, shape_only) not in self._known:
            self._known[v, shape_only] = self._again(v, shape_only)
        return self._known[v, shape_only]

    def undo(self) -> None:
        """Put moved operators back and take emitted ones out."""
        self.g.undo()
        for op, (rank, role) in self.moved.items():
            self.g.graph.move_op(op, rank)
            op.role = role

    def depends(self, v: VarNode) -> bool:
        """Whether v is computed from something hidden."""
        if v in self.hidden or self._is_there(v):
            return v in self.hidden
        if v not in self._dependent:
            op = self._producer(v)
            self._dependent[v] = any(self.depends(x) for x in op.input_vars)
        return self._dependent[v]

    def _is_there(self, v: VarNode) -> bool:
        return v.producer in self.moved or self.g.graph.order_problem(self.g.place, [v]) is None

    def _producer(self, v: VarNode) -> OpNode:
        op = v.producer
        refuse_unless(op is not None and v.version == 0, f"{v.name} is updated in place")
        assert op is not None
        refuse_unless(not op.opdef.traits & FIXED, f"{op.label()} must stay where it is")
        return op

    def _move(self, v: VarNode) -> None:
        op = self._producer(v)
        for x in op.input_vars:
            self._value(x, False)
        for x in op.output_vars:
            refuse_unless(x.version == 0 and x.next_version is None, f"{x.name} is updated in place")
        self._count()
        self.moved[op] = op.rank, op.role
        self.g.graph.move_op(op, (*self.g.place, self.g.graph.ticket()))
        op.role = self.g.like.role

    def _count(self) -> None:
        refuse_unless(len(self.moved) + len(self._known) < LIMIT, f"{LIMIT} operators or more lead to it")

    def _again(self, v: VarNode, shape_only: bool) -> VarNode:
        """Emit the operator that computes v once more."""
        op = self._producer(v)
        slot, index = next((s, i) for s, vs in op.outputs.items() for i, x in enumerate(vs) if x is v)
        unused = op.opdef.unread([slot])
        used = {
            s: [self._value(x, shape_only) for x in vs] for s, vs in op.inputs.items() if s not in unused
        }
        variadic = {s.name for s in op.opdef.inputs if s.variadic}
        args = {s: used.get(s) or [self._like(x, used) for x in vs] for s, vs in op.inputs.items()}
        self._count()
        self.g.emit(
            op.type, needs=[slot], **{s: vs if s in variadic else vs[0] for s, vs in args.items()}, **op.attrs
        )
        made = self.g.emitted[-1].outputs[slot][index]
        self.origins[made] = v
        return made

    def _like(self, v: VarNode, used: Mapping[str, list[VarNode]]) -> VarNode:
        """Any value of v's type and shape."""
        if v.type.is_static:
            for x in (x for vs in used.values() for x in vs):
                if x.type == v.type:
                    return x
        return self._value(v, True)
