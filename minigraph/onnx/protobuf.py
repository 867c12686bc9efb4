"""A Model as a file of ONNX: the only place that knows its package and its messages."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from minigraph.errors import PlaceError, ProgramError
from minigraph.runtime.checkpoint.single import file_path, write_file
from minigraph.runtime.version import VERSION
from minigraph.types import TensorType, in_one_piece

from .model import CODES, DOMAIN, OPSET, Body, Function, Model, Node

IR_VERSION = 9
LARGEST = 2**31 - 2**24  # bytes of a message, less a little; weights beyond lie in a file beside it
ROOM = 2**23  # for nodes and names
PAGE = 4096  # where tensors begin in that file, so that it can be mapped
SMALLEST = 1024  # bytes of a tensor that goes there


def package() -> ModuleType:
    """The package onnx; a PlaceError where it is not installed."""
    try:
        import onnx
    except ImportError:
        raise PlaceError("the package onnx is not installed", hint='pip install "minigraph[onnx]"') from None
    return onnx


def write(model: Model, path: Any, external: bool | None = None) -> None:
    """Put a Model into a file.

    external  weights lie in a file beside it, `path`.<hash of them>.data; None: only where the file would pass 2 GB
    """
    place, onnx = file_path(path), package()
    arrays = {name: in_one_piece(array) for name, array in model.initializers.items()}
    apart: list[np.ndarray] = []
    if external or (external is None and sum(a.nbytes for a in arrays.values()) > LARGEST):
        apart = [a for a in arrays.values() if a.nbytes >= SMALLEST]
    beside: dict[str, Iterable[bytes | memoryview]] = {_ending(apart): _pages(apart)} if apart else {}
    location = os.path.basename(place) + "".join(beside)
    message = _Messages(onnx).model(model, arrays, {id(a) for a in apart}, location)
    if message.ByteSize() > LARGEST + ROOM:
        raise ProgramError("the file would have more than 2 GB", hint="external_data=True")
    write_file(place, [message.SerializeToString()], beside)


def _ending(arrays: Iterable[np.ndarray]) -> str:
    """Other weights lie in another file, so that those that a model names stay until another model is there."""
    content = hashlib.sha256()
    for page in _pages(arrays):
        content.update(page)
    return f".{content.hexdigest()[:16]}.data"


def _pages(arrays: Iterable[np.ndarray]) -> Iterable[bytes | memoryview]:
    for array in arrays:
        yield memoryview(array.reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]
        yield b"\0" * (-array.nbytes % PAGE)


class _Messages:
    """What a Model is made of, as messages."""

    def __init__(self, onnx: ModuleType) -> None:
        self.onnx, self.helper = onnx, onnx.helper

    def model(self, model: Model, arrays: Mapping[str, np.ndarray], apart: set[int], location: str) -> Any:
        tensors, offset = [], 0
        for name, array in arrays.items():
            if id(array) in apart:
                tensors.append(self._external(name, array, location, offset))
                offset += array.nbytes + -array.nbytes % PAGE
            else:
                tensors.append(self.tensor(name, array))
        inputs, outputs = self._values(model.inputs), self._values(model.outputs)
        graph = self.helper.make_graph([self.node(n) for n in model.nodes], model.name, inputs, outputs, tensors)
        return self.helper.make_model(
            graph, functions=[self._function(f) for f in model.functions.values()], ir_version=IR_VERSION,
            opset_imports=[self._opset("", OPSET), self._opset(DOMAIN, 1)], producer_name="minigraph",
            producer_version=VERSION,
        )  # fmt: skip

    def node(self, node: Node) -> Any:
        made = self.helper.make_node(
            node.type, node.inputs, node.outputs, name=node.name or None, doc_string=node.line or None,
            domain=node.domain,
        )  # fmt: skip
        made.attribute.extend(self._attribute(name, value) for name, value in node.attrs.items())
        return made

    def tensor(self, name: str, array: np.ndarray) -> Any:
        raw = np.ascontiguousarray(array).tobytes()
        return self.onnx.TensorProto(name=name, dims=array.shape, data_type=CODES[array.dtype], raw_data=raw)

    def _external(self, name: str, array: np.ndarray, location: str, offset: int) -> Any:
        made = self.onnx.TensorProto(name=name, dims=array.shape, data_type=CODES[array.dtype])
        made.data_location = self.onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(array.nbytes))):
            made.external_data.add(key=key, value=value)
        return made

    def _attribute(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = self.tensor("", value)
        elif isinstance(value, Body):
            nodes = [self.node(n) for n in value.nodes]
            value = self.helper.make_graph(nodes, name, self._values(value.inputs), self._values(value.outputs))
        return self.helper.make_attribute(name, value)

    def _values(self, types: Mapping[str, TensorType]) -> list[Any]:
        """Each free size has a name of its own: two that have one name would have to be equal."""
        return [
            self.helper.make_tensor_value_info(
                name, CODES[t.dtype], [f"{name}.{axis}" if size < 0 else size for axis, size in enumerate(t.shape)]
            )
            for name, t in types.items()
        ]

    def _function(self, function: Function) -> Any:
        return self.helper.make_function(
            DOMAIN, function.name, function.inputs, function.outputs, [self.node(n) for n in function.nodes],
            [self._opset("", OPSET)], function.attributes,
        )  # fmt: skip

    def _opset(self, domain: str, version: int) -> Any:
        return self.helper.make_opsetid(domain, version)
