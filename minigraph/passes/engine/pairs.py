"""Two operators of one kind in a row as one, or as none: the engine of redundant casts and transposes.

    second(first(X))  ->  X                where both together change nothing
    second(first(X))  ->  second'(X)       where one operator does what both do
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.ir.graph import Graph, OpNode

from .log import Applied, PassReport
from .redirect import is_unread, read_instead, require_readable, take_out, unlink
from .rule import Refused

Combine = Callable[[OpNode, OpNode], dict[str, Any]]
Identity = Callable[[OpNode, dict[str, Any]], bool]


def combine_pairs(
    graph: Graph, report: PassReport, op_type: str, rule: str, combine: Combine, is_identity: Identity
) -> int:
    """Replace pairs of operators of `op_type`, with one input X and one output Out, from front to back.

    combine      attributes of the operator that does what (first, second) do; may refuse
    is_identity  whether first, alone or with such attributes, gives back its X
    """
    for op in graph.ops_of([op_type]):
        try:
            entry = _combine(graph, op, rule, combine, is_identity, report.name)
        except Refused as no:
            report.refuse(rule, op.label(), str(no), op.site)
            continue
        if entry is not None:
            report.apply(entry)
    return len(report.applied)


def _combine(
    graph: Graph, op: OpNode, rule: str, combine: Combine, is_identity: Identity, rewriter: str
) -> Applied | None:
    """The rewrite with `op` as the second operator, or alone where it does nothing; None where neither fits."""
    out, before = op.outputs["Out"][0], op.inputs["X"][0].producer
    first = before if before is not None and before.opdef is op.opdef else None
    attrs = combine(first, op) if first is not None else op.attrs
    start = first or op
    x, old = start.inputs["X"][0], tuple(o.label() for o in (first, op) if o is not None)
    if is_identity(start, attrs):
        read_instead(graph, out, x)
        take_out(graph, op)
        if first is not None and is_unread(first):
            take_out(graph, first)
        return Applied(rule, x.name, old, op.site, op.role)
    if first is None:
        return None
    require_readable(graph, x, [op])
    graph.set_input(op, "X", 0, x)
    op.attrs, op.rewriter = attrs, rewriter
    if op.forward is not None and first.forward is not op.forward:
        unlink(graph, op)  # it reads another gradient than its forward operator's
    if is_unread(first):
        _hand_over_gradient(graph, first, op)
        take_out(graph, first)
    else:
        for grad in list(op.grads):
            unlink(graph, grad)
    return Applied(rule, f"{out.name} = {op.type}", old, op.site, op.role)


def _hand_over_gradient(graph: Graph, first: OpNode, op: OpNode) -> None:
    """Gradients of both in a row become the gradient of the one; others belong to no operator then."""
    between = {v for grad in op.grads for v in grad.output_vars}
    in_a_row = first.grads and all(v in between for grad in first.grads for v in grad.input_vars)
    for grad in list(op.grads):
        if in_a_row:
            grad.grad_slot = None  # a value on the way
        else:
            unlink(graph, grad)
    for grad in list(first.grads):
        if in_a_row:
            graph.link(grad, op)
