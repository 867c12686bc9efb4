"""One operator in standard nodes: its form is called, and what it wrote is put in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.opdef import OpDef
from minigraph.types import TensorType, bfloat16, float16

from .model import Node
from .nodes import Nodes, Term
from .registry import EXACT, FORMS, NO_FORM, no_counterpart

Types = Mapping[str, Sequence[TensorType]]


class Written(NamedTuple):
    """An operator as nodes that read and write slots: `X`, `Out`, `X.0` and `X.1` of a list.

    inputs     {name: slot} of what it takes; what no node reads is left out where the operator can do without
    constants  what nodes of type Constant hold, by name
    """

    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]

    @property
    def computing(self) -> tuple[Node, ...]:
        """The nodes that are no constants."""
        return tuple(node for node in self.nodes if node.type != "Constant")


def slot_names(opdef: OpDef, slots: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """{slot: names} of what a call has in its slots."""
    return {
        slot: [f"{slot}.{i}" for i in range(len(held))] if opdef.slots[slot].variadic else [slot]
        for slot, held in slots.items() if held
    }  # fmt: skip


def write_operator(opdef: OpDef, inputs: Types, attrs: Mapping[str, Any], outputs: Types) -> Written:
    """The nodes of an operator with inputs and wanted outputs of these types; a ProgramError where there are none.

    One standard operator takes float16 as it is: runtimes have it. bfloat16 they have on few machines, so float32
    stands between, as minigraph computes.
    """
    if opdef.type not in FORMS:
        hint = next((NO_FORM[trait] for trait in NO_FORM if trait in opdef.traits), None)
        raise no_counterpart(f"operator {opdef.type}", hint)
    halves = {t.dtype for types in (*inputs.values(), *outputs.values()) for t in types} & {float16, bfloat16}
    if opdef.type in EXACT or not halves:
        return _write(opdef, inputs, attrs, outputs, lifted=False)
    if halves == {float16}:
        plain = _write(opdef, inputs, attrs, outputs, lifted=False)
        if len(plain.computing) == 1:
            return plain
    return _write(opdef, inputs, attrs, outputs, lifted=True)


def _write(opdef: OpDef, inputs: Types, attrs: Mapping[str, Any], outputs: Types, lifted: bool) -> Written:
    g = Nodes()
    names = slot_names(opdef, inputs)
    values = {
        slot: [Term(g, name, t.dtype, t) for name, t in zip(names[slot], inputs[slot], strict=True)] for slot in names
    }
    results = write_member(g, opdef, values, attrs, frozenset(outputs), lifted)
    renamed: dict[str, str] = {}
    given = {name for own in names.values() for name in own}
    made = slot_names(opdef, outputs)
    for slot, own in made.items():
        for name, value, t in zip(own, results[slot], outputs[slot], strict=True):
            value = g.cast(value, t.dtype)
            if value.name in given or value.name in renamed:
                value = g.Identity(value)
            renamed[value.name] = name
    kept = g.needed(list(renamed))
    inner = [name for node in kept for name in node.outputs if name not in renamed]
    renamed_all = renamed | {name: f"t{number}" for number, name in enumerate(inner, 1)}
    nodes = tuple(_renamed(node, renamed_all) for node in kept)
    constants = {node.outputs[0]: node.attrs["value"] for node in nodes if node.type == "Constant"}
    taken = {name: slot for slot, own in names.items() for name in own}
    read = {name for node in nodes for name in node.inputs}
    is_alone = len(nodes) - len(constants) <= 1
    unread = {
        name for name, slot in taken.items()
        if name not in read and (is_alone or (opdef.slots[slot].optional and not opdef.slots[slot].variadic))
    }  # fmt: skip
    taken = {name: slot for name, slot in taken.items() if name not in unread}
    return Written(taken, tuple(renamed.values()), nodes, constants)


def write_member(
    g: Nodes, opdef: OpDef, inputs: Mapping[str, Sequence[Term]], attrs: Mapping[str, Any], wanted: frozenset[str],
    lifted: bool = True,
) -> dict[str, list[Term]]:  # fmt: skip
    """{output slot: Values} of an operator among the nodes of `g`.

    lifted  compute 16-bit floats in float32; a cast to 16 bits rounds all the same
    """
    if opdef.type not in FORMS:
        raise no_counterpart(f"operator {opdef.type} in the body of a fused one")
    if lifted:
        inputs = {slot: [g.computed(v) for v in vs] for slot, vs in inputs.items()}
    given = {slot: [v.type for v in vs if v.type is not None] for slot, vs in inputs.items()}
    types = opdef.infer_types(given, attrs)
    args: list[Any] = []
    for slot in opdef.inputs:
        held = inputs.get(slot.name)
        args.append((held if slot.variadic else held[0]) if held else () if slot.variadic else None)
    saved = g.types, g.wanted
    g.types, g.wanted = types, wanted
    results = _called(FORMS[opdef.type], g, args, attrs)
    g.types, g.wanted = saved
    made: dict[str, list[Term]] = {}
    for slot, result in zip(opdef.outputs, results, strict=True):
        if slot.name in wanted:
            made[slot.name] = list(result) if slot.variadic else [result]
            for value, t in zip(made[slot.name], types[slot.name], strict=True):
                value.type = t.with_dtype(value.dtype)
    return made


def _called(write: Callable[..., Any], g: Nodes, args: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    results = write(g, *args, **attrs)
    return results if isinstance(results, tuple) else (results,)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(name, name) for name in some) for some in (node.inputs, node.outputs))
    return Node(node.type, inputs, outputs, node.attrs)
