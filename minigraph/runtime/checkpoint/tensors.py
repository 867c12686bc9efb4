"""Arrays as the bytes of a safetensors file and back, with a hash of each.

Format: https://huggingface.co/docs/safetensors, a length of 8 bytes, a header in JSON, the tensors one
after the other. The header is written here, so that tensors go to the disk from where they lie; files
are read by the safetensors package, which refuses holes, overlaps and whatever else is no such file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from minigraph.errors import ProgramError
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

from .paths import shown

DTYPES = {
    "F64": float64, "F32": float32, "F16": float16, "BF16": bfloat16, "I64": int64, "I32": int32, "I16": int16,
    "I8": int8, "U8": uint8, "BOOL": bool_,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
MARK = "minigraph_save"  # files of one save carry the same one
HEADER_LIMIT = 100_000_000  # bytes, as the safetensors package has it


@dataclass
class Packed:
    """What one file holds: a head, and tensors in the order in which they lie behind it."""

    head: bytes
    tensors: dict[str, np.ndarray]

    def parts(self) -> list[bytes | memoryview]:
        """All bytes in their order."""
        return [self.head, *(_bytes_of(a) for a in self.tensors.values())]

    @property
    def nbytes(self) -> int:
        return len(self.head) + sum(a.nbytes for a in self.tensors.values())

    def record(self) -> dict[str, Any]:
        """What the manifest says of this file: every byte of it is in one of the hashes."""
        return {
            "size": self.nbytes,
            "head": {"size": len(self.head), "sha256": _sha256(self.head)},
            "tensors": {
                name: {"sha256": _sha256(_bytes_of(a)), "dtype": NAMES[a.dtype], "shape": list(a.shape)}
                for name, a in self.tensors.items()
            },
        }


def packed(arrays: Mapping[str, np.ndarray], mark: str) -> Packed:
    """A safetensors file of these arrays; wide types first, so that each tensor lies on a multiple of its size."""
    if METADATA in arrays:
        raise ProgramError(f"a file of weights cannot hold a variable called {METADATA}", hint="give it another name")
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    tensors = {name: np.require(arrays[name], requirements=["C", "A"]) for name in names}
    entries: dict[str, Any] = {METADATA: {MARK: mark}}
    at = 0
    for name, a in tensors.items():
        entries[name] = {"dtype": NAMES[a.dtype], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > HEADER_LIMIT:
        raise ProgramError(f"a header of {len(header)} bytes is more than the {HEADER_LIMIT} of a file of weights")
    return Packed(len(header).to_bytes(8, "little") + header, tensors)


def unpacked(path: str, content: bytes, record: Mapping[str, Any] | None) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays of a file, and the mark of the save that wrote it.

    record  what the manifest says of the file: it is refused unless it is the one that was written
    """
    if record is not None:
        _check_head(path, content, record)
    header = _header(path, content)
    try:
        read = deserialize(content)
        arrays = {name: np.frombuffer(t["data"], DTYPES[t["dtype"]]).reshape(t["shape"]) for name, t in read}
    except (SafetensorError, KeyError, ValueError) as problem:
        raise ProgramError(f"{shown(path)} is no file of weights: {problem}") from None
    if record is not None:
        _check_tensors(path, arrays, record["tensors"])
    metadata = header.get(METADATA, {})
    return arrays, metadata.get(MARK) if isinstance(metadata, dict) else None


def _check_head(path: str, content: bytes, record: Mapping[str, Any]) -> None:
    if len(content) != record["size"]:
        raise ProgramError(
            f"{shown(path)} has {len(content)} bytes, the manifest says {record['size']}", hint=HOW_TO_GO_ON
        )
    head = record["head"]
    if _sha256(memoryview(content)[: head["size"]]) != head["sha256"]:
        raise ProgramError(f"the header of {shown(path)} is not the one that was saved", hint=HOW_TO_GO_ON)


def _check_tensors(path: str, arrays: Mapping[str, np.ndarray], records: Mapping[str, Any]) -> None:
    for name in arrays.keys() | records.keys():
        if name not in arrays or name not in records:
            there, not_there = ("manifest", "file") if name in records else ("file", "manifest")
            raise ProgramError(f"{shown(path)}: {name} is in the {there}, not in the {not_there}", hint=HOW_TO_GO_ON)
    for name, a in arrays.items():
        record = records[name]
        same = record["dtype"] == NAMES[a.dtype] and record["shape"] == list(a.shape)
        if not same or record["sha256"] != _sha256(_bytes_of(a)):
            raise ProgramError(f"{name} in {shown(path)} is not what was saved", hint=HOW_TO_GO_ON)


HOW_TO_GO_ON = "take the file from a backup; verify=False reads it as it is"


def _header(path: str, content: bytes) -> dict[str, Any]:
    """The header of a file, in which no name stands twice."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, HEADER_LIMIT):
        raise ProgramError(f"{shown(path)} is no file of weights: it is shorter than its header")
    try:
        header = json.loads(content[8 : 8 + size], object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as problem:
        raise ProgramError(f"{shown(path)} is no file of weights: {problem}") from None
    if not isinstance(header, dict):
        raise ProgramError(f"{shown(path)} is no file of weights: its header is no object")
    return header


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return fields


def _bytes_of(array: np.ndarray) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)  # a buffer, which the types of NumPy do not say
    return memoryview(flat)


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()
