"""The invariants of a Graph, checked after each pass. A pass that breaks one is wrong."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from minigraph.errors import MinigraphError, VerifyError

from .graph import Graph, OpNode, VarNode


def verify(graph: Graph, after: str = "construction", types: bool | Collection[OpNode | VarNode] = True) -> None:
    """Raise a VerifyError, naming the pass `after` which it happened, unless all of this holds:

    each version has one writer, first versions of fed and persistable variables none; every value
    that is read has one; ranks are a schedule, in-place updates included; edges and slots agree;
    slots and attributes fit the operator's definition and types are those it infers (of all operators,
    of none, or of those in `types`); fetched values exist; links point to operators of the graph.
    """
    typed = None if isinstance(types, bool) else types
    for v in graph.vars.values():
        _verify_var(graph, v, after)
    for op in graph.ops:
        _verify_op(graph, op, after, bool(types) if typed is None else op in typed)
    graph.changed.clear()


def verify_changes(graph: Graph, after: str) -> None:
    """As `verify`, but only of nodes that the Graph's own functions changed since the last check."""
    changed = list(graph.changed)
    graph.changed.clear()
    for node in changed:
        if isinstance(node, VarNode):
            if graph.vars.get((node.name, node.version)) is node:
                _verify_var(graph, node, after)
        elif node in graph:
            _verify_op(graph, node, after, types=True)


def _verify_var(graph: Graph, v: VarNode, after: str) -> None:
    writers = v.written_by
    if len(writers) > 1:
        raise VerifyError(f"after {after}: {v.name} has {len(writers)} writers: {list(writers)}")
    if not writers and not v.given and (v.read_by or v.pinned):
        raise VerifyError(f"after {after}: {v!r} is {v.pinned or 'read'} but no operator writes it")
    if v.version:
        earlier = graph.vars.get((v.name, v.version - 1))
        if earlier is None or earlier is not v.previous_version or earlier.next_version is not v:
            raise VerifyError(f"after {after}: {v!r} does not know the version before it")


def _verify_op(graph: Graph, op: OpNode, after: str, types: bool) -> None:
    problem, rank = graph.order_problem(op.rank, op.input_vars), op.rank
    for v in op.output_vars:
        earlier = v.previous_version
        for writer in earlier.written_by if earlier is not None else ():
            if writer.rank >= rank:
                problem = problem or f"{v.name} is written before its earlier version"
        for reader in v.read_by:
            if reader.rank <= rank:
                problem = problem or f"{v.name} is read before by {reader.type}"
    if not _agree(op.inputs, op.before):
        problem = problem or "edges and input slots differ"
    if not _agree(op.outputs, op.after):
        problem = problem or "edges and output slots differ"
    if op.forward is not None and op.forward not in graph:
        problem = problem or f"its forward operator {op.forward.label()} is gone"
    if types:
        problem = problem or _type_problem(op)
    if problem:
        raise VerifyError(f"after {after}: {problem}", call=op.call(), site=op.site)


def _agree(slots: dict[str, list[VarNode]], edges: Any) -> bool:
    """Whether the graph's edges on one side of an operator are the positions of its slots."""
    number = 0
    try:
        for v, positions in edges.items():
            for slot, i in positions:
                if slots[slot][i] is not v:
                    return False
            number += len(positions)
    except (KeyError, IndexError):
        return False
    return number == sum(map(len, slots.values()))  # no two edges have one position, so none is left out


def _type_problem(op: OpNode) -> str | None:
    """Which type does not fit the operator's definition, in words."""
    try:
        op.opdef.check_inputs(op.inputs)
        inferred = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
        for slot, vs in op.outputs.items():
            for v, t in zip(vs, inferred[slot], strict=True):
                if not v.type.accepts(t):
                    return f"output {slot}={v} is inferred as {t}"
    except (MinigraphError, KeyError, ValueError) as error:
        return error.fact if isinstance(error, MinigraphError) else str(error)
    return None
