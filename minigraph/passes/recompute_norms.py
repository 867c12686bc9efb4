"""recompute_norms: what a norm gives is computed again for backward instead of kept.

    forward:   Y, Mean, Variance = norm(X)           layers read Y
    backward:  DX, DY = layer's gradient(D, Y)       dX = norm's gradient(X, Mean, Variance, DX)
    ->         DX = layer's gradient(D)
               Y' = norm again(X, Mean, Variance)    dX = norm's gradient(X, Mean, Variance, DX)
               DY = layer's gradient(D, Y')

X must be kept anyway, for the norm's own gradient. So of the two arrays one is gone between forward and backward.
fuse_elementwise joins Y' and dX, which read the same: one more array is written, and nothing more is read. For that the
layer's gradient is cut in two, what the norm's gradient waits for and what reads Y; on a GPU these are two calls
anyway. Layers may also read a cast of Y. A norm is an operator with the trait `norm`.

Refused where a gradient that reads Y cannot be cut so or cannot wait, where X is not kept, where Y is fetched, and
together with recompute, which computes more than this again.
"""

from __future__ import annotations

from operator import attrgetter

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import OPS
from minigraph.program.variable import AGAIN_SUFFIX

from .engine.log import Applied, PassReport
from .engine.redirect import require_temporary
from .engine.rule import GraphBuilder, Refused, refuse_unless

RULE = "NormAgain"
LAST = 1 << 62  # a rank behind all others of one place
_rank = attrgetter("rank")


def recompute_norms(graph: Graph, report: PassReport, recompute: bool = False) -> int:
    """Apply the equation of this file to each norm of forward."""
    for op in graph.ops_of(op_type for op_type, opdef in OPS.items() if "norm" in opdef.traits):
        if op.role == "forward" and op.grads:
            try:
                refuse_unless(not recompute, "recompute computes {} again anyway", op)
                report.apply(_again(graph, op, report.name))
            except Refused as no:
                report.refuse(RULE, op.label(), str(no), op.site)
    return len(report.applied)


def _again(graph: Graph, op: OpNode, rewriter: str) -> Applied:
    """Refuses with the graph unchanged."""
    y, cast = _kept(op)
    later = [r for r in y.consumers if r.role == "backward" and r.reads_values_of(y)]
    refuse_unless(later, "backward does not read {}", y.name)
    grad = _gradient(op)
    place = max(v.producer.rank for v in grad.input_vars if v.producer is not None)  # behind all that it reads
    needed = _made_for(grad, later[0].rank)
    parts = [(reader, _waiting(reader, y, needed)) for reader in later]
    behind = _behind([v for reader, slots in parts for slot in slots for v in reader.outputs[slot]], place, needed)
    for waiting in (*later, *behind):
        problem = graph.order_problem((*place, LAST), waiting.input_vars)
        refuse_unless(problem is None, "{} cannot wait for {}: {}", waiting, grad, problem)
    g = GraphBuilder(graph, place, grad, rewriter)
    try:
        new = g.emit(f"{op.type}_again", **_given(op), **op.attrs)
    except Refused:  # something that it reads is updated in place before
        g.undo()
        raise
    if cast is not None:
        new = g.emit("cast", new, **cast.attrs)
    for own, kept in zip(g.emitted, (op, cast or op), strict=False):
        own.number = op.number
        (v,) = own.output_vars
        graph.rename_var(v, graph.fresh_name(f"{next(kept.output_vars).name}{AGAIN_SUFFIX}"))
    for reader, slots in parts:
        _cut(graph, reader, slots, (*place, LAST, graph.ticket()), y, new)
    for waiting in behind:
        graph.move_op(waiting, (*place, LAST, graph.ticket()))
    return Applied(RULE, f"{new.name} beside {grad.label()}", (op.label(),), op.site, "backward")


def _kept(op: OpNode) -> tuple[VarNode, OpNode | None]:
    """What is kept of a norm's result: the result, or what a cast makes of it, which alone reads it; and that cast."""
    y = op.outputs[op.opdef.output_names[0]][0]
    require_temporary(y)
    readers = [r for r in y.consumers if r.reads_values_of(y)]
    if len(readers) != 1 or readers[0].type != "cast":
        return y, None
    (v,) = readers[0].output_vars
    require_temporary(v)
    return v, readers[0]


def _gradient(op: OpNode) -> OpNode:
    """The one operator that computes the gradient of a norm from its input and its statistics."""
    grads = [grad for grad in op.grads if grad.type == f"{op.type}_grad"]
    refuse_unless(len(grads) == 1, "{} has {} gradients", op, len(grads))
    x = op.inputs[op.opdef.input_names[0]][0]
    refuse_unless(grads[0].reads_values_of(x), "{} is not kept for backward", x.name)
    return grads[0]


def _given(op: OpNode) -> dict[str, VarNode]:
    """What the norm is computed from again: its inputs, and its outputs but the first."""
    outputs = {slot: op.outputs.get(slot) for slot in op.opdef.output_names[1:]}
    refuse_unless(all(outputs.values()), "{} does not give its statistics", op)
    return {slot: vs[0] for slot, vs in (*op.inputs.items(), *outputs.items()) if vs}


def _made_for(grad: OpNode, first: Rank) -> set[VarNode]:
    """The values that the norm's gradient waits for, as far back as operators at the rank `first`."""
    found, waiting = set[VarNode](), [*grad.input_vars]
    while waiting:
        v = waiting.pop()
        if v not in found and v.producer is not None and v.producer.rank >= first:
            found.add(v)
            waiting += v.producer.input_vars
    return found


def _waiting(reader: OpNode, y: VarNode, needed: set[VarNode]) -> list[str]:
    """The outputs of `reader` that can wait until the norm's gradient has what it reads; they alone read `y`."""
    waiting = [slot for slot, vs in reader.outputs.items() if needed.isdisjoint(vs)]
    unread = reader.opdef.unread([slot for slot in reader.outputs if slot not in waiting])
    refuse_unless(
        waiting and (len(waiting) == len(reader.outputs) or unread.issuperset(slot for slot, _ in y.read_by[reader])),
        "{} reads {} for what the norm's gradient waits for", reader, y.name,
    )  # fmt: skip
    return waiting


def _behind(late: list[VarNode], place: Rank, needed: set[VarNode]) -> list[OpNode]:
    """The operators up to `place` that read these values, or what such operators write: they wait, too."""
    found, values = dict[OpNode, None](), [*late]
    while values:
        v = values.pop()
        refuse_unless(v not in needed and v.next_version is None, "{} cannot wait", v.name)
        readers = [c for c in v.consumers if c.rank <= place and c not in found]
        found.update(dict.fromkeys(readers))
        values += [w for c in readers for w in c.output_vars]
    return sorted(found, key=_rank)


def _cut(graph: Graph, reader: OpNode, slots: list[str], rank: Rank, y: VarNode, new: VarNode) -> None:
    """Let an operator of its own, at `rank`, compute these outputs of `reader` from `new` instead of `y`."""
    outputs = {slot: [*reader.outputs[slot]] for slot in slots}
    inputs = {slot: [new if v is y else v for v in vs] for slot, vs in reader.inputs.items()}
    if len(slots) == len(reader.outputs):
        graph.move_op(reader, rank)
        for slot, i in list(y.read_by[reader]):
            graph.set_input(reader, slot, i, new)
        return
    for slot in slots:
        graph.drop_output(reader, slot)
    graph.add_op(
        OpNode(
            reader.opdef, inputs, outputs, dict(reader.attrs), rank=rank, role=reader.role, forward=reader.forward,
            site=reader.site, number=reader.number, scope_name=reader.scope_name, rewriter=reader.rewriter,
        )
    )  # fmt: skip
