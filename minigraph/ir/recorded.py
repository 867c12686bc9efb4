"""RecordedGraph: a Graph that notes which operators are touched; for the history of a compilation.

    graph = to_graph(program, fetches, kind=RecordedGraph)
    graph.start()
    ... a rewrite ...
    graph.taken()      ->  {key of an operator: OpState now, None where it is gone}

An ordinary Graph knows nothing of this, so a compilation without a history does no work for it.
Operators of the program have their positions for keys, new ones the numbers after these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.errors import CallSite
from minigraph.opdef import OpDef
from minigraph.program import Operator, Program, Variable, copy_var
from minigraph.program.blocks.held import next_number, sub_programs
from minigraph.program.text.dump import dump_op
from minigraph.types import TensorType

from .graph import Graph, OpNode, Rank, VarNode


class NamedValue(NamedTuple):
    """A variable as an operator names it."""

    name: str
    type: TensorType
    persistable: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


Slots = dict[str, tuple[NamedValue, ...]]


class OpState(NamedTuple):
    """An operator as it was at one time; the fields mean what they mean in OpNode.

    forward   the key of the forward operator
    """

    opdef: OpDef
    inputs: Slots
    outputs: Slots
    attrs: dict[str, Any]
    rank: Rank
    role: str
    forward: int | None
    grad_slot: str | None
    site: CallSite | None
    number: int
    scope_name: str
    rewriter: str | None

    @property
    def type(self) -> str:
        return self.opdef.type

    def label(self) -> str:
        """`matmul t0`: the type and the first output."""
        return next((f"{self.type} {v.name}" for vs in self.outputs.values() for v in vs), self.type)

    def __str__(self) -> str:
        return dump_op(self)  # pyright: ignore[reportArgumentType]: it has what is read of an Operator


Touched = dict[int, OpState | None]  # key -> what the operator is now; None where it is gone


class RecordedGraph(Graph):
    """A Graph that can say what has changed since it was last asked."""

    def __init__(self, name: str = "graph", fetched: Iterable[str] = (), declared: Iterable[str] = ()) -> None:
        super().__init__(name, fetched, declared)
        self.keys: dict[OpNode, int] = {}
        self.touched: dict[OpNode, None] = {}
        self.values = _Values()

    def start(self) -> None:
        """From now on changes count; the graph is that of the program."""
        self.keys = {op: key for key, op in enumerate(self.ops)}
        self.touched.clear()

    def taken(self) -> Touched:
        """What was touched since the last call; some of it may be as it was."""
        touched = dict.fromkeys(self.touched)
        for op in self.touched:
            touched.update(op.grads)
        self.touched.clear()
        changes: Touched = {}
        for op in touched:
            if op in self:
                changes[self._key(op)] = self._state(op)
            elif op in self.keys:
                changes[self.keys[op]] = None
        return changes

    def _state(self, op: OpNode) -> OpState:
        forward = self._key(op.forward) if op.forward is not None else None
        value = self.values.__getitem__
        inputs = {slot: tuple(map(value, vs)) for slot, vs in op.inputs.items()}
        outputs = {slot: tuple(map(value, vs)) for slot, vs in op.outputs.items()}
        return OpState(
            op.opdef, inputs, outputs, op.attrs, op.rank, op.role, forward, op.grad_slot, op.site, op.number,
            op.scope_name, op.rewriter,
        )  # fmt: skip

    def _key(self, op: OpNode) -> int:
        return self.keys.setdefault(op, len(self.keys))

    # what passes do to a Graph

    def put(self, op: OpNode) -> None:
        super().put(op)
        self.touched[op] = None

    def drafted(self, op: OpNode) -> None:
        self.touched[op] = None

    def remove_op(self, op: OpNode) -> None:
        self.touched[op] = None
        super().remove_op(op)

    def link(self, op: OpNode, forward: OpNode | None) -> None:
        self.touched[op] = None
        super().link(op, forward)

    def move_op(self, op: OpNode, rank: Rank) -> None:
        self.touched[op] = None
        super().move_op(op, rank)

    def rename_var(self, v: VarNode, name: str) -> None:
        self._touch_users(v)
        self.values.pop(v, None)
        super().rename_var(v, name)

    def merge_var(self, v: VarNode, into: VarNode) -> None:
        self._touch_users(v)
        super().merge_var(v, into)

    def set_input(self, op: OpNode, slot: str, index: int, v: VarNode) -> None:
        self.touched[op] = None
        super().set_input(op, slot, index, v)

    def set_output(self, op: OpNode, slot: str, index: int, v: VarNode) -> None:
        self.touched[op] = None
        super().set_output(op, slot, index, v)

    def drop_output(self, op: OpNode, slot: str) -> None:
        self.touched[op] = None
        super().drop_output(op, slot)

    def _touch_users(self, v: VarNode) -> None:
        self.touched.update(dict.fromkeys(v.users))


def is_same(a: OpState | None, b: OpState | None) -> bool:
    """Whether nothing has changed. Attributes are compared as text: to NumPy None is float64."""
    if a is None or b is None:
        return a is b
    return a[:3] == b[:3] and a[4:] == b[4:] and (a.attrs is b.attrs or repr(a.attrs) == repr(b.attrs))


def states_of(ops: Sequence[Operator]) -> dict[int, OpState]:
    """{key: state} of a program's operators; keys are those that a RecordedGraph of the program gives."""
    keys = {id(op): key for key, op in enumerate(ops)}

    def values(slots: Mapping[str, Sequence[Variable]]) -> Slots:
        return {slot: tuple(NamedValue(v.name, v.type, v.persistable) for v in vs) for slot, vs in slots.items()}

    return {
        key: OpState(
            op.opdef, values(op.inputs), values(op.outputs), dict(op.attrs), (key,), op.role,
            keys.get(id(op.forward)), op.grad_slot, op.site, op.number, op.scope_name, None,
        )
        for key, op in enumerate(ops)
    }  # fmt: skip


class _Values(dict[VarNode, NamedValue]):
    """{variable of the graph: as operators name it}, made when it is first asked for."""

    def __missing__(self, v: VarNode) -> NamedValue:
        value = self[v] = NamedValue(v.name, v.type, v.persistable)
        return value


def program_of(states: Mapping[int, OpState], source: Program) -> Program:
    """The Program of operators that a recorded graph of `source` had at one time."""
    program = source.empty()
    program.origin, program.random_seed, program.fetched = source.origin, source.random_seed, source.fetched
    program.before = source
    block = program.global_block()
    ordered = sorted(states.items(), key=lambda item: item[1].rank)
    used = {v.name: v.type for _, op in ordered for vs in (*op.inputs.values(), *op.outputs.values()) for v in vs}
    variables = {
        v.name: copy_var(v, block) for v in source.vars.values()
        if v.persistable or v.is_data or used.get(v.name) == v.type
    }  # fmt: skip

    def variable(v: NamedValue) -> Variable:
        if v.name not in variables:
            variables[v.name] = Variable(block, v.name, v.type)
        return variables[v.name]

    def named(slots: Mapping[str, Sequence[NamedValue]]) -> dict[str, list[Variable]]:
        return {slot: list(map(variable, vs)) for slot, vs in slots.items()}

    operators: dict[int | None, Operator] = {}
    for key, op in ordered:
        operators[key] = Operator(
            block, op.opdef, named(op.inputs), named(op.outputs), dict(op.attrs), role=op.role,
            forward=operators.get(op.forward), grad_slot=op.grad_slot, site=op.site, number=op.number,
            scope_name=op.scope_name,
        )  # fmt: skip
    for op, name, sub in sub_programs(operators.values()):
        op.attrs[name] = sub.clone()
        op.attrs[name].parent = program
    block.fill(variables, operators.values())
    program.lr_schedulers = [(block.vars[v.name], s) for v, s in source.lr_schedulers]
    program.numbered = next_number(block.ops)
    return program
