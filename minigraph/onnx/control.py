"""Branches and loops as If and Loop, whose bodies see the values around them, after ops/control.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minigraph.program import Operator
from minigraph.types import TensorType, bool_, int64

from .model import Node

if TYPE_CHECKING:
    from .export import Writer

FLAG = TensorType((), bool_)


def cond(w: Writer, op: Operator) -> None:
    """If: both branches take what the operator takes."""
    given = _read(w, op, "Input")
    branches = {
        name: w.body(lambda block=op.attrs[attr]: w.block(block, given))
        for name, attr in (("then_branch", "true_block"), ("else_branch", "false_block"))
    }
    w.add(op, Node("If", (w.read(op.inputs["Pred"][0]),), tuple(w.written(v) for v in op.output_vars), branches))


def call(w: Writer, op: Operator) -> None:
    """The operators of its block stand in its place."""
    _pass_on(w, op, w.block(op.attrs["block"], _read(w, op, "Input")))


def pylayer(w: Writer, op: Operator) -> None:
    """The operators of forward_block stand in its place."""
    _pass_on(w, op, w.block(op.attrs["forward_block"], _read(w, op, "X", "Input")))


def while_loop(w: Writer, op: Operator) -> None:
    """Loop without a limit: its body computes the next values, then whether there is another round."""
    start, fixed = _read(w, op, "X"), _read(w, op, "Input")
    goes_on = _flag(w, op, w.block(op.attrs["cond_block"], [*start, *fixed]))
    block = op.attrs["body_block"]
    inputs = {w.new("round"): TensorType((), int64), w.new("goes_on"): FLAG}
    types = [v.type for v in op.outputs["Out"]]
    values = {w.new(v.name): t for v, t in zip(block.inputs, types, strict=False)}

    def one_round() -> list[tuple[str, TensorType]]:
        results = w.block(block, [*values, *fixed])
        names = [name for name, _ in results]
        again = _flag(w, op, w.block(op.attrs["cond_block"], [*names, *fixed]))
        return [(again, FLAG), *zip(names, types, strict=True)]

    body = w.body(one_round, inputs | values)
    w.add(op, Node("Loop", ("", goes_on, *start), tuple(w.written(v) for v in op.output_vars), {"body": body}))


def _read(w: Writer, op: Operator, *slots: str) -> list[str]:
    return [w.read(v) for slot in slots for v in op.inputs.get(slot, ())]


def _pass_on(w: Writer, op: Operator, results: Sequence[tuple[str, TensorType]]) -> None:
    for v, (name, _) in zip(op.output_vars, results, strict=True):
        w.add(op, Node("Identity", (name,), (w.written(v),)))


def _flag(w: Writer, op: Operator, results: Sequence[tuple[str, TensorType]]) -> str:
    """A condition without axes."""
    ((name, t),) = results
    if t.ndim == 0:
        return name
    flat = w.new(f"{name}.flag")
    w.add(op, Node("Reshape", (name, w.constant(op, np.zeros(0, np.int64))), (flat,)))
    return flat


CONTROL: dict[str, Callable[[Any, Operator], None]] = {
    "cond": cond, "call": call, "pylayer": pylayer, "while_loop": while_loop,
}  # fmt: skip
