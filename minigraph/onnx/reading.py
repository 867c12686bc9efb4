"""A file of ONNX as a Model. Nothing in it is run; sizes are compared with the bytes that are there."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, require, shortened
from minigraph.runtime.checkpoint import storage
from minigraph.runtime.checkpoint.paths import shown
from minigraph.runtime.checkpoint.single import file_path, read_file
from minigraph.types import (
    DType,
    TensorType,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
    normalize_shape,
)

from .model import CODES, OPSET, Body, Function, Model, Node
from .protobuf import package

FIELDS = {float32: "float_data", float64: "double_data", int64: "int64_data"}  # others: int32_data; or raw bytes
DTYPES: Mapping[int, DType] = {code: dtype for dtype, code in CODES.items()}
OPSETS = range(13, OPSET + 4)  # of which the operators that are read mean the same
STANDARD = ("", "ai.onnx")
DEEPEST = 16  # bodies in bodies


def read(path: Any) -> Model:
    """The Model in a file; a ProgramError says what cannot be read."""
    place, onnx = file_path(path), package()
    content = read_file(place)
    try:
        message = onnx.ModelProto.FromString(content)
    except Exception as problem:  # google.protobuf's own, which are no package of ours
        raise ProgramError(f"it is no ONNX file: {shortened(str(problem))}") from None
    return _Reading(os.path.dirname(place) or ".").model(message)


class _Reading:
    """Messages to plain data.

    folder  where the file lies: external data must lie there, too
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def model(self, message: Any) -> Model:
        graph = message.graph
        require(message.HasField("graph"), "the file has no graph", ProgramError)
        for opset in message.opset_import:
            if opset.domain in STANDARD:
                known = f"opset {opset.version} is not one of {OPSETS[0]} to {OPSETS[-1]}"
                require(opset.version in OPSETS, known, ProgramError, "convert the file with onnx.version_converter")
        require(not graph.sparse_initializer, "sparse tensors are not known here", ProgramError)
        arrays = {text(t.name): self.array(t) for t in graph.initializer}
        inputs = self.types(v for v in graph.input if v.name not in arrays)
        made = Model(text(graph.name), inputs, self.types(graph.output), arrays)
        made.nodes = [self.node(n) for n in graph.node]
        for f in message.functions:
            nodes = tuple(self.node(n) for n in f.node)
            inputs, outputs, attributes = (tuple(map(text, some)) for some in (f.input, f.output, f.attribute))
            made.functions[f"{text(f.domain)}::{text(f.name)}"] = Function(
                text(f.name), inputs, outputs, attributes, nodes
            )
        return made

    def node(self, n: Any, depth: int = 0) -> Node:
        attrs = {text(a.name): self.attribute(a, depth) for a in n.attribute}
        domain = "" if n.domain in STANDARD else text(n.domain)
        inputs, outputs = (tuple(map(text, names)) for names in (n.input, n.output))
        return Node(text(n.op_type), inputs, outputs, attrs, domain, text(n.name))

    def attribute(self, a: Any, depth: int) -> Any:
        """The value of an attribute; `types` are those of AttributeProto."""
        require(not a.ref_attr_name, f"attribute {text(a.name)} refers to one of a function", ProgramError)
        kind = a.AttributeType.Name(a.type)
        if kind in ("INT", "FLOAT"):
            return a.i if kind == "INT" else a.f
        if kind in ("INTS", "FLOATS"):
            return tuple(a.ints if kind == "INTS" else a.floats)
        if kind in ("STRING", "STRINGS"):
            texts = tuple(text(s) for s in ([a.s] if kind == "STRING" else a.strings))
            return texts[0] if kind == "STRING" else texts
        if kind == "TENSOR":
            return self.array(a.t)
        if kind == "GRAPH" and depth < DEEPEST:
            nodes = tuple(self.node(n, depth + 1) for n in a.g.node)
            return Body(self.types(a.g.input), self.types(a.g.output), nodes)
        raise ProgramError(f"attribute {text(a.name)} is a {kind.lower()}, which is not known here")

    def types(self, values: Iterable[Any]) -> dict[str, TensorType]:
        made = {}
        for v in values:
            t = v.type.tensor_type
            is_known = v.type.HasField("tensor_type") and t.elem_type in DTYPES and t.HasField("shape")
            require(is_known, f"{text(v.name)} is no tensor of a known type and rank", ProgramError)
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in t.shape.dim]
            made[text(v.name)] = TensorType(normalize_shape(sizes), DTYPES[t.elem_type])
        return made

    def array(self, t: Any) -> np.ndarray:
        """The numbers of a tensor."""
        name = shortened(text(t.name))
        require(t.data_type in DTYPES, f"tensor {name} has a data type that is not known here", ProgramError)
        require(all(size >= 0 for size in t.dims), f"tensor {name} has a negative size", ProgramError)
        dtype, count = DTYPES[t.data_type], math.prod(t.dims)
        if t.data_location == t.EXTERNAL:
            raw = self._external(t, name, count * dtype.itemsize)
        elif t.HasField("raw_data"):
            raw = t.raw_data
        else:
            return _listed(t, name, dtype, count)
        fits = f"tensor {name} has {len(raw)} bytes, its sizes say {count * dtype.itemsize}"
        require(len(raw) == count * dtype.itemsize, fits, ProgramError)
        return np.frombuffer(raw, dtype).reshape(tuple(t.dims)).copy()

    def _external(self, t: Any, name: str, size: int) -> bytes:
        """Bytes of another file, in the folder of this one or inside of it."""
        facts = {entry.key: entry.value for entry in t.external_data}
        place, numbers = facts.get("location", ""), (facts.get("offset", "0"), facts.get("length", str(size)))
        folder = os.path.realpath(self.folder)
        is_relative = "\0" not in place and not os.path.isabs(place)
        path = os.path.realpath(os.path.join(folder, place)) if is_relative else ""
        is_inside = path.startswith(folder + os.sep)
        require(is_inside, f"tensor {name} lies outside the folder of the file: {shortened(place)!r}", ProgramError)
        are_numbers = all(n.isdecimal() and len(n) < 20 for n in numbers)
        require(are_numbers, f"tensor {name} has no place in {shown(place)}", ProgramError)
        offset, length = map(int, numbers)
        require(length == size, f"tensor {name} has {length} bytes, its sizes say {size}", ProgramError)
        try:
            descriptor = storage.open_file(path)
            try:
                there = storage.size_of(descriptor)
                require(offset + size <= there, f"tensor {name} ends behind the end of {shown(place)}", ProgramError)
                content = bytearray(size)
                storage.read_at(descriptor, offset, memoryview(content))
                return bytes(content)
            finally:
                storage.close(descriptor)
        except OSError as problem:
            raise storage.problem_with("read", path, problem) from None


def _listed(t: Any, name: str, dtype: DType, count: int) -> np.ndarray:
    """The numbers of a tensor that are no raw bytes."""
    numbers = getattr(t, FIELDS.get(dtype, "int32_data"))
    require(len(numbers) == count, f"tensor {name} has {len(numbers)} numbers, its sizes say {count}", ProgramError)
    if dtype in (float16, bfloat16):
        return (np.array(numbers, np.int64) & 0xFFFF).astype(np.uint16).view(dtype).reshape(tuple(t.dims))
    return np.array(numbers).astype(dtype).reshape(tuple(t.dims))


def text(value: Any) -> str:
    """A text of a message, which must be one: protobuf hands over others as bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ProgramError("a text of the file is no UTF-8") from None
    return value
