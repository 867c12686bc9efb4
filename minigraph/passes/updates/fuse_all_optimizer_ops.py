"""fuse_all_optimizer_ops: the update of all parameters is one operator.

    adamw(Param=a, ...), adamw(Param=b, ...), ...  ->  fused_adamw(Param=[a, b, ...], ...)

One kernel reads and writes every array once. Clipping by one factor and L2 decay, which stand
between gradients and updates, join it. The norms of gradients become one operator. Updates are not
grouped if they differ in type, data type, an attribute, learning rate or slots. Large ones that
need norms of their parameters, as lamb, are not grouped. An update is left
out if another operator reads or writes its parameter before the last update of the group.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.passes.engine.log import PassReport

from .optimizer_groups import SHARED, UpdateGroup, find_groups, join_norms, replaced

RULE = "FuseUpdates"
LITTLE = 1 << 20  # bytes of directions that are not counted


def fuse_all_optimizer_ops(graph: Graph, report: PassReport) -> int:
    """Norms first, then one operator for each group."""
    return _fuse_groups(graph, report, None)


def fuse_adamw(graph: Graph, report: PassReport) -> int:
    """Paddle's flag for updates of type adamw alone."""
    return _fuse_groups(graph, report, "adamw")


def _fuse_groups(graph: Graph, report: PassReport, only: str | None) -> int:
    joined = join_norms(graph, report)
    groups = [part for group in find_groups(graph, report, RULE, only) for part in _parts(group)]
    for group in groups:
        replaced(graph, group, [_fuse(graph, group, report.name)], report, RULE)
    return joined + len(groups)


def _parts(group: UpdateGroup) -> list[UpdateGroup]:
    """A group whose kernel keeps a direction for each element, until norms are known, in parts of two or more updates.

    None has more elements than the largest parameter, so directions take no more memory than those of single updates.
    """
    sizes = [v.type.size for v in group.column("Param")]
    largest = max(sizes)
    if "layerwise" not in group.ops[0].opdef.traits or sum(sizes) * 4 <= LITTLE:
        return [group]
    parts, room = list[list[int]](), 0
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        if sizes[i] > room:
            parts.append([])
            room = largest
        parts[-1].append(i)
        room -= sizes[i]
    return [
        UpdateGroup([group.ops[i] for i in part], [group.sources[i] for i in part], group.ops[part[-1]].rank)
        for part in map(sorted, parts) if len(part) > 1
    ]  # fmt: skip


def _fuse(graph: Graph, group: UpdateGroup, rewriter: str) -> OpNode:
    """Put the fused operator in, and take the single ones out."""
    first, last = group.ops[0], group.ops[-1]
    opdef = get_op(f"fused_{first.type}")
    inputs: dict[str, list[VarNode]] = {}
    for slot in opdef.input_names:
        if slot in first.inputs:
            inputs[slot] = list(first.inputs[slot]) if slot in SHARED else group.column(slot)
    if group.scale is not None:
        inputs["GradScale"] = [group.scale]
    outputs = {slot: group.results(slot) for slot in opdef.output_names if slot in first.outputs}
    attrs = opdef.bind_attrs({**first.attrs, "regularization_coeff": group.decay})
    fused = OpNode(
        opdef, inputs, outputs, attrs, rank=(*group.place, graph.ticket()), role=last.role, site=last.site,
        number=first.number, scope_name=last.scope_name, rewriter=rewriter,
    )  # fmt: skip
    for op in group.ops:
        graph.remove_op(op)
    return graph.add_op(fused)
