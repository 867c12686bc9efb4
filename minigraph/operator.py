"""Operator: one call of an operator type in a Block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import AttrError, CallSite, raise_unknown
from .opdef import OpDef
from .variable import Variable

if TYPE_CHECKING:
    from .program import Block

ROLES = ("forward", "backward", "optimize")
Slots = dict[str, list[Variable]]


class Operator:
    """One call of an operator type: inputs and outputs by slot, attributes, and where it was written.

    role      forward, backward or optimize
    forward   the forward Operator whose gradient this one computes (None for forward operators)
    grad_slot the input slot of `forward` whose gradient the first output is, where the names of
              the output slots do not say it (`X_grad` says X)
    number    counts operators of a program; keys its random numbers
    """

    __slots__ = ("attrs", "block", "forward", "grad_slot", "inputs", "number", "opdef", "outputs", "role",
                 "scope_name", "site")  # fmt: skip

    def __init__(
        self, block: Block, opdef: OpDef, inputs: Slots, outputs: Slots, attrs: dict[str, Any],
        *, role: str = "forward", forward: Operator | None = None, grad_slot: str | None = None,
        site: CallSite | None = None, number: int = 0, scope_name: str = "",
    ) -> None:  # fmt: skip
        self.block, self.opdef, self.inputs, self.outputs, self.attrs = block, opdef, inputs, outputs, attrs
        self.role, self.forward, self.grad_slot, self.site = role, forward, grad_slot, site
        self.number, self.scope_name = number, scope_name

    @property
    def type(self) -> str:
        return self.opdef.type

    def input(self, slot: str) -> list[str]:
        """Names of the variables in an input slot."""
        return [v.name for v in self.inputs.get(slot, ())]

    def output(self, slot: str) -> list[str]:
        """Names of the variables in an output slot."""
        return [v.name for v in self.outputs.get(slot, ())]

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_vars(self) -> Iterator[Variable]:
        return itertools.chain.from_iterable(self.inputs.values())

    @property
    def output_vars(self) -> Iterator[Variable]:
        return itertools.chain.from_iterable(self.outputs.values())

    @property
    def input_arg_names(self) -> list[str]:
        return [v.name for v in self.input_vars]

    @property
    def output_arg_names(self) -> list[str]:
        return [v.name for v in self.output_vars]

    def attr(self, name: str) -> Any:
        if name not in self.attrs:
            raise_unknown(f"attribute of {self.type}", name, self.attrs, AttrError)
        return self.attrs[name]

    def has_attr(self, name: str) -> bool:
        return name in self.attrs

    def all_attrs(self) -> dict[str, Any]:
        return dict(self.attrs)

    @property
    def attr_names(self) -> list[str]:
        return list(self.attrs)

    @property
    def idx(self) -> int:
        """Position in its Block."""
        return next(i for i, op in enumerate(self.block.ops) if op is self)

    def call(self) -> str:
        """`matmul(X=x: f32[4,8], Y=w: f32[8,3])`, as errors show it."""
        return describe_call(self.type, self.inputs)

    def to_string(self, throw_on_error: bool = False) -> str:
        return str(self)

    def __str__(self) -> str:
        outputs = ", ".join(f"{v}" for v in self.output_vars)
        return f"{outputs} = {self.call()}"

    def __repr__(self) -> str:
        return f"<Operator {self}>"


def describe_call(op_type: str, inputs: Mapping[str, Sequence[Any]]) -> str:
    """`type(slot=name: type, ...)`"""
    slots = []
    for slot, variables in inputs.items():
        shown = [str(v) for v in variables[:4]] + (["..."] if len(variables) > 4 else [])
        slots.append(f"{slot}={shown[0]}" if len(shown) == 1 else f"{slot}=[{', '.join(shown)}]")
    return f"{op_type}({', '.join(slots)})"
