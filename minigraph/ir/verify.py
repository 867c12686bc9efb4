"""The invariants of a Graph, checked after each pass: what breaks one is a defect of that pass."""

from __future__ import annotations

from ..errors import MinigraphError, VerifyError
from .graph import Graph, OpNode, VarNode


def verify(graph: Graph, after: str = "construction") -> None:
    """Raise a VerifyError, naming the pass `after` which it happened, unless all of this holds:

    each version has one writer, first versions of fed and persistable variables none; every value
    that is read has one; ranks are a schedule, in-place updates included; edges and slots agree;
    slots and attributes fit the operator's definition and types are those it infers; fetched
    values exist; links point to operators of the graph.
    """
    for v in graph.vars.values():
        _verify_var(graph, v, after)
    for op in graph.ops:
        _verify_op(graph, op, after)


def _verify_var(graph: Graph, v: VarNode, after: str) -> None:
    writers = list(graph.nx.pred[v])
    if len(writers) > 1:
        raise VerifyError(f"after {after}: {v.name} has {len(writers)} writers: {writers}")
    if not writers and not v.given and (graph.nx.succ[v] or v.pinned):
        raise VerifyError(f"after {after}: {v!r} is {v.pinned or 'read'} but nobody writes it")


def _verify_op(graph: Graph, op: OpNode, after: str) -> None:
    problem = graph.order_problem(op.rank, op.input_vars)
    for v in op.output_vars:
        before = graph.vars.get((v.name, v.version - 1))
        if before is not None and before.producer is not None and before.producer.rank >= op.rank:
            problem = problem or f"{v.name} is written before its earlier version"
        problem = problem or next(
            (f"{v.name} is read before by {c.type}" for c in v.consumers if c.rank <= op.rank), None
        )
    reads = {(v, key) for v, _, key in graph.nx.in_edges(op, keys=True)}
    if reads != _places(op.inputs):
        problem = problem or "edges and input slots differ"
    writes = {(v, key) for _, v, key in graph.nx.out_edges(op, keys=True)}
    if writes != _places(op.outputs):
        problem = problem or "edges and output slots differ"
    if op.forward is not None and op.forward not in graph:
        problem = problem or f"its forward operator {op.forward.label()} is gone"
    try:
        op.opdef.check_inputs(op.inputs)
        inferred = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
        for slot, vs in op.outputs.items():
            for v, t in zip(vs, inferred[slot], strict=True):
                if not v.type.accepts(t):
                    problem = problem or f"output {slot}={v} is inferred as {t}"
    except (MinigraphError, KeyError, ValueError) as error:
        problem = problem or (error.fact if isinstance(error, MinigraphError) else str(error))
    if problem:
        raise VerifyError(f"after {after}: {problem}", call=op.call(), site=op.site)


def _places(slots: dict[str, list[VarNode]]) -> set[tuple[VarNode, tuple[str, int]]]:
    """(variable, key of its edge) for all positions of an operator's inputs or outputs."""
    return {(v, (slot, i)) for slot, vs in slots.items() for i, v in enumerate(vs)}
