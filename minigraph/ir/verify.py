"""The invariants of a Graph, checked after each pass. A pass that breaks one is wrong."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

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
    read, fitting = _verify_vars(graph, graph.variables, after), set[Hashable]()
    for op in graph.ops:
        _verify_op(graph, op, after)
        if op in typed if typed is not None else types:
            _verify_types(op, after, fitting)
        for vs in op.inputs.values():
            read -= len(vs)
    if read:  # each edge is that of a slot, but not the other way round
        for op in graph.ops:
            _verify_edges(op, after)
    graph.changed.clear()


def verify_changes(graph: Graph, after: str) -> None:
    """As `verify`, but only of nodes that the Graph's own functions changed since the last check."""
    changed = list(graph.changed)
    graph.changed.clear()
    for node in changed:
        if isinstance(node, VarNode):
            if graph.holds(node):
                _verify_vars(graph, [node], after)
        elif node in graph:
            _verify_op(graph, node, after)
            _verify_readers(node, after)
            _verify_edges(node, after)
            _verify_types(node, after, set())


def _verify_vars(graph: Graph, variables: Iterable[VarNode], after: str) -> int:
    """How many edges lead from these variables to the slots of their readers."""
    number, there = 0, graph.nodes
    for v in variables:
        if v.producer is None and not v.given and (v.read_by or v.pinned):
            raise VerifyError(f"after {after}: {v!r} is {v.pinned or 'read'} but no operator writes it")
        if v.version:
            earlier = v.previous_version
            follows = earlier is not None and earlier.next_version is v
            if earlier is None or not follows or (earlier.name, earlier.version) != (v.name, v.version - 1):
                raise VerifyError(f"after {after}: {v!r} does not know the version before it")
        for reader, positions in v.read_by.items():
            if reader not in there:
                raise VerifyError(f"after {after}: {v!r} is read by {reader}, which is gone")
            for slot, i in positions:
                vs = reader.inputs.get(slot, ())
                if i >= len(vs) or vs[i] is not v:
                    call = reader.call()
                    raise VerifyError(f"after {after}: edges and input slots differ", call=call, site=reader.site)
            number += len(positions)
    return number


def _verify_op(graph: Graph, op: OpNode, after: str) -> None:
    rank = op.rank
    problem = graph.order_problem(rank, op.input_vars)
    for vs in op.outputs.values():
        for v in vs:
            if v.producer is not op:
                problem = problem or _writers(graph, v)
            earlier = v.previous_version
            if earlier is not None and earlier.producer is not None and earlier.producer.rank >= rank:
                problem = problem or f"{v.name} is written before its earlier version"
    if op.forward is not None and op.forward not in graph.nodes:
        problem = problem or f"its forward operator {op.forward.label()} is gone"
    _raise(problem, op, after)


def _verify_readers(op: OpNode, after: str) -> None:
    """Those that read what an operator writes stand behind it; where all are verified each says so of what it reads."""
    for v in op.output_vars:
        for reader in v.read_by:
            if reader.rank <= op.rank:
                _raise(f"{v.name} is read before by {reader.type}", op, after)


def _verify_edges(op: OpNode, after: str) -> None:
    places = ((slot, i, v) for slot, vs in op.inputs.items() for i, v in enumerate(vs))
    if any((slot, i) not in v.read_by.get(op, ()) for slot, i, v in places):
        _raise("edges and input slots differ", op, after)


def _verify_types(op: OpNode, after: str, fitting: set[Hashable]) -> None:
    """Operators that cannot be told apart fit alike: `fitting` has what did, whose types the graph keeps alive."""
    facts: list[Hashable] = [op.opdef, len(op.inputs), *op.attrs.items()]
    for slots in (op.inputs, op.outputs):
        for slot, vs in slots.items():
            facts.append(slot)
            for v in vs:
                facts.append(id(v.type))
    key = tuple(facts)
    if key not in fitting:
        _raise(_type_problem(op), op, after)
        fitting.add(key)


def _raise(problem: str | None, op: OpNode, after: str) -> None:
    if problem is not None:
        raise VerifyError(f"after {after}: {problem}", call=op.call(), site=op.site)


def _writers(graph: Graph, v: VarNode) -> str:
    """What is wrong with a value that is in the slots of an operator and not written by it."""
    writers = [op for op in graph.ops if any(x is v for x in op.output_vars)]
    return f"{v.name} has {len(writers)} writers: {writers}" if len(writers) > 1 else "edges and output slots differ"


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
