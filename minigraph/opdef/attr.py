"""Attributes of operators: which kinds there are, and how a user's value is brought into canonical form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.errors.flags import is_flag
from minigraph.types import as_dtype

from .host_function import HostFunction
from .inner import InnerBlock

Ints = tuple[int, ...]  # annotation of an attribute that is a tuple of ints
Floats = tuple[float, ...]  # annotation of a list of floats
Texts = tuple[str, ...]  # annotation of a list of strings
Number = float | int | bool
Numbers = tuple[Number, ...]
DTypeAttr = np.dtype  # annotation of an attribute that is a data type
FunctionAttr = HostFunction  # annotation of an attribute that is a function of Python
BlockAttr = InnerBlock  # annotation of an attribute that is a block of operators


class Attr(NamedTuple):
    """An attribute: its kind, its default, and the canonical form of a user's value."""

    kind: str
    coerce: Callable[[Any], Any]
    default: Any

    @property
    def words(self) -> str:
        """`a list of ints or None`"""
        kind = self.kind.removesuffix(" | None")
        return ATTR_KINDS[kind][1] + " or None" * (kind != self.kind)


def read_attr(parameter: inspect.Parameter) -> Attr:
    """The attribute that a keyword-only parameter declares."""
    kind = str(parameter.annotation)
    assert parameter.annotation is not parameter.empty, f"attribute {parameter.name} has no type"
    optional = kind.endswith(" | None")
    coerce, _ = ATTR_KINDS[kind.removesuffix(" | None")]
    if optional:
        return Attr(kind, lambda v: None if v is None else coerce(v), parameter.default)
    return Attr(kind, coerce, parameter.default)


def _to_int(value: Any) -> int:
    if type(value) is int:  # as most are
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError
    return int(value)


def _to_float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError
    return float(value)


def _to_bool(value: Any) -> bool:
    if not is_flag(value):
        raise TypeError
    return bool(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _to_number(value: Any) -> float | int | bool:
    if not isinstance(value, (bool, int, float, np.number, np.bool_)):
        raise TypeError
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def _to_block(value: Any) -> InnerBlock:
    if not isinstance(value, InnerBlock):
        raise TypeError
    return value


def _list_of(element: Callable[[Any], Any], single: bool = False) -> Callable[[Any], tuple[Any, ...]]:
    """A tuple of what `element` makes of each entry; with `single` a number stands for a list of one."""

    def to_tuple(value: Any) -> tuple[Any, ...]:
        if single and isinstance(value, (int, np.integer)):
            value = (value,)
        known = type(value) is tuple or type(value) is list  # the others are asked for slowly
        if not known and (isinstance(value, str) or not isinstance(value, (Sequence, Iterator, np.ndarray))):
            raise TypeError
        return tuple([element(v) for v in value])

    return to_tuple


ATTR_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {  # canonical form, and the words of errors
    "int": (_to_int, "an int"),
    "float": (_to_float, "a number"),
    "bool": (_to_bool, "a bool"),
    "str": (_to_str, "a str"),
    "Number": (_to_number, "a number"),
    "Ints": (_list_of(_to_int, single=True), "a list of ints"),
    "Floats": (_list_of(_to_float), "a list of numbers"),
    "Numbers": (_list_of(_to_number), "a list of numbers"),
    "Texts": (_list_of(_to_str), "a list of strings"),
    "DTypeAttr": (as_dtype, "a data type"),
    "BlockAttr": (_to_block, "a block of operators"),
    "FunctionAttr": (HostFunction.of, "a function"),
}
