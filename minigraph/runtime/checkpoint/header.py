"""Header of a safetensors file: which tensors lie where. https://huggingface.co/docs/safetensors

A length of 8 bytes, then JSON, then the tensors, one after the other and nothing between them:

    {"__metadata__": {"minigraph_save": token}, name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.types import (
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

DTYPES = {
    "F64": float64, "F32": float32, "F16": float16, "BF16": bfloat16, "I64": int64, "I32": int32, "I16": int16,
    "I8": int8, "U8": uint8, "BOOL": bool_,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
MARK = "minigraph_save"  # files of one save carry the same one
HEADER_LIMIT = 100_000_000  # bytes, as the safetensors package has it
FIELDS = {"dtype", "shape", "data_offsets"}
LENGTH = 8  # bytes before the header that say how long it is


@dataclass(frozen=True)
class FileLayout:
    """What a header says: the mark of the save, and of each tensor its type, shape and first byte in the file."""

    mark: Any
    tensors: dict[str, tuple[np.dtype, tuple[int, ...], int]]


def header_of(tensors: Mapping[str, np.ndarray], mark: str) -> bytes:
    """Length and header of a file in which these lie in this order."""
    entries: dict[str, Any] = {METADATA: {MARK: mark}}
    at = 0
    for name, a in tensors.items():
        entries[name] = {"dtype": NAMES[a.dtype], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH)
    return len(header).to_bytes(LENGTH, "little") + header


def parsed(header: bytes, size: int) -> FileLayout:
    """What `header` says of a file of `size` bytes; a ValueError unless each byte after it belongs to one tensor."""
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_without_twins)
    except RecursionError as problem:
        raise ValueError(str(problem)) from None
    _require(isinstance(entries, dict), "its header is no object")
    metadata = entries.pop(METADATA, None)
    metadata = {} if metadata is None else metadata
    texts = isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    _require(texts, "its metadata are no texts")
    spans, tensors, start = [], {}, LENGTH + len(header)
    for name, entry in entries.items():
        name.encode()  # half of a surrogate pair is no name
        _require(isinstance(entry, dict) and entry.keys() >= FIELDS, f"{name} lacks a field")
        shape, offsets = entry["shape"], entry["data_offsets"]
        known = isinstance(entry["dtype"], str) and entry["dtype"] in DTYPES
        _require(known, f"{name} has a type of its own: {entry['dtype']}")
        _require(_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2, f"sizes of {name} are none")
        dtype, (begin, end) = np.dtype(DTYPES[entry["dtype"]]), offsets
        _require(end - begin == math.prod(shape) * dtype.itemsize, f"{name} has another size than its shape")
        spans.append((begin, end))
        tensors[name] = dtype, tuple(shape), start + begin
    at = 0
    for begin, end in sorted(spans):
        _require(begin == at, "its tensors overlap, or bytes between them belong to none")
        at = end
    _require(start + at == size, f"it has {size} bytes, its header says {start + at}")
    return FileLayout(metadata.get(MARK), tensors)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _require(condition: bool, fact: str) -> None:
    if not condition:
        raise ValueError(fact)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    _require(len(fields) == len(pairs), "a name stands twice in its header")
    return fields
