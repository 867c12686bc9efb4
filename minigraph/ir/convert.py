"""Program -> Graph and back. Both ways keep names, types, links, roles and the user's lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minigraph.program import Block, Operator, Program, Variable, copy_var
from minigraph.program.blocks.held import next_number, sub_programs
from minigraph.program.changes import FixedSlots, SlotVars
from minigraph.program.variable import RemovedVariable, new_variable
from minigraph.types import TensorType

from .graph import Graph, OpNode, VarNode


def to_graph(
    program: Program, fetches: Iterable[str] = (), ops: Iterable[Operator] | None = None, kind: type[Graph] = Graph
) -> Graph:
    """The Graph of a program, or of some of its operators; an operator's rank is its position."""
    graph = kind(program.name, (*fetches, *program.fetched), program.vars)
    nodes: dict[int, OpNode] = {}
    newest: dict[Variable, VarNode] = {}

    def given(v: Variable) -> VarNode:
        """What a variable holds before this run: version 0."""
        node = newest[v] = VarNode(graph, v._name, v.type, v)
        node.given = True
        return node

    for position, op in enumerate(program.ops if ops is None else ops):
        inputs: dict[str, list[VarNode]] = {}
        outputs: dict[str, list[VarNode]] = {}
        for slot, vs in op.inputs.items():
            inputs[slot] = read = []
            for v in vs:
                read.append(newest.get(v) or given(v))
        for slot, vs in op.outputs.items():
            outputs[slot] = written = []
            for v in vs:
                before = newest.get(v) or (given(v) if v._persistable else None)
                node = newest[v] = VarNode(graph, v._name, v.type, v, before)
                written.append(node)
        made = nodes[id(op)] = OpNode(
            op.opdef, inputs, outputs, op.attrs.copy(), (position,), op.role, nodes.get(id(op.forward)),
            op.grad_slot, op.site, op.number, op.scope_name,
        )  # fmt: skip
        graph.put(made)
    graph.newest = {node.name: node for node in newest.values()}
    return graph


def to_program(graph: Graph, source: Program) -> Program:
    """The Program of a graph: the variables of `source` that still occur, parameters and data all, and new ones."""
    program = source.empty()
    program.origin, program.random_seed, program.fetched = source.origin, source.random_seed, source.fetched
    program.before = source
    block = program.global_block()
    used: dict[str, TensorType] = {}
    for name, v in graph.newest.items():
        while v is not None and v.producer is None and not v.read_by:
            v = v.previous_version
        if v is not None:
            used[name] = v.type
    variables: dict[str, Variable] = {}
    for name, v in list(source.vars.items()):  # to which another thread may add
        type = used.get(name)
        if type is v.type or v._persistable or v.is_data or type == v.type or name in source.fetched:
            variables[name] = copy_var(v, block)  # else a pass has given the name of what is gone to another value

    operators: dict[OpNode, Operator] = {}
    for op in graph.ops:
        for vs in op.outputs.values():
            for v in vs:
                if v.name not in variables:
                    variables[v.name] = new_variable(block, v.name, v.type)
        operators[op] = _operator(op, block, variables, operators)
    for op, name, sub in sub_programs(operators.values()):
        op.attrs[name] = sub if sub.parent is None else sub.clone()
        op.attrs[name].parent = program
    block.fill(variables, operators.values())
    program.lr_schedulers = [(block.vars[v.name], s) for v, s in source.lr_schedulers]
    program.numbered = next_number(block.ops)
    return program


def into_program(graph: Graph, program: Program, known: Mapping[OpNode, Operator]) -> None:
    """Let `program` be what the graph is: its own Variables where they still occur, and its own Operators.

    known   the Operators from which nodes of the graph were made
    Variables that no operator uses any more, though one did, leave the program; parameters and data stay.
    Those that a pass gave another type have it afterwards.
    """
    block = program.global_block()
    new: dict[str, Variable] = {}
    used: set[str] = set()

    def variable(node: VarNode) -> Variable:
        used.add(node.name)
        v = node.source if node.source is not None else new.get(node.name)
        if v is None:
            op = node.producer
            v = new[node.name] = Variable(
                block, node.name, node.type, stop_gradient=op is None or not op.opdef.differentiable,
                site=op.site if op is not None else None,
            )  # fmt: skip
        elif v.type != node.type:
            v.type = node.type
        return v

    operators: dict[OpNode, Operator] = {}
    for node in graph.ops:
        variables = {v.name: variable(v) for v in (*node.input_vars, *node.output_vars)}
        op, before = _operator(node, block, variables, operators), known.get(node)
        same = before is not None and before.forward is op.forward and _is_same_call(op, before)
        operators[node] = before if before is not None and same else op
    differentiated = {id(v) for op in program.ops if op.opdef.differentiable for v in op.output_vars}
    gone = {v.name: v for op in program.ops for v in (*op.input_vars, *op.output_vars)}
    program.ops[:] = operators.values()
    differentiable = {id(v) for op in program.ops if op.opdef.differentiable for v in op.output_vars}
    for name, v in gone.items():
        if name not in used and not v.persistable and not v.is_data:
            dict.pop(block.vars, name)
            v.__class__ = RemovedVariable
        elif id(v) in differentiated and id(v) not in differentiable:
            v.stop_gradient = True  # a constant by now; with False it would ask for a gradient of its own
    block.vars.update(new)
    program.notes = []


def _operator(
    node: OpNode, block: Block, variables: Mapping[str, Variable], known: Mapping[OpNode, Operator]
) -> Operator:
    """The Operator of a node; `variables` are by their names, and `known` has the Operators before it."""
    attrs = node.attrs if "control" not in node.opdef.traits else dict(node.attrs)  # whose blocks will be others
    forward = known.get(node.forward) if node.forward is not None else None
    return Operator(
        block, node.opdef, _slots(node.inputs, variables), _slots(node.outputs, variables), attrs, node.role, forward,
        node.grad_slot, node.site, node.number, node.scope_name,
    )  # fmt: skip


def _slots(nodes: Mapping[str, list[VarNode]], variables: Mapping[str, Variable]) -> FixedSlots:
    slots: dict[str, SlotVars] = {}
    for slot, vs in nodes.items():
        slots[slot] = SlotVars((variables[vs[0].name],) if len(vs) == 1 else [variables[v.name] for v in vs])
    return FixedSlots(slots)


def _is_same_call(new: Operator, old: Operator) -> bool:
    """Whether both read, write and mean the same; `new` was made of the node of `old`."""
    return _facts(new) == _facts(old)


def _facts(op: Operator) -> tuple[Any, ...]:
    slots = [{slot: [id(v) for v in vs] for slot, vs in each.items()} for each in (op.inputs, op.outputs)]
    return op.type, slots, repr(dict(op.attrs)), op.number
