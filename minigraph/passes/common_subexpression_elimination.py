"""common_subexpression_elimination: a value that is computed already is not computed again.

    A = f(X), B = f(X)  ->  A = f(X), and the readers of B read A

Two operators are equal if type, attributes and versions of the operands are. The order of the
operands does not count where the operator is commutative. Random operators draw different numbers,
and operators with side effects are called twice on purpose: both are left alone.

Refused are A or B that is fetched, persistable or updated in place. So is an A of another part of
the program (forward, backward), since it would have to be kept until then. So are gradients of
different operators, since rules must find each gradient beside its forward operator.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from minigraph.ir.graph import Graph, OpNode
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.redirect import require_readable, require_temporary
from minigraph.passes.engine.rule import Refused, refuse_unless

RULE = "CommonSubexpression"
LEFT_ALONE = {"random", "side_effect", "optimizer"}


def common_subexpression_elimination(graph: Graph, report: PassReport) -> int:
    """In the order of the schedule, so that operands are merged before their readers are compared."""
    known: dict[Hashable, list[OpNode]] = {}
    first_of, compared = dict[Hashable, OpNode](), set[OpNode]()
    for op in list(graph.ops):
        if not op.outputs or not op.opdef.traits.isdisjoint(LEFT_ALONE):
            continue
        if (first := first_of.setdefault(_similar(op), op)) is op:
            continue
        if first not in compared:
            compared.add(first)
            known.setdefault(_key(first), []).append(first)
        same, refusals = known.setdefault(_key(op), []), []
        for first in same:
            try:
                report.apply(_merge(graph, first, op))
                break
            except Refused as no:
                refusals.append(str(no))
        else:
            same.append(op)
            if refusals:
                report.refuse(RULE, op.label(), refusals[0], op.site)
    return len(report.applied)


def _merge(graph: Graph, first: OpNode, again: OpNode) -> Applied:
    """Let everybody read the outputs of `first`; refuses with the graph unchanged."""
    refuse_unless(first.role == again.role, "{} is part of {}, keeping it would cost memory", first, first.role)
    refuse_unless(
        first.forward is again.forward and first.grad_slot == again.grad_slot,
        "{} is no gradient of the same operator", first,
    )  # fmt: skip
    refuse_unless(not again.grads or first.inputs == again.inputs, "{} has its operands in another order", first)
    pairs = list(zip(first.output_vars, again.output_vars, strict=True))
    for mine, other in pairs:
        refuse_unless(mine.next_version is None and not mine.persistable, "{} of {} changes later", mine.name, first)
        require_temporary(other)
        require_readable(graph, mine, other.consumers)
    entry = Applied(
        RULE, ", ".join(mine.name for mine, _ in pairs), (again.label(),), again.site, again.role
    )  # fmt: skip
    for grad in list(again.grads):
        graph.link(grad, first)
    graph.remove_op(again)
    for mine, other in pairs:
        graph.merge_var(other, mine)
    return entry


def _similar(op: OpNode) -> Hashable:
    """Equal for operators that compute the same, found in less time than `_key`; most have no similar one."""
    return op.type, frozenset(op.input_vars)


def _key(op: OpNode) -> Hashable:
    """Equal for operators that compute the same."""
    inputs: list[Hashable] = [(slot, *vs) for slot, vs in op.inputs.items()]
    if "commutative" in op.opdef.traits and op.attrs.get("axis", -1) == -1:
        inputs = [("", *vs) for vs in sorted(op.inputs.values(), key=lambda vs: [(v.name, v.version) for v in vs])]
    outputs = [(slot, len(vs)) for slot, vs in op.outputs.items()]
    return op.type, tuple(inputs), tuple(outputs), tuple(map(_exactly, op.attrs.values()))


def _exactly(value: Any) -> Hashable:
    """Distinguishes what == does not: 0.0 from -0.0, 1 from True; NaN is like NaN."""
    if isinstance(value, tuple):
        return tuple(map(_exactly, value))
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else value.hex()
    return type(value), value
