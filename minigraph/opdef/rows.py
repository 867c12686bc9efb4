"""Rows: how an operator works on the last axes of an array, each row for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Rows(NamedTuple):
    """Where an operator works on rows, the last axes of its first input, each for itself.

    start   the first axis of a row from the attributes and the rank; None where other axes are meant
    row     slots that hold one element for each row
    column  slots that hold one element for each place in a row
    sums    output slots that hold sums over all rows, one for each place in a row
    of      the slot whose last axes they are, where it is not the first input
    unless  {slot of `row`: attribute with which it holds whole rows}
    statistics  output slots of `row` that a gradient uses with the rows: they must be those of the very numbers
                that it reads
    """

    start: Callable[[Mapping[str, Any], int], int | None]
    row: frozenset[str] = frozenset()
    column: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    of: str = ""
    unless: Mapping[str, str] = MappingProxyType({})
    statistics: frozenset[str] = frozenset()

    def kind(self, slot: str, attrs: Mapping[str, Any]) -> str:
        """`row`, `column`, `sum`, or `whole` for a slot that has the shape of the rows' input."""
        if attrs.get(self.unless.get(slot, "")):
            return "whole"
        named = {"row": self.row, "column": self.column, "sum": self.sums}
        return next((kind for kind, slots in named.items() if slot in slots), "whole")
