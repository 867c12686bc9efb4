"""A loss and its gradient as the beginning of one group: scores are read once, probabilities are never written.

    Softmax, Loss = loss(Logits, Label)
    Logits_grad = loss_grad(Label, Softmax, Loss_grad)

Between them in the schedule stand the readers of Loss and the operators that compute Loss_grad. That is 1 / count, a
weight or a loss scale, and mostly does not depend on the loss. So it is computed ahead of the loss (engine/ahead.py),
and the operators that spread it over rows become members. Refused where it does depend on the loss, and where a group
would be refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import OPS
from minigraph.passes.engine.ahead import Ahead
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.redirect import unlink
from minigraph.passes.engine.rule import GraphBuilder, Refused, refuse_unless

from .groups import FusionGroup, is_candidate, joined, moved_bytes, nbytes, start_group

LONGEST = 4096  # elements of a row that a kernel keeps in registers with all values computed from it


def loss_groups(graph: Graph, report: PassReport) -> list[FusionGroup]:
    """One group for each loss that meets its gradient."""
    groups, order = [], _Order(graph.ops)
    for op in filter(is_candidate, graph.ops_of(op_type for op_type, opdef in OPS.items() if "loss" in opdef.traits)):
        for grad in [grad for grad in op.grads if grad.type == f"{op.type}_grad"]:
            g = GraphBuilder(graph, op.rank, op, report.name)
            g.forward, ahead = None, Ahead(g)
            try:
                groups.append(_group(ahead, op, grad, order))
            except Refused as no:
                ahead.undo()
                report.refuse("Loss", grad.label(), f"the loss and its gradient stay apart: {no}", op.site)
                continue
            for moved in ahead.moved:
                unlink(graph, moved)  # its forward operator may stand behind it now
            break
    return groups


class _Order:
    """The operators as they stood before any was moved."""

    def __init__(self, ops: Sequence[OpNode]) -> None:
        self.ops, self.at = ops, {op: at for at, op in enumerate(ops)}

    def written(self, op: OpNode, grad: OpNode, inside: Collection[OpNode], most: int) -> int:
        """Bytes that others write between both; looks no further than `most`."""
        total = 0
        for at in range(self.at[op] + 1, self.at[grad]):
            total += sum(map(nbytes, self.ops[at].output_vars)) if self.ops[at] not in inside else 0
            if total > most:
                break
        return total


def _group(ahead: Ahead, op: OpNode, grad: OpNode, order: _Order) -> FusionGroup:
    graph, scores = ahead.g.graph, op.inputs[op.opdef.row_slot][0].type
    n = math.prod(scores.shape[op.opdef.rows.start(op.attrs, scores.ndim) :])  # type: ignore[union-attr]
    refuse_unless(0 < n <= LONGEST, f"a row has {n} elements, at most {LONGEST} stay in registers")
    own = {v for vs in op.outputs.values() for v in vs}
    between, outer = _between(op, grad, own)
    ahead.hidden |= {v: v for v in own}
    for v in outer:
        refuse_unless(not ahead.depends(v), f"{v.name} depends on the loss")
        ahead.value(v)
    most, cost = sum(map(nbytes, own)), sum(nbytes(v) for m in ahead.moved for v in m.output_vars)
    refuse_unless(cost <= most, f"{cost} bytes would have to be kept from before the loss on")
    between.sort(key=lambda member: member.rank)
    inside, places = {op, grad, *between, *ahead.moved}, {m: m.rank for m in (*between, grad)}
    written = order.written(op, grad, inside, moved_bytes(grad))
    refuse_unless(written <= moved_bytes(grad), f"much is written between {op.label()} and {grad.label()}")
    try:
        for member in places:  # where the kernel will stand
            graph.move_op(member, (*op.rank, graph.ticket()))
        group = _all_joined(op, between, grad)
    except Refused:
        for member, rank in places.items():
            graph.move_op(member, rank)
        raise
    return group


def _all_joined(op: OpNode, between: list[OpNode], grad: OpNode) -> FusionGroup:
    """Join the loss with its neighbours, its gradient with its own, then both groups."""
    front, back, rest = start_group(op), start_group(grad), []
    for member in between:
        try:
            front = joined(front, start_group(member))
        except Refused:
            rest.append(member)
    for member in reversed(rest):
        back = joined(start_group(member), back)
    return joined(front, back)


def _between(op: OpNode, grad: OpNode, own: set[VarNode]) -> tuple[list[OpNode], list[VarNode]]:
    """The operators that spread Loss_grad over rows, and the values from which they compute it."""
    shape = op.outputs["Loss"][0].type.shape
    members: dict[OpNode, None] = {}
    outer: dict[VarNode, None] = {}
    waiting = [grad.inputs["Loss_grad"][0]]
    while waiting:
        v = waiting.pop()
        maker = v.producer
        if v in own or maker is None or maker.rank < op.rank or maker in members:
            continue
        if v.type.shape == shape and is_candidate(maker):
            members[maker] = None
            waiting += maker.input_vars
        else:
            outer[v] = None
    return list(members), list(outer)
