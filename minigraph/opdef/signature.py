"""How an operator is called, read from its reference function: slots, attributes, and what a call binds to them.

Some keyword-only names are no attributes. A function that lists such a name is given its value:
    out    tuple with an array or None for each output slot, to be written in place
    needs  frozenset of the output slots that are read
    rng    (seed, operator's number, step) for counter-based random numbers
    lifted whether every float is computed in float64, as validation does
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors import AttrError, MinigraphError, ProgramError, raise_unknown, shortened
from minigraph.errors.kinds import MISSING, UNKNOWN_ATTR, UNKNOWN_NAME

from .attr import Attr, read_attr

Arrays = Sequence[np.ndarray]  # annotation of a list slot

INJECTED = frozenset({"out", "needs", "rng", "lifted"})


class Slot(NamedTuple):
    """An input or output position. An optional one may be absent, a variadic one holds a list."""

    name: str
    optional: bool = False
    variadic: bool = False


class Signature:
    """The input slots, output slots and attributes of one type of operator."""

    def __init__(self, reference: Callable[..., Any], outputs: str) -> None:
        self.type, self.reference = reference.__name__, reference
        self.outputs = tuple(_parse_slot(s) for s in outputs.split(","))
        self.inputs, self.attrs = _read_parameters(reference)

    @cached_property
    def _input_set(self) -> frozenset[str]:
        return frozenset(self.input_names)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.outputs)

    @cached_property
    def optional_outputs(self) -> tuple[Slot, ...]:
        """Output slots that may be absent."""
        return tuple(s for s in self.outputs if s.optional)

    @cached_property
    def all_optional(self) -> bool:
        """Whether every output is computed only where it is wanted: none is the result beside which others stand."""
        return all(s.optional for s in self.outputs)

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Inputs and outputs by name."""
        return {s.name: s for s in (*self.inputs, *self.outputs)}

    def bind_inputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, list[Any]]:
        """{slot: variables} from a call's arguments; takes the slots out of `kwargs`."""
        if len(args) > len(self.inputs):
            raise ProgramError(f"{self.type} takes {len(self.inputs)} inputs, {len(args)} were given")
        bound = {}
        for (name, _, variadic), value in zip(self.inputs, args, strict=False):
            if value is not None:
                bound[name] = list(value) if variadic else [value]
        if self._input_set.isdisjoint(kwargs):  # as in most calls
            return bound
        for position, (name, _, variadic) in enumerate(self.inputs):
            if name in kwargs:
                if position < len(args):
                    raise ProgramError(f"input {name} is given twice")
                value = kwargs.pop(name)
                if value is not None:
                    bound[name] = list(value) if variadic else [value]
        return bound

    def check_inputs(self, bound: Mapping[str, Sequence[Any]]) -> None:
        """Every slot that must be there is there, and no other."""
        if not bound.keys() <= self._input_set:
            unknown = next(name for name in bound if name not in self._input_set)
            raise_unknown(f"input slot of {self.type}", unknown, self.input_names, UNKNOWN_NAME)
        for name, optional, variadic in self.inputs:
            number = len(bound[name]) if name in bound else 0
            if number == 0 and not optional:
                raise ProgramError(f"{name} is an empty list" if variadic else f"input {name} is missing")
            if number > 1 and not variadic:
                raise ProgramError(f"input {name} takes one variable")

    def bind_attrs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes in canonical form; unknown names and wrong types are refused."""
        if not given.keys() <= self.attrs.keys():
            unknown = next(name for name in given if name not in self.attrs)
            raise_unknown(f"attribute of {self.type}", unknown, self.attrs, UNKNOWN_ATTR)
        bound = {}
        for name, attr in self.attrs.items():
            if name in given:
                try:
                    bound[name] = attr.coerce(given[name])
                except MinigraphError as problem:
                    raise AttrError(f"attribute {name}: {problem.fact}", hint=problem.hint) from None
                except (TypeError, OverflowError):
                    shown = shortened(repr(given[name]))
                    raise AttrError(f"attribute {name} must be {attr.words}, not {shown}") from None
            else:
                bound[name] = attr.default
                if attr.default is inspect.Parameter.empty:
                    raise MISSING(f"attribute {name} is missing")
        return bound


def _parse_slot(text: str) -> Slot:
    text = text.strip()
    return Slot(text.rstrip("?*"), "?" in text, "*" in text)


def _read_parameters(reference: Callable[..., Any]) -> tuple[tuple[Slot, ...], dict[str, Attr]]:
    inputs, attrs = [], {}
    for p in inspect.signature(reference).parameters.values():
        if p.kind == p.KEYWORD_ONLY:
            if p.name not in INJECTED:
                attrs[p.name] = read_attr(p)
        else:
            inputs.append(Slot(p.name, p.default is None, p.annotation == "Arrays"))
    return tuple(inputs), attrs
