"""dead_code_elimination: a value without a reader is not computed.

    Out = f(X), Out is neither read, fetched nor persistable  ->  nothing

Saves whole branches: a metric that this run does not fetch, and values inside fusions that only
such a branch reads. Operators with side effects stay, and so does a `cond` or `while_loop` that holds
one. A random operator may go: random numbers are counted by operator, so those of other operators do
not change. Refused is a forward operator whose gradient is still computed, since rules recognise a
gradient by its forward operator.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.redirect import is_unread, take_out
from minigraph.program.blocks.held import acts

RULE = "DeadCode"


def dead_code_elimination(graph: Graph, report: PassReport) -> int:
    """Take out operators without readers; a walk from the end meets readers before their operands."""
    for op in reversed(graph.ops):
        if not is_unread(op) or acts(op):
            continue
        if op.grads:
            report.refuse(RULE, op.label(), f"{next(iter(op.grads)).label()} computes its gradient", op.site)
            continue
        take_out(graph, op)
        report.apply(Applied(RULE, "nothing", (op.label(),), op.site, op.role))
    report.applied.reverse()
    return len(report.applied)
