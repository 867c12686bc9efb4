"""recompute_norms: what a norm gives is computed again for backward instead of kept.

    forward:  Y = norm(X);  layers read Y       backward: their gradients read Y, that of the norm reads X
    ->        Y = norm(X);  layers read Y       backward: Y' = norm(X);  their gradients read Y'

A norm is an operator with the trait `norm`. X must be kept anyway, for its own gradient. So of the two arrays one is
gone between forward and backward, for a kernel that reads one and writes the other. The copy computes from the same
numbers; a GPU may round its statistics as another kernel than forward's does. Refused where X is not kept, or Y is
fetched.
"""

from __future__ import annotations

from operator import attrgetter

from minigraph.ir.graph import Graph, OpNode
from minigraph.opdef import OPS

from .engine.log import Applied, PassReport
from .engine.redirect import require_temporary
from .engine.rule import GraphBuilder, Refused, refuse_unless

RULE = "NormAgain"
LAST = 1 << 62  # a rank behind all others of one place
_rank = attrgetter("rank")


def recompute_norms(graph: Graph, report: PassReport) -> int:
    """Apply the equation of this file to each norm of forward."""
    for op in graph.ops_of(op_type for op_type, opdef in OPS.items() if "norm" in opdef.traits):
        if op.role == "forward" and op.grads:
            try:
                report.apply(_again(graph, op, report.name))
            except Refused as no:
                report.refuse(RULE, op.label(), str(no), op.site)
    return len(report.applied)


def _again(graph: Graph, op: OpNode, rewriter: str) -> Applied:
    """Refuses with the graph unchanged."""
    y, x = op.outputs[op.opdef.output_names[0]][0], op.inputs[op.opdef.input_names[0]][0]
    require_temporary(y)
    later = [r for r in y.consumers if r.role == "backward" and r.reads_values_of(y)]
    refuse_unless(later, "backward does not read {}", y.name)
    first = later[0]
    kept = [r for r in x.consumers if r.role == "backward" and r.reads_values_of(x) and r.rank > first.rank]
    refuse_unless(kept or x.given, "{} is not kept for backward", x.name)
    before = max((r.rank for r in y.consumers if r.role == "forward"), default=op.rank)
    refuse_unless(before < first.rank, "{} is read between gradients", y.name)
    g, place = GraphBuilder(graph, first.rank, op, rewriter), first.rank
    g.forward = None
    graph.move_op(first, (*place, LAST))
    new = g.emit(op.type, *(op.inputs.get(slot, [None])[0] for slot in op.opdef.input_names), **op.attrs)[0]
    (copy,) = g.emitted
    copy.role, copy.number, copy.site = "backward", op.number, op.site
    for reader in later:
        for slot, i in list(y.read_by[reader]):
            graph.set_input(reader, slot, i, new)
    for v in copy.output_vars:
        slot = next(s for s, vs in op.outputs.items() if copy.outputs[s][0] is v)
        graph.rename_var(v, graph.fresh_name(f"{op.outputs[slot][0].name}.again"))
    return Applied(RULE, f"{new.name} before {first.label()}", (op.label(),), op.site, "backward")
