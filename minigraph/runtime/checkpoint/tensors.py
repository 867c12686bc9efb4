"""Arrays as the bytes of a safetensors file and back, with a hash of each.

Tensors go to the disk from where they lie, and come from it to where they stay: each byte is copied
once and hashed once. header.py says what a file holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.errors.kinds import DAMAGED, NAME, NO_NUMBERS, no_memory
from minigraph.kernels.parallel import for_each

from . import storage
from .foreign import PREFIX, foreign
from .header import HEADER_LIMIT, LENGTH, METADATA, NAMES, FileLayout, header_of, parsed
from .paths import shown

HOW_TO_GO_ON = "take the file from a backup; verify=False reads it as it is"


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
        hashes = _hashes(self.tensors)
        return {
            "size": self.nbytes,
            "head": {"size": len(self.head), "sha256": _sha256(self.head)},
            "tensors": {
                name: {"sha256": hashes[name], "dtype": NAMES[a.dtype], "shape": list(a.shape)}
                for name, a in self.tensors.items()
            },
        }


def packed(arrays: Mapping[str, np.ndarray], mark: str) -> Packed:
    """A safetensors file of these arrays; wide types first, so that each tensor lies on a multiple of its size.

    Errors: of names and types that `read` would refuse.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    tensors = {name: _storable(name, arrays[name]) for name in names}
    head = header_of(tensors, mark)
    if len(head) > LENGTH + HEADER_LIMIT:
        raise ProgramError(f"a header of {len(head)} bytes is more than the {HEADER_LIMIT} of a file of weights")
    return Packed(head, tensors)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    """An array in the layout of a file."""
    if name == METADATA or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise NAME(f"a file of weights cannot hold a variable called {shown(name)}", hint="give it another name")
    native = array.dtype.newbyteorder("=")
    if native not in NAMES:
        types = ", ".join(str(t) for t in NAMES)
        raise NO_NUMBERS(f"{name} is {array.dtype}; a file of weights holds {types}", hint="cast it to one of these")
    return np.require(array, native, ["C", "A"])


def read(path: str, descriptor: int, record: Mapping[str, Any] | None) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays of an open file, and the mark of the save that wrote it.

    record  what the manifest says of the file: it is refused unless it is the one that was written
    Errors: ProgramError, OSError where the system cannot read.
    """
    size = storage.size_of(descriptor)
    if record is not None:
        _check_head(path, descriptor, size, record)
    try:
        layout = _layout(descriptor, size)
        arrays = _rooms(layout)
    except ValueError as problem:
        why = foreign(_content(descriptor, 0, min(PREFIX, size)))
        raise DAMAGED(f"{shown(path)} is {why[0]}" if why else f"{shown(path)} is no file of weights: {problem}",
                           hint=why[1] if why else None) from None  # fmt: skip
    for name, (_, _, at) in layout.tensors.items():
        storage.read_at(descriptor, at, _bytes_of(arrays[name]))
    if record is not None:
        _check_tensors(path, arrays, record["tensors"])
    return arrays, layout.mark


def unpacked(content: bytes, what: str) -> dict[str, np.ndarray]:
    """The arrays in the bytes of a safetensors file; a ProgramError that says `what` they should be."""
    size, view = len(content), memoryview(content)
    try:
        header_size = int.from_bytes(view[:LENGTH], "little")
        if size < LENGTH or header_size > min(size - LENGTH, HEADER_LIMIT):
            raise ValueError("they are shorter than their header")
        layout = parsed(content[LENGTH : LENGTH + header_size], size)
    except ValueError as problem:
        why = foreign(content[:PREFIX])
        raise DAMAGED(f"{what} are {why[0]}" if why else f"{what} are no weights: {problem}",
                           hint=why[1] if why else None) from None  # fmt: skip
    arrays = _rooms(layout)
    for name, (_, _, at) in layout.tensors.items():
        _bytes_of(arrays[name])[:] = view[at : at + arrays[name].nbytes]
    return arrays


def _rooms(layout: FileLayout) -> dict[str, np.ndarray]:
    """An array for each tensor, with undefined content."""
    arrays = {}
    for name, (dtype, shape, _) in layout.tensors.items():
        try:
            arrays[name] = np.empty(shape, dtype)
        except MemoryError as problem:
            raise no_memory(name, problem) from problem
    return arrays


def _layout(descriptor: int, size: int) -> FileLayout:
    """What the header of an open file says; a ValueError where it is no file of weights."""
    length = _content(descriptor, 0, min(LENGTH, size))
    header_size = int.from_bytes(length, "little")
    if size < LENGTH or header_size > min(size - LENGTH, HEADER_LIMIT):
        raise ValueError("it is shorter than its header")
    return parsed(_content(descriptor, LENGTH, header_size), size)


def _content(descriptor: int, at: int, size: int) -> bytes:
    into = bytearray(size)
    storage.read_at(descriptor, at, memoryview(into))
    return bytes(into)


def _check_head(path: str, descriptor: int, size: int, record: Mapping[str, Any]) -> None:
    if size != record["size"]:
        raise DAMAGED(f"{shown(path)} has {size} bytes, the manifest says {record['size']}", hint=HOW_TO_GO_ON)
    head = record["head"]
    if head["size"] > size or _sha256(_content(descriptor, 0, head["size"])) != head["sha256"]:
        raise DAMAGED(f"the header of {shown(path)} is not the one that was saved", hint=HOW_TO_GO_ON)


def _check_tensors(path: str, arrays: Mapping[str, np.ndarray], records: Mapping[str, Any]) -> None:
    for name in arrays.keys() | records.keys():
        if name not in arrays or name not in records:
            there, not_there = ("manifest", "file") if name in records else ("file", "manifest")
            raise DAMAGED(f"{shown(path)}: {name} is in the {there}, not in the {not_there}", hint=HOW_TO_GO_ON)
    hashes = _hashes(arrays)
    for name, a in arrays.items():
        record = records[name]
        same = record["dtype"] == NAMES[a.dtype] and record["shape"] == list(a.shape)
        if not same or record["sha256"] != hashes[name]:
            raise DAMAGED(f"{name} in {shown(path)} is not what was saved", hint=HOW_TO_GO_ON)


def _hashes(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The SHA-256 of each array; threads share them."""
    hashes: dict[str, str] = {}
    for_each(
        list(arrays), lambda name: hashes.update({name: _sha256(_bytes_of(arrays[name]))}),
        cost=lambda name: 1 + arrays[name].nbytes,
    )  # fmt: skip
    return hashes


def _bytes_of(array: np.ndarray) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)  # a buffer, which the types of NumPy do not say
    return memoryview(flat)


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()
