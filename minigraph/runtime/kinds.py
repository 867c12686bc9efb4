"""Kinds: what steps of a Schedule have in common that differ in their values only, as those of alike layers do.

Definition, attributes and types tell which slots are read and computed, and the types of the outputs. That is found for
the first step of a kind. Others are known by the identity of these objects, which is finer than their equality: where
two are equal and not one object, it is found once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from minigraph.errors import MinigraphError, ShapeError
from minigraph.opdef import Slot
from minigraph.program import Operator, Variable, describe_call
from minigraph.types import TensorType

Types = list[TensorType]


class ComputedSlot(NamedTuple):
    """An output slot that is computed, the types of its values, and the input slot whose arrays these may take over."""

    name: str
    variadic: bool
    types: Types
    source: str | None


class StepKind:
    """Where the values of a step stand in its slots, and what it computes.

    slots    of the inputs that are read, in their order: their place among all input values, a slice of a list
    others   (number of the slot, None or the types) of those that are empty or not read, in ascending order
    typed    (number of the slot, the slice of its values) of those that are not read
    read     places of the input values that are read; None for all of them
    outputs  None for a slot that is not computed
    """

    def __init__(self, op: Operator, types: Mapping[str, Types], computed: Sequence[Slot]) -> None:
        """For inputs of these types, by slot; of outputs the slots `computed`."""
        self.op = op
        unread = op.opdef.unread([s.name for s in computed])
        self.slots: list[Any] = []
        self.others: list[tuple[int, Any]] = []
        self.typed: list[tuple[int, slice]] = []
        read: list[int] = []
        end = 0
        for number, (name, _, variadic) in enumerate(op.opdef.inputs):
            own = types.get(name)
            if own is None:
                self.others.append((number, None))
                continue
            start, end = end, end + len(own)
            if name in unread:
                self.others.append((number, own if variadic else own[0]))
                self.typed.append((number, slice(start, end)))
                continue
            self.slots.append(slice(start, end) if variadic else start)
            read += range(start, end)
        self.read = read if self.typed else None
        found = inferred(op, types)
        for slot in computed:
            for v, t in zip(op.outputs[slot.name], found[slot.name], strict=True):
                if t is not v.type:
                    check_accepted(op, v, t, types)
        self.outputs = [
            ComputedSlot(s.name, s.variadic, found[s.name], op.opdef.inplace.get(s.name)) if s in computed else None
            for s in op.opdef.outputs
        ]

    @cached_property
    def attrs(self) -> str:
        """The attributes as a text."""
        return repr(self.op.attrs)


def check_accepted(op: Operator, v: Variable, found: TensorType, types: Mapping[str, Sequence[TensorType]]) -> None:
    """A variable takes what was inferred for it in this run."""
    if not v.type.accepts(found):
        problem = ShapeError(f"{v.name} is {found} in this run, and declared {v.type}")
        raise problem.at(described(op, types), op.site)


def inferred(op: Operator, types: Mapping[str, Sequence[TensorType]]) -> dict[str, list[TensorType]]:
    """The types of the outputs in this run."""
    try:
        return op.opdef.infer_types(types, op.attrs)
    except MinigraphError as error:
        raise error.at(described(op, types), op.site) from None


def described(op: Operator, types: Mapping[str, Sequence[TensorType]]) -> str:
    """The call with the types of this run."""
    return describe_call(op.type, {
        s: [f"{v.name}: {t}" for v, t in zip(op.inputs[s], ts, strict=True)] for s, ts in types.items()
    })  # fmt: skip
