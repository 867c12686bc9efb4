"""Program -> Graph and back. Both ways keep names, types, links, roles and the user's lines."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.program import Operator, Program, Variable, copy_var

from .graph import Graph, OpNode, VarNode


def to_graph(program: Program, fetches: Iterable[str] = (), ops: Iterable[Operator] | None = None) -> Graph:
    """The Graph of a program, or of some of its operators; an operator's rank is its position."""
    graph = Graph(program.name, (*fetches, *program.fetched), program.vars)
    current: dict[str, VarNode] = {}
    nodes: dict[int, OpNode] = {}

    def read(v: Variable) -> VarNode:
        name = v.name
        node = current.get(name)
        if node is None:
            node = current[name] = graph.add_var(name, v.type, v)
            node.given = True
        return node

    def write(v: Variable) -> VarNode:
        if v.persistable:
            read(v)  # what it held before this run is version 0
        name = v.name
        node = current[name] = graph.add_var(name, v.type, v)
        return node

    for position, op in enumerate(program.ops if ops is None else ops):
        inputs = {slot: list(map(read, vs)) for slot, vs in op.inputs.items()}
        outputs = {slot: list(map(write, vs)) for slot, vs in op.outputs.items()}
        nodes[id(op)] = graph.add_op(
            OpNode(
                op.opdef, inputs, outputs, dict(op.attrs), rank=(position,), role=op.role,
                forward=nodes.get(id(op.forward)), grad_slot=op.grad_slot, site=op.site,
                number=op.number, scope_name=op.scope_name,
            )
        )  # fmt: skip
    graph.changed.clear()  # by passes, nothing yet
    return graph


def to_program(graph: Graph, source: Program) -> Program:
    """The Program of a graph: the variables of `source` that still occur, parameters and data all, and new ones."""
    program = Program(source.name)
    program.origin, program.random_seed, program.fetched = source.origin, source.random_seed, source.fetched
    program.before = source
    block = program.global_block()
    used = {v.name: v.type for v in graph.vars.values() if v.read_by or v.written_by}
    for v in source.vars.values():
        kept = v.persistable or v.is_data
        if kept or used.get(v.name) == v.type:  # else a pass gave the name of a removed value to another one
            block.vars[v.name] = copy_var(v, block)
    operators: dict[OpNode, Operator] = {}

    def variable(node: VarNode) -> Variable:
        found = block.vars.get(node.name)
        if found is None:
            found = block.vars[node.name] = Variable(block, node.name, node.type)
        return found

    for op in graph.ops:
        operators[op] = new = Operator(
            block, op.opdef,
            {slot: list(map(variable, vs)) for slot, vs in op.inputs.items()},
            {slot: list(map(variable, vs)) for slot, vs in op.outputs.items()},
            dict(op.attrs), role=op.role, forward=operators.get(op.forward) if op.forward else None,
            grad_slot=op.grad_slot, site=op.site, number=op.number, scope_name=op.scope_name,
        )  # fmt: skip
        block.ops.append(new)
    program.lr_schedulers = [(block.vars[v.name], s) for v, s in source.lr_schedulers]
    program.version = len(block.ops)
    program.numbered = max((op.number for op in block.ops), default=-1) + 1
    return program
