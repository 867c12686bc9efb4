"""An ONNX model as plain data: what the forms of operators write, and what is compared when a file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigraph.types import (
    TensorType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)

CODES = {
    float32: 1, uint8: 2, int8: 3, int16: 5, int32: 6, int64: 7, bool_: 9, float16: 10, float64: 11, bfloat16: 16,
}  # fmt: skip  # TensorProto.DataType
OPSET = 20  # the first one with Gelu
DOMAIN = "minigraph"  # of functions; "" has the standard operators


@dataclass(frozen=True)
class Node:
    """One call of a standard operator, or of a function.

    attrs  ints, floats, texts, tuples of these, arrays, and Bodies of branches and loops
    """

    type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    line: str = ""


@dataclass(frozen=True)
class Function:
    """An operator of minigraph, written in standard operators for one choice of attributes and types."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def operator(self) -> str:
        """The type of operator that it stands for: `tanh` of `tanh` and `tanh.2`."""
        return self.name.partition(".")[0]

    def same_as(self, other: Function) -> bool:
        """Whether both compute the same, in the same words."""
        alike = (self.operator, self.inputs, self.outputs) == (other.operator, other.inputs, other.outputs)
        return alike and same_nodes(self.nodes, other.nodes)


@dataclass(frozen=True)
class Body:
    """What a branch or a loop computes: its inputs, its outputs, and nodes that also read the values around it."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    nodes: tuple[Node, ...]


@dataclass
class Model:
    """A whole file. Sizes of -1 are free."""

    name: str = ""
    inputs: dict[str, TensorType] = field(default_factory=dict)
    outputs: dict[str, TensorType] = field(default_factory=dict)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)


def same_nodes(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    """Whether nodes are equal; their names and lines say nothing."""
    return len(ours) == len(theirs) and all(map(_same_node, ours, theirs))


def _same_node(a: Node, b: Node) -> bool:
    if (a.type, a.domain, a.inputs, a.outputs) != (b.type, b.domain, b.inputs, b.outputs):
        return False
    return a.attrs.keys() == b.attrs.keys() and all(_same_value(v, b.attrs[n]) for n, v in a.attrs.items())


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float):
        return np.float32(a).tobytes() == np.float32(b).tobytes()  # as the format keeps it
    return type(a) is type(b) and a == b
