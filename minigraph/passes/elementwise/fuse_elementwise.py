"""fuse_elementwise: chains of operators on elements, and operators on rows between them, become one kernel.

    dropout(elementwise_add(X, Y)) -> fused_elementwise(X, Y)      and so on, for any such operators that meet

One rule groups forward and gradient operators, in the order of the schedule. An operator joins the groups of the
operators that write what it reads, or that read it too, if four things hold: the shapes agree, no operator outside
would have to run in between, bytes are saved, and the program needs no more memory (engine/lives.py): what a cast
reads, or what else would be free earlier, waits for the group. Values that others read, or that are fetched, become
outputs of the group. Only values that are one number everywhere are computed twice. Values updated in place stay where
they are.

Before that, operators that only copy a value disappear: the gradients of an addition are the gradient of its sum, and
a product with 1, as at the end of a loss, is its other factor. An operator of which others read only the shape goes
too, where an input has the same shape: the square in a mean square whose value is not wanted.

split_reductions.py splits sums of everything in two, so that the first can join. bias_sums.py takes the gradient of a
bias out of its layer's, so that it can join. loss_groups.py brings a loss and its gradient together although other
operators stand between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import OPS, get_op
from minigraph.opdef.body import Member, format_member, infer_body, layout_of, parse_body
from minigraph.passes.engine.lives import Lives
from minigraph.passes.engine.log import Applied, PassReport, bytes_text
from minigraph.passes.engine.redirect import read_instead, take_out, take_out_unread, unlink
from minigraph.passes.engine.rule import Refused, refuse_unless
from minigraph.types import TensorType, bfloat16, float16

from .bias_sums import bias_sums, give_back
from .groups import (
    FusionGroup,
    NeedsMemory,
    SameShapes,
    is_candidate,
    joined,
    neighbours,
    span,
    start_group,
)
from .loss_groups import loss_groups
from .split_reductions import join_alone, split_reductions, spread_gradients


def fuse_elementwise(graph: Graph, report: PassReport) -> int:
    """Drop copies and lent shapes, find groups, and put a fused operator in the place of each group."""
    shapes = SameShapes(graph)
    for op in graph.ops:
        if not op.opdef.reads_all and op in graph:
            _borrow_shapes(graph, op, shapes)
    for op in reversed(graph.ops):
        if op in graph.nodes and not _gives_values(op):
            _drop_shape(graph, op, shapes, report)
    for op in graph.ops_of(op_type for op_type, opdef in OPS.items() if opdef.copies):
        if op in graph:
            _drop_copies(graph, op, shapes, report)
    split, spread = split_reductions(graph, report.name), spread_gradients(graph, report.name)
    sums = bias_sums(graph, report.name)
    for group in _groups(graph, report):
        if len(group.ops) > 1:
            try:
                report.apply(_Emission(graph, group, shapes, report.name).run())
            except Refused as no:
                report.refuse("Group", group.ops[-1].label(), str(no), group.ops[-1].site)
    join_alone(graph, split)
    give_back(graph, sums)
    for one in spread:
        one.undo_alone()
    return len(report.applied)


def _borrow_shapes(graph: Graph, op: OpNode, shapes: SameShapes) -> None:
    """Where an operator needs only the shape of a value, let it read an input of the same shape instead."""
    unread = op.opdef.unread(op.outputs)
    for slot in [slot for slot in op.inputs if slot in unread]:
        for i, v in enumerate(op.inputs[slot]):
            if v.producer is None:
                continue
            like = next((x for x in op.input_vars if x.type == v.type and op.reads_values_of(x)), None)
            if like is not None and shapes.same(like, v):
                unlink(graph, op)
                graph.set_input(op, slot, i, like)
                take_out_unread(graph, [v.producer])


def _gives_values(op: OpNode) -> bool:
    """Whether the values of an output matter, not only shapes, as those of nearly all operators."""
    for vs in op.outputs.values():
        for v in vs:
            for reader in v.read_by:
                if reader.opdef.reads_all or reader.reads_values_of(v):
                    return True
            if v.pinned is not None:
                return True
    return False


def _drop_shape(graph: Graph, op: OpNode, shapes: SameShapes, report: PassReport) -> None:
    """Take out an operator of whose outputs others want the shapes only, which inputs have, too."""
    outputs = [v for v in op.output_vars if v.read_by]
    if not outputs or "side_effect" in op.opdef.traits:
        return
    likes = [next((x for x in op.input_vars if x.type == v.type and shapes.same(x, v)), None) for v in outputs]
    try:
        for v, like in zip(outputs, likes, strict=True):
            if like is None:
                return
            read_instead(graph, v, like)
    except Refused as no:
        report.refuse("Shape", op.label(), str(no), op.site)
        return
    take_out(graph, op)
    take_out_unread(graph, [v.producer for v in op.input_vars])
    report.apply(Applied("Shape", "nothing, an input has it", (op.label(),), op.site, op.role))


def _drop_copies(graph: Graph, op: OpNode, shapes: SameShapes, report: PassReport) -> None:
    """Let readers of an output that repeats an input read the input."""
    copies = op.opdef.copies.items()
    for slot, source in [(out, x) for out, (x, ones) in copies if not ones or _is_ones(op.inputs[ones][0])]:
        for out in op.outputs.get(slot, [])[:1]:
            given = op.inputs[source][0]
            if not shapes.same(out, given) or out.dtype != given.dtype:
                continue
            makers = [v.producer for v in op.input_vars if _is_ones(v)]
            try:
                read_instead(graph, out, given)
            except Refused as no:
                report.refuse("Copy", f"{op.type} {out.name}", str(no), op.site)
                continue
            if len(list(op.output_vars)) == 1:
                take_out(graph, op)
            else:
                graph.drop_output(op, slot)
                graph.remove_var(out)
            take_out_unread(graph, makers)
            report.apply(Applied("Copy", f"{given.name}, not copied", (f"{op.type} {out.name}",), op.site, op.role))


def _is_ones(v: VarNode) -> bool:
    """Whether this is written as 1 everywhere."""
    op = v.producer
    return op is not None and "uniform" in op.opdef.traits and op.attrs.get("value") == 1


def _groups(graph: Graph, report: PassReport) -> list[FusionGroup]:
    """The groups of the graph, in order of their first operators."""
    group_of = {op: group for group in loss_groups(graph, report) for op in group.ops}
    lives = Lives(graph)
    for op in filter(is_candidate, graph.ops):
        group = group_of.get(op)
        inside = group.inside if group is not None else ()
        others = [other for other in neighbours(op) if other in group_of and other not in inside]
        try:
            group = group or start_group(op)
        except Refused as no:
            if others:
                report.refuse("Group", op.label(), str(no), op.site)
            continue
        waiting, members = [group_of[other] for other in others], 0
        while len(group.ops) > members:  # one that stood between may have joined: ask the others again
            members, refused = len(group.ops), []
            for near in waiting:
                if near.ops[0] in group.inside:
                    continue
                try:
                    group = joined(near, group, lives)
                except Refused as no:
                    if isinstance(no, NeedsMemory):
                        report.refuse("Group", op.label(), str(no), op.site)
                    report.missed("Group", len(near.ops), no, op.site)
                    refused.append(near)
            waiting = refused
        group_of.update(dict.fromkeys(group.ops, group))
    return list({id(g): g for g in group_of.values()}.values())


class _Emission:
    """A group on its way to being one operator."""

    def __init__(self, graph: Graph, group: FusionGroup, shapes: SameShapes, pass_name: str) -> None:
        self.graph, self.group, self.shapes, self.pass_name = graph, group, shapes, pass_name
        self.staying = {op for op in group.ops if _stays(op, group.inside)}
        self.inside = group.inside - self.staying
        self.x = group.reads
        self.outputs, self.inner = self._outputs()
        self.wanted = {*self.outputs}
        self.members: list[OpNode] = []  # without those whose outputs are not needed
        for op in reversed(group.ops):
            if any(v in self.wanted for v in op.output_vars):
                self.members.insert(0, op)
                self.wanted.update(op.input_vars)
        needed = {v for op in self.members for v in op.input_vars if op.reads_values_of(v)}
        self.x = [v for v in self.x if v in needed]
        self.names: dict[VarNode, str] = {v: f"x{i}" for i, v in enumerate(self.x)}
        self.names |= {v: f"y{i}" for i, v in enumerate(self.outputs)}
        self.like: list[VarNode] = []

    def _outputs(self) -> tuple[list[VarNode], list[VarNode]]:
        """The values that are written, and those that stay inside: only their shape is read, which another has."""
        leaving = [op for op in self.group.ops if op in self.inside]
        wanted = [
            v for op in leaving for v in op.output_vars
            if v.pinned is not None or any(c not in self.inside for c in v.read_by)
        ]  # fmt: skip
        kept = [
            v for v in wanted
            if v.pinned is not None or any(c not in self.inside and c.reads_values_of(v) for c in v.consumers)
        ]  # fmt: skip
        self.stand_ins: dict[VarNode, VarNode] = {}
        for v in wanted:
            if any(v is k for k in kept):
                continue
            outside = [c for c in v.consumers if c not in self.inside]
            for other in (*kept, *self.x):
                if other.type == v.type and self.shapes.same(other, v) and not any(
                    self.graph.order_problem(c.rank, [other]) for c in outside
                ):  # fmt: skip
                    self.stand_ins[v] = other
                    break
            else:
                kept.append(v)
        chosen = set(kept)
        inner = [v for op in leaving for v in op.output_vars if v not in chosen]
        return [v for op in leaving for v in op.output_vars if v in chosen], inner

    def run(self) -> Applied:
        """Replace the members; refuses with the graph unchanged."""
        ops, graph = self.group.ops, self.graph
        refuse_unless(len(self.members) > 1, "nobody reads what it writes")
        refuse_unless(self.x, "it reads nothing")
        body = tuple(format_member(m) for op in self.members for m in self._members(op))
        try:
            body, types = _infer(body, tuple([v.type for v in self.x]), tuple([v.type for v in self.like]))
        except MinigraphError as no:
            raise Refused(no.fact) from None
        for v in self.outputs:
            own = types[self.names[v]]
            refuse_unless(v.type.accepts(own), "{} would become {}", v, own)
        rank, last = self._rank(), ops[-1]
        shown = {*self.outputs, *(v for v, other in self.stand_ins.items() if other in self.outputs)}
        lent = [op for op in ops if op in self.staying and not shown.isdisjoint(op.input_vars)]
        behind = {op: (*rank, graph.ticket()) for op in lent}
        refuse_unless(
            all(r < span(self.group)[1] for r in behind.values()), "another group stands between its operators"
        )
        entry = Applied("Group", f"{', '.join(v.name for v in self.outputs)} = fused_elementwise, {self._saving()}",
                        tuple(op.label() for op in ops), last.site, last.role)  # fmt: skip
        layer = next((op.layer for op in reversed(ops) if op.layer), "")
        for v, other in self.stand_ins.items():
            for reader in [c for c in v.consumers if c not in self.inside]:
                for slot, vs in reader.inputs.items():
                    for i in [i for i, x in enumerate(vs) if x is v]:
                        graph.set_input(reader, slot, i, other)
        for op in reversed([op for op in ops if op in self.inside]):
            for grad in list(op.grads):
                graph.link(grad, None)
            graph.remove_op(op)
        inputs = {"X": self.x, "Like": self.like} if self.like else {"X": self.x}
        graph.add_op(
            OpNode(
                get_op("fused_elementwise"), inputs, {"Out": self.outputs}, {"body": body}, rank=rank, role=last.role,
                site=last.site, number=ops[0].number, scope_name=layer, rewriter=self.pass_name,
            )
        )  # fmt: skip
        for op, place in behind.items():  # it reads the shape of a value of the group, and has no reader before
            graph.move_op(op, place)
        for v in self.inner:
            graph.remove_var(v)
        return entry

    def _members(self, op: OpNode) -> list[Member]:
        """The member of an operator; then a cast to 16 bits of what is written and normalised inside, too.

        The gradient of a norm reads what is written: its statistics must be those of the same numbers.
        """
        member, cast = self._member(op), get_op("cast")
        members = [member]
        for slot, (v, *_) in op.outputs.items():
            if v.dtype in (float16, bfloat16) and v in self.outputs and self._is_normalised(v):
                name = self.names[v]
                member.outputs[slot] = [f"u{name[1:]}"]
                attrs = cast.bind_attrs({"dtype": v.dtype})
                members.append(Member(cast, {"X": member.outputs[slot]}, {"Out": [name]}, attrs))
        return members

    def _is_normalised(self, v: VarNode) -> bool:
        """Whether statistics of a value, by an operator inside, are written."""
        for op in self.inside.intersection(v.consumers):
            statistics = op.opdef.rows.statistics if op.opdef.rows is not None else ()
            written = any(s in self.outputs for slot in statistics for s in op.outputs.get(slot, ()))
            if written and v in op.inputs[op.opdef.row_slot]:
                return True
        return False

    def _member(self, op: OpNode) -> Member:
        def read(v: VarNode) -> str:
            if v not in self.names:
                self.names[v] = f"s{len(self.like)}"
                self.like.append(v)
            return self.names[v]

        inputs = {slot: [read(v) for v in vs] for slot, vs in op.inputs.items() if vs}
        for v in op.output_vars:
            self.names.setdefault(v, f"t{len(self.names)}")
        wanted = {
            slot: [self.names[v] for v in vs] for slot, vs in op.outputs.items() if any(v in self.wanted for v in vs)
        }
        return Member(op.opdef, inputs, wanted, _attrs(op), op.number)

    def _rank(self) -> Rank:
        """The place of the last member, or directly after the values that the group reads."""
        before, after = span(self.group)
        refuse_unless(before < after, "another group stands between its operators")
        last = self.group.ops[-1].rank
        return last if last < after else (*before, self.graph.ticket())

    def _saving(self) -> str:
        saved, moved = self.group.saved, self.group.moved
        static = all(v.type.is_static for op in self.group.ops for v in (*op.input_vars, *op.output_vars))
        return f"saves {bytes_text(saved)} of {bytes_text(moved)}" + ("" if static else " for each unknown size")


@lru_cache(maxsize=4096)
def _infer(
    body: tuple[str, ...], x: tuple[TensorType, ...], like: tuple[TensorType, ...]
) -> tuple[tuple[str, ...], dict[str, TensorType]]:
    """A body that has a layout, and the types of all its names: the same objects for layers that ask the same."""
    members = parse_body(body)
    types = infer_body(members, x, like)
    layout_of(members, types)
    return body, types


def _stays(op: OpNode, inside: Collection[OpNode]) -> bool:
    """Whether a member remains in the graph as well: one number everywhere costs nothing to make once more, and who
    reads it outside may do so much later."""
    return "uniform" in op.opdef.traits and any(c not in inside for v in op.output_vars for c in v.read_by)


def _attrs(op: OpNode) -> Mapping[str, Any]:
    """The attributes of an operator; a constant of 16 bits, which is float32 inside, as it is in its own type."""
    if op.type != "fill_any_like" or (dtype := op.outputs["Out"][0].dtype) not in (float16, bfloat16):
        return op.attrs
    with np.errstate(over="ignore"):
        return op.opdef.bind_attrs({**op.attrs, "value": float(np.asarray(op.attrs["value"]).astype(dtype))})

