"""Nodes: what the form of an operator writes itself with.

    g.Tanh(X)                   a node of a standard operator
    0.5 * X * (1 + g.Tanh(X))   arithmetic on Terms writes nodes, too; numbers become constants of X's type

A Term knows its data type, so that numbers beside it get the same one. Ranks and sizes are known of an operator's
inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.types import TensorType, as_dtype, bfloat16, bool_, float16, float32, float64, int64

from .model import CODES, Node

BOOLS = frozenset({
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf",
})  # fmt: skip
PLACES = frozenset({"Shape", "Size", "ArgMax", "ArgMin"})  # which give int64; others have the type of an input
TYPED_BY = {"Where": 1}  # the input that has it, where it is not the first
Binary = Callable[["Term", Any], "Term"]


def _node(name: str) -> Binary:
    """The method of Term that writes a node of this name."""
    return lambda x, other: getattr(x.g, name)(x, other)


def _turned(name: str) -> Binary:
    """That with a number or an array on the left."""
    return lambda x, other: getattr(x.g, name)(x.g.like(x, other), x)


class Term:
    """A value between nodes, with which the form of an operator is written.

    type   known of an operator's inputs; of others the data type alone
    """

    __slots__ = ("dtype", "g", "name", "type")

    def __init__(self, g: Nodes, name: str, dtype: Any, type: TensorType | None = None) -> None:
        self.g, self.name, self.dtype, self.type = g, name, as_dtype(dtype), type

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, -1 where free; of an operator's input."""
        assert self.type is not None, f"the shape of {self.name} is not known"
        return self.type.shape

    def __neg__(self) -> Term:
        return self.g.Neg(self)

    __add__, __radd__ = _node("Add"), _turned("Add")
    __sub__, __rsub__ = _node("Sub"), _turned("Sub")
    __mul__, __rmul__ = _node("Mul"), _turned("Mul")
    __truediv__, __rtruediv__ = _node("Div"), _turned("Div")
    __lt__, __le__, __gt__, __ge__ = map(_node, ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
    __and__, __or__ = _node("And"), _node("Or")


class Nodes:
    """The nodes of one operator, in order.

    constants  of them those that hold numbers, by name
    types      of the operator's outputs by slot;  wanted: the slots that are read
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, list[TensorType]] = {}
        self.wanted: frozenset[str] = frozenset()
        self._count = 0

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return partial(self.node, op_type)

    def node(self, op_type: str, *inputs: Any, outputs: int = 1, dtype: Any = None, **attrs: Any) -> Any:
        """A node of a standard operator; its Term, or a tuple of these.

        inputs  Terms, None for an absent one, numbers and arrays, which get the type of the first Term
        dtype   of the result, where neither the operator nor an input says it
        """
        first = next((x for x in inputs if isinstance(x, Term)), None)
        values = [x if x is None or isinstance(x, Term) else self.like(first, x) for x in inputs]
        names = tuple("" if x is None else x.name for x in values)
        while names and not names[-1]:
            names = names[:-1]
        if dtype is None:
            typing = values[TYPED_BY.get(op_type, 0)] if values else None
            own = float32 if typing is None else typing.dtype
            dtype = bool_ if op_type in BOOLS else int64 if op_type in PLACES else own
        made = [Term(self, self._name(), dtype) for _ in range(outputs)]
        self.nodes.append(Node(op_type, names, tuple(v.name for v in made), attrs))
        return made[0] if outputs == 1 else tuple(made)

    def const(self, value: Any, dtype: Any) -> Term:
        """A constant of a data type."""
        array = np.asarray(value).astype(as_dtype(dtype))
        made = Term(self, self._name(), dtype, TensorType(array.shape, array.dtype))
        self.constants[made.name] = array
        self.nodes.append(Node("Constant", (), (made.name,), {"value": array}))
        return made

    def like(self, x: Term | None, number: Any) -> Term:
        """A number in the type of a value."""
        assert x is not None, "an input of a node must be a Term"
        return self.const(number, x.dtype)

    def ints(self, *values: int) -> Term:
        """Sizes, axes or places: int64 [n]."""
        return self.const(np.array(values, np.int64), int64)

    def cast(self, x: Term, dtype: Any) -> Term:
        """x in another data type; itself where it has it."""
        dtype = as_dtype(dtype)
        if x.dtype == dtype:
            return x
        made = self.Cast(x, to=CODES[dtype], dtype=dtype)
        made.type = x.type.with_dtype(dtype) if x.type is not None else None
        return made

    def computed(self, x: Term) -> Term:
        """x in the type that it is computed in: 16-bit floats are storage."""
        return self.cast(x, float32) if x.dtype in (float16, bfloat16) else x

    def size(self, x: Term, axis: int) -> Term:
        """The size of an axis, int64 [1]."""
        known = x.shape[axis]
        return self.ints(known) if known >= 0 else self.Gather(self.Shape(x), self.ints(axis % x.ndim))

    def sizes(self, x: Term) -> Term:
        """All of them, int64 [rank]."""
        return self.ints(*x.shape) if -1 not in x.shape else self.Shape(x)

    def reshape(self, x: Term, shape: Sequence[int | Term]) -> Term:
        """x in another shape: ints, one of them -1, and Values with one size each."""
        if all(isinstance(size, int) for size in shape):
            empty = {"allowzero": 1} if 0 in shape and 0 in x.shape else {}
            return self.Reshape(x, self.ints(*shape), **empty)  # pyright: ignore[reportArgumentType]
        parts = [self.ints(size) if isinstance(size, int) else size for size in shape]
        return self.Reshape(x, self.Concat(*parts, axis=0))

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def needed(self, outputs: Sequence[str]) -> list[Node]:
        """The nodes that these values depend on."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(_read(node))
        return kept[::-1]


def _read(node: Node) -> Iterator[str]:
    """What a node reads."""
    return (name for name in node.inputs if name)


def fits_attribute(x: Term, *numbers: float) -> bool:
    """Whether attributes of ONNX, which are float32, are exact enough for values of x's type."""
    return x.dtype != float64 or all(float(np.float32(n)) == n for n in numbers)
