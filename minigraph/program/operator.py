"""Operator: one call of an operator type in a Block."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minigraph.errors import CallSite, ProgramError, raise_unknown, require
from minigraph.errors.kinds import UNKNOWN_ATTR
from minigraph.opdef import OpDef

from . import changes
from .copies import PartOfProgram
from .variable import Variable

if TYPE_CHECKING:
    from .program import Block

ROLES = ("forward", "backward", "optimize")
Slots = dict[str, list[Variable]]


class Operator(PartOfProgram):
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
        role: str = "forward", forward: Operator | None = None, grad_slot: str | None = None,
        site: CallSite | None = None, number: int = 0, scope_name: str = "",
    ) -> None:  # fmt: skip
        self.block, self.opdef, self.inputs, self.outputs, self.attrs = block, opdef, inputs, outputs, attrs
        self.role, self.forward, self.grad_slot, self.site = role, forward, grad_slot, site
        self.number, self.scope_name = number, scope_name

    def like(self, inputs: Slots, outputs: Slots, number: int) -> Operator:
        """An Operator for this Block that differs in the variables of its slots, but not in their types.

        What was checked for this one holds for it. Role, user's line and name scope are the same. It is sealed, so its
        slots do not change: operators may share them.
        """
        made = object.__new__(Operator)
        made.block, made.opdef = self.block, self.opdef
        made.inputs, made.outputs = inputs, outputs
        made.attrs = attrs = changes.Attrs(self.attrs)
        attrs.op, made.number = made, number
        made.role, made.forward, made.grad_slot = self.role, self.forward, self.grad_slot
        made.site, made.scope_name = self.site, self.scope_name
        made.__class__ = _SealedOperator  # pyright: ignore[reportAttributeAccessIssue]
        return made

    def seal(self) -> None:
        """Called where it comes into the list of its Block: from now on its Program counts changes."""
        self.inputs, self.outputs = changes.fixed(self.inputs), changes.fixed(self.outputs)
        attrs = changes.Attrs(self.attrs)
        attrs.op, self.attrs = self, attrs
        self.__class__ = _SealedOperator  # pyright: ignore[reportAttributeAccessIssue]

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

    @property
    def desc(self) -> Operator:
        """Paddle's part of it in C++: the operator itself."""
        return self

    def attr(self, name: str) -> Any:
        if name == "op_namescope":  # Paddle keeps it among the attributes
            return f"/{self.scope_name}"
        if name not in self.attrs:
            raise_unknown(f"attribute of {self.type}", name, self.attrs, UNKNOWN_ATTR)
        return self.attrs[name]

    def has_attr(self, name: str) -> bool:
        return name in self.attrs

    def _set_attr(self, name: str, val: Any) -> None:
        """Set an attribute; it is checked as when the operator was built."""
        self.attrs[name] = val

    set_attr = _set_attr

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Read another variable of the Block instead; types are checked as when the operator was built."""
        changes.rename(self, "inputs", old_name, new_name)

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Write another variable of the Block instead; types are checked as when the operator was built."""
        changes.rename(self, "outputs", old_name, new_name)

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


class _SealedOperator(Operator):
    """An Operator that stands, or stood, in the list of its Block."""

    __slots__ = ()

    def seal(self) -> None:
        """It is."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "attrs":
            changes.attrs_of(self).become(value)
        else:
            derived = isinstance(getattr(type(self), name, None), property)
            kept = derived or name in ("inputs", "outputs", "block", "opdef")
            require(
                not kept, f"{name} of an operator cannot be set", ProgramError, "remove it and append another one"
            )
            object.__setattr__(self, name, value)
            self.block.program.version += 1


def describe_call(op_type: str, inputs: Mapping[str, Sequence[Any]]) -> str:
    """`type(slot=name: type, ...)`"""
    slots = []
    for slot, variables in inputs.items():
        shown = [str(v) for v in variables[:4]] + (["..."] if len(variables) > 4 else [])
        slots.append(f"{slot}={shown[0]}" if len(shown) == 1 else f"{slot}=[{', '.join(shown)}]")
    return f"{op_type}({', '.join(slots)})"


def masters_of(ops: Iterable[Operator]) -> dict[Variable, Variable]:
    """{16-bit parameter: its float32 copy, from which updates go on} of the updates among these operators."""
    updates = [op for op in ops if "MasterParam" in op.inputs]
    return {p: copy for op in updates for p, copy in zip(op.inputs["Param"], op.inputs["MasterParam"], strict=True)}
