"""Model -> Program: each node becomes the operator that the exporter writes so.

A function of minigraph's is taken for its operator where its nodes are those that the exporter would write; a function
that says something else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError, ProgramError, nearest, require, shortened
from minigraph.opdef import OPS, OpDef
from minigraph.program import Program, Variable
from minigraph.program.block import MAX_NAME
from minigraph.program.scope import Scope
from minigraph.types import FLOATS, TensorType

from . import attributes, composed
from .model import DOMAIN, Function, Model, Node
from .operators import write_operator
from .standard import READ, OperatorCall

assert composed  # it adds to READ


def program_of(model: Model, scope: Scope) -> Program:
    """The Program of a Model; its weights go into the scope when all of it is known.

    Errors: ProgramError with the first node that is not known.
    """
    loader = Loader(model)
    for number, node in enumerate(model.nodes):
        try:
            loader.node(node)
        except MinigraphError as problem:
            where = f"node {number}, {shortened(node.name) or 'no name'}: {node.domain or 'ai.onnx'}::{node.type}"
            problem.fact, problem.call = f"{where}: {problem.fact}", None
            raise
    program = loader.program
    for name in model.outputs:
        require(name in loader.names or name in loader.arrays, f"output {name} has no value", ProgramError)
    program.fetched = tuple(loader.variable(name).name for name in model.outputs)
    program.set_state_dict({v.name: loader.kept[v.name] for v in program.list_vars() if v.persistable}, scope)
    return program


class Loader:
    """A Program that grows node by node.

    names   the variable of each value;  arrays: values that the file knows;  kept: of weights, by variable
    """

    def __init__(self, model: Model) -> None:
        self.model, self.arrays = model, dict(model.initializers)
        self.program = Program(_printable(model.name) or None)
        self.names: dict[str, Variable] = {}
        self.kept: dict[str, np.ndarray] = {}
        for name, t in model.inputs.items():
            self.names[name] = self.program.block0.create_var(self._new(name), type=t, is_data=True, stop_gradient=True)

    def node(self, node: Node) -> None:
        """Add what a node computes."""
        if node.domain == DOMAIN:
            self._function(node)
        elif node.domain or node.type not in READ:
            raise ProgramError("no operator is known for it", hint=nearest(node.type, READ))
        else:
            self._standard(node)

    def _standard(self, node: Node) -> None:
        """What a standard operator is read as; a file may name any inputs and attributes, of any type."""
        try:
            for call in READ[node.type](self, node):
                self.emit(call)
        except MinigraphError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as problem:
            fact = f"its inputs or attributes are not those of {node.type}: {shortened(str(problem))}"
            raise ProgramError(fact) from None

    def keep(self, name: str, array: np.ndarray) -> None:
        """A value that is known when the file is read."""
        require(name not in self.names and name not in self.arrays, f"{name} gets a second value", ProgramError)
        self.arrays[name] = array

    def _function(self, node: Node) -> None:
        """The operator that a function of minigraph's stands for."""
        function = self.model.functions.get(f"{DOMAIN}::{node.type}")
        known = function is not None and function.operator in OPS
        require(known, "no operator is known for it", ProgramError, nearest(node.type, OPS))
        assert function is not None
        opdef = OPS[function.operator]
        sizes = len(function.inputs) == len(node.inputs) and len(function.outputs) == len(node.outputs)
        require(sizes, f"function {function.name} takes and gives other numbers of values", ProgramError)
        inputs, outputs = (
            _by_slot(opdef, slots, names)
            for slots, names in ((function.inputs, node.inputs), (function.outputs, node.outputs))
        )
        self.emit(OperatorCall(opdef.type, inputs, outputs, attributes.from_onnx(opdef, node.attrs)), function)

    def emit(self, call: OperatorCall, function: Function | None = None) -> None:
        """Append an operator whose outputs get these names; `function` is what it must be written as."""
        block = self.program.block0
        inputs = {slot: [self.variable(name) for name in names] for slot, names in call.inputs.items()}
        op, types = block.prepare_op(call.type, inputs, call.attrs)
        if function is not None:
            outputs = {slot: types.get(slot, []) for slot in call.outputs}
            ours = write_operator(op.opdef, {s: [v.type for v in vs] for s, vs in inputs.items()}, op.attrs, outputs)
            same = Function(function.name, tuple(ours.inputs), ours.outputs, (), ours.nodes).same_as(function)
            require(same, f"function {function.name} does not compute what {op.type} does here", ProgramError)
        for slot, names in call.outputs.items():
            count = len(types.get(slot, ()))
            require(count == len(names), f"{op.type} gives {count} values in {slot}, not {len(names)}", ProgramError)
            op.outputs[slot] = [self._value(name, t) for name, t in zip(names, types[slot], strict=True)]
        for slot in op.opdef.outputs:
            if slot.name not in op.outputs and not slot.optional:
                op.outputs[slot.name] = [self._value(f"{call.type}.{slot.name}", t) for t in types[slot.name]]
        block.add_op(op)

    def _value(self, name: str, t: TensorType) -> Variable:
        require(name not in self.names and name not in self.arrays, f"{name} gets a second value", ProgramError)
        v = self.program.block0.create_var(self._new(name), type=t)
        self.names[name] = v
        return v

    def variable(self, name: str) -> Variable:
        """What holds a value; a weight becomes a parameter where it is first read."""
        if name not in self.names:
            require(name in self.arrays, f"{name or 'an input'} has no value", ProgramError)
            array = self.arrays[name]
            create: Any = self.program.block0.create_parameter
            if array.dtype not in FLOATS:
                create = self._state
            made = self.names[name] = create(self._new(name), array.shape, array.dtype)
            self.kept[made.name] = array
        return self.names[name]

    def _state(self, name: str, shape: Sequence[int], dtype: Any) -> Variable:
        return self.program.block0.create_var(name, shape, dtype, persistable=True, stop_gradient=True)

    # what READ asks

    def type_of(self, name: str) -> TensorType:
        """The type of a value."""
        if name in self.names:
            return self.names[name].type
        require(name in self.arrays, f"{name or 'an input'} has no value", ProgramError)
        return TensorType(self.arrays[name].shape, self.arrays[name].dtype)

    def constant(self, node: Node, position: int) -> np.ndarray | None:
        """An input that the file must know; None where it is absent."""
        name = node.inputs[position] if position < len(node.inputs) else ""
        if not name:
            return None
        require(name in self.arrays, f"input {position} must be a constant, {name} is computed", ProgramError)
        return self.arrays[name]

    def fresh(self, name: str) -> str:
        """A name for a value between two operators of one node."""
        number = 1
        while f"{name}.inner{number}" in self.names:
            number += 1
        return f"{name}.inner{number}"

    def _new(self, name: str) -> str:
        """A name that a variable may have, and none has."""
        wanted = base = _printable(name)[: MAX_NAME - 12] or "value"
        number = 1
        while wanted in self.program.vars:
            wanted, number = f"{base}.{number}", number + 1
        return wanted


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "_" for c in name)


def _by_slot(opdef: OpDef, slots: Sequence[str], names: Sequence[str]) -> Mapping[str, list[str]]:
    made: dict[str, list[str]] = {}
    for slot, name in zip(slots, names, strict=True):
        made.setdefault(slot.partition(".")[0], []).append(name)
    require(made.keys() <= opdef.slots.keys(), f"{opdef.type} has other slots", ProgramError)
    return made
