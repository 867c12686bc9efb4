"""Program -> Model: operators become standard nodes, fused ones functions of them.

ONNX gives each name one value. A variable that is written again gets a new name for each later value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from minigraph.errors import (
    CallSite,
    MinigraphError,
    ProgramError,
    UninitializedError,
    raise_unknown,
    require,
)
from minigraph.program import Operator, Program, Variable
from minigraph.program.operator import Slots
from minigraph.program.scope import Scope
from minigraph.types import TensorType

from . import attributes
from .control import CONTROL
from .model import DOMAIN, Body, Function, Model, Node
from .operators import Written, slot_names, write_operator


def exported(program: Program, fetches: Sequence[str], scope: Scope) -> Model:
    """The inference form of what computes these values, with the weights that a scope holds.

    Errors: ProgramError with the operator and the user's line where ONNX has no counterpart, UninitializedError.
    """
    test = program.clone(for_test=True)
    for name in fetches:
        if name not in test.vars:
            if name not in program.vars:
                raise_unknown(f"variable of program {program.name}", name, program.vars, ProgramError)
            raise ProgramError(f"{name} is computed for training only", site=program.vars[name].site)
    writer = Writer(program.name, scope)
    with scope.lock, scope.turn.begin():  # weights of one step, also while another thread trains
        writer.operators(test.ops, fetches)
        for name in fetches:
            writer.output(test.vars[name])
    return writer.model


class Writer:
    """A Model that grows operator by operator.

    names  the name of the latest value of each variable;  taken: all that are used
    nodes  where new ones go: the body of a branch or a loop has its own
    """

    def __init__(self, name: str, scope: Scope) -> None:
        self.model, self.scope = Model(name), scope
        self.nodes = self.model.nodes
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.constants: dict[tuple[Any, ...], str] = {}
        self.calls: dict[str, int] = {}

    def operators(self, ops: Sequence[Operator], results: Sequence[str]) -> None:
        """Add the nodes of those operators that these values depend on.

        A form tells what it reads, so this is found from the end: dropout's key is not read in inference.
        """
        live, plan = set(results), []
        for op in reversed(ops):
            made = {slot: vs for slot, vs in op.outputs.items() if any(v.name in live for v in vs)}
            if made:
                live.difference_update(op.output_arg_names)
                written = None if op.type in CONTROL else _written(op, made)
                live.update(v.name for v in (op.input_vars if written is None else _inputs(op, written).values()))
                plan.append((op, made, written))
        for op, made, written in reversed(plan):
            if written is None:
                CONTROL[op.type](self, op)
            else:
                self._operator(op, made, written)

    def _operator(self, op: Operator, made: Slots, written: Written) -> None:
        names = {name: self.read(v) for name, v in _inputs(op, written).items()}
        names |= zip(written.outputs, [self.written(v) for vs in made.values() for v in vs], strict=True)
        if len(written.computing) <= 1:
            self._inline(op, written, names)
        else:
            self._call(op, written, names)

    def _inline(self, op: Operator, written: Written, names: dict[str, str]) -> None:
        """One standard node, whose constants are initializers; or a constant alone."""
        for name, array in written.constants.items():
            if name in names:
                self.model.initializers[names[name]] = array
            else:
                names[name] = self.constant(op, array)
        for node in written.computing:
            inputs, outputs = (tuple(names[n] if n else "" for n in some) for some in (node.inputs, node.outputs))
            self.add(op, Node(node.type, inputs, outputs, node.attrs))

    def _call(self, op: Operator, written: Written, names: dict[str, str]) -> None:
        """A call of a function; operators that come to the same nodes share it."""
        attrs = attributes.to_onnx(op.opdef, op.attrs)
        function = Function(op.type, tuple(written.inputs), written.outputs, tuple(attrs), written.nodes)
        alike = (f for f in self.model.functions.values() if f.attributes == function.attributes)
        known = next((f for f in alike if f.same_as(function)), None)
        if known is None:
            count = sum(f.operator == op.type for f in self.model.functions.values())
            name = f"{op.type}.{count + 1}" if count else op.type
            known = Function(name, *(getattr(function, n) for n in ("inputs", "outputs", "attributes", "nodes")))
            self.model.functions[name] = known
        inputs, outputs = (tuple(names[n] for n in some) for some in (known.inputs, known.outputs))
        self.add(op, Node(known.name, inputs, outputs, attrs, DOMAIN))

    def add(self, op: Operator, node: Node) -> None:
        number = self.calls[op.type] = self.calls.get(op.type, 0) + 1
        name = f"{op.scope_name}{op.type}_{number}"
        self.nodes.append(
            Node(node.type, node.inputs, node.outputs, node.attrs, node.domain, name, _line(op.site))
        )

    def constant(self, op: Operator, array: np.ndarray) -> str:
        """The initializer of a small constant; equal ones are one."""
        key = array.dtype, array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = self.new(f"{op.type}.constant")
            self.model.initializers[self.constants[key]] = array
        return self.constants[key]

    def read(self, v: Variable) -> str:
        """The name of a variable's value at this place: computed, kept in the scope, or fed."""
        if v.name not in self.names:
            name = self.names[v.name] = self.new(v.name)
            if v.persistable:
                if not self.scope.has(v.name):
                    raise UninitializedError(f"{v} has no value in the scope", hint="run the startup program first")
                self.model.initializers[name] = np.ascontiguousarray(self.scope.read(v.name)).reshape(v.shape)
            else:
                require(v.is_data, f"{v} has no value here: no operator before writes it", ProgramError)
                self.model.inputs[name] = v.type
        return self.names[v.name]

    def written(self, v: Variable) -> str:
        """The name of a new value of a variable."""
        self.names[v.name] = self.new(v.name)
        return self.names[v.name]

    def block(self, block: Any, given: Sequence[str]) -> list[tuple[str, TensorType]]:
        """Add the operators of a block that takes these values; (name, type) of its results."""
        outside = self.names
        self.names = {v.name: name for v, name in zip(block.inputs, given, strict=True)}
        self.operators(block.ops, block.fetched)
        results = [(self.read(v), v.type) for v in block.outputs]
        self.names = outside
        return results

    def body(
        self, write: Callable[[], Sequence[tuple[str, TensorType]]], inputs: Mapping[str, TensorType] | None = None
    ) -> Body:
        """What `write` adds, as the body of a branch or a loop; each result has a name of its own."""
        outside, self.nodes = self.nodes, []
        outputs = {}
        for name, t in write():
            result = self.new(f"{name}.result")
            self.nodes.append(Node("Identity", (name,), (result,)))
            outputs[result] = t
        made, self.nodes = tuple(self.nodes), outside
        return Body(inputs or {}, outputs, made)

    def output(self, v: Variable) -> None:
        """Make a variable's latest value a result; what is fed, or kept, passes through."""
        name = self.read(v)
        if name in self.model.inputs or name in self.model.initializers or name in self.model.outputs:
            other = self.new(f"{v.name}.out")
            self.nodes.append(Node("Identity", (name,), (other,), name=other))
            name = other
        self.model.outputs[name] = v.type

    def new(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}.{number}", number + 1
        self.taken.add(name)
        return name


def _written(op: Operator, made: Slots) -> Written:
    """The nodes of an operator of which these outputs are wanted."""
    inputs, outputs = ({slot: [v.type for v in vs] for slot, vs in some.items() if vs} for some in (op.inputs, made))
    try:
        return write_operator(op.opdef, inputs, op.attrs, outputs)
    except MinigraphError as problem:
        raise problem.at(op.call(), op.site) from None


def _inputs(op: Operator, written: Written) -> dict[str, Variable]:
    """{name in the nodes: variable} of what they take."""
    names = slot_names(op.opdef, op.inputs)
    held = {name: v for slot, vs in op.inputs.items() if vs for name, v in zip(names[slot], vs, strict=True)}
    return {name: held[name] for name in written.inputs}


def _line(site: CallSite | None) -> str:
    """`train.py:31`; folders of a user's machine are not told."""
    return f"{PurePath(site.filename).name}:{site.line}" if site else ""
