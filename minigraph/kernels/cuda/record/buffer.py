"""Buffer: an array on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

CUDA_TYPES = {  # one word each, so that T(0) is a conversion
    float64: "double", float32: "float", float16: "f16", bfloat16: "bf16", int64: "i64",
    int32: "int", int16: "short", int8: "i8", uint8: "u8", bool_: "bool",
}  # fmt: skip


class Buffer:
    """Shape and type of an array whose address `ptr` is filled in when memory is laid out.

    Rows lie one after the other (C order), but where `steps` says otherwise: elements from one index to the next along
    each axis. Only kernels that ask for `strides` are given such a one. `ptr` is a multiple of `alignment` bytes.
    """

    __slots__ = ("alignment", "dtype", "offset", "owner", "ptr", "shape", "steps")

    def __init__(self, shape: Sequence[int], dtype: np.dtype, ptr: int | None = None, alignment: int = 256) -> None:
        self.shape, self.ptr, self.alignment = tuple(shape), ptr, alignment
        self.dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        self.owner: Buffer | None = None  # the buffer whose memory this one shows
        self.offset = 0
        self.steps: tuple[int, ...] | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next along each axis."""
        return rows_apart(self.shape) if self.steps is None else self.steps

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Where the first element lies; known once memory is laid out."""
        if self.owner is not None:
            return self.owner.address + self.offset
        assert self.ptr is not None, f"{self} has no address yet"
        return self.ptr

    def view(self, shape: Sequence[int], dtype: np.dtype | None = None, offset: int = 0) -> Buffer:
        """The memory from byte `offset` on, seen with another shape and type."""
        dtype = np.dtype(dtype) if dtype is not None else self.dtype
        alignment = math.gcd(self.alignment, offset) if offset else self.alignment
        shown = Buffer(shape, dtype, alignment=alignment)
        shown.owner, shown.offset = self, offset
        assert self.steps is None, f"{self} does not lie in one piece"
        assert offset + shown.nbytes <= self.nbytes, f"{shown} exceeds {self}"
        return shown

    def spread(self, shape: Sequence[int], strides: Sequence[int], start: int = 0) -> Buffer:
        """Elements of this one from number `start` on, so many steps apart along each axis.

        C order in one piece is an ordinary view; the elements of a Buffer that has strides are counted where they lie.
        """
        offset = start * self.dtype.itemsize
        shown = Buffer(shape, self.dtype, alignment=math.gcd(self.alignment, offset) if offset else self.alignment)
        shown.owner, shown.offset = self, offset
        shown.steps = None if in_one_piece(shape, strides) else tuple(strides)
        return shown

    def __repr__(self) -> str:
        return f"<Buffer {CUDA_TYPES[self.dtype]}{list(self.shape)}>"


def rows_apart(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis of an array in C order."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(steps[::-1])


def in_one_piece(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these strides are those of C order; axes of one index have none."""
    pairs = zip(shape, strides, rows_apart(shape), strict=True)
    return 0 in shape or all(stride == own for extent, stride, own in pairs if extent > 1)


def owner(buffer: Buffer) -> Buffer:
    """The buffer whose memory this one shows."""
    while buffer.owner is not None:
        buffer = buffer.owner
    return buffer


def begins(buffer: Buffer) -> int:
    """The number of its first element in the buffer whose memory it shows, which has the same type."""
    root, offset = root_and_offset(buffer)
    return offset // root.dtype.itemsize


def root_and_offset(buffer: Buffer) -> tuple[Buffer, int]:
    """The buffer whose memory this one shows, and the bytes of it that lie before this one."""
    offset = 0
    while buffer.owner is not None:
        buffer, offset = buffer.owner, offset + buffer.offset
    return buffer, offset


def alignment(address: int) -> int:
    """The power of two, at most 256, that an address is a multiple of."""
    return min(address & -address, 256) or 256


def lies_as(buffer: Buffer) -> int:
    """The alignment of a buffer whose owner lies as well as any."""
    return alignment(root_and_offset(buffer)[1])


class Words:
    """Words of 8 bytes, among them addresses of buffers, which are known once memory is laid out.

    An argument of a kernel by value (a struct), or what a table in device memory holds.
    """

    def __init__(self, words: Sequence[Buffer | int]) -> None:
        self.words = list(words)
        self.buffers = [w for w in self.words if isinstance(w, Buffer)]

    @property
    def nbytes(self) -> int:
        return 8 * len(self.words)

    @property
    def facts(self) -> list[Any]:
        """What tells it from others, besides where its buffers lie."""
        return self.words

    def elsewhere(self, place: Callable[[Buffer], Buffer]) -> Words:
        """The same with `place(buffer)` for each of its buffers."""
        moved = object.__new__(type(self))
        vars(moved).update(vars(self))
        moved.words = [place(w) if isinstance(w, Buffer) else w for w in self.words]
        moved.buffers = [w for w in moved.words if isinstance(w, Buffer)]
        return moved

    def packed(self) -> np.ndarray:
        """The words as an array of uint64."""
        return np.array([
            (w.ptr if w.owner is None else w.address) if isinstance(w, Buffer) else w for w in self.words
        ], np.uint64)  # fmt: skip


class Arena:
    """Buffers side by side in one: they become views of `base`.

    The base of buffers that a Scope owns has the address 0 until somebody brought their arrays together.
    """

    def __init__(self, members: Sequence[Buffer], offsets: Sequence[int], nbytes: int, outside: bool) -> None:
        self.members, self.offsets, self.outside = list(members), list(offsets), outside
        self.base = Buffer((nbytes,), uint8, ptr=0 if outside else None)
        for member, offset in zip(members, offsets, strict=True):
            member.owner, member.offset = self.base, offset


class ConstantTable(Buffer):
    """The buffer of a Table without words, which can be written before any address is known."""

    __slots__ = ("table",)
    table: Table


class Table:
    """Words and constant arrays in device memory, written when addresses are known, read by every run."""

    def __init__(self, words: Words, arrays: Sequence[np.ndarray]) -> None:
        self.words, self.arrays = words, [np.ascontiguousarray(a) for a in arrays]
        nbytes = words.nbytes + sum(-(-a.nbytes // 8) * 8 for a in self.arrays)
        self.buffer = Buffer((nbytes,), uint8) if words.words else ConstantTable((nbytes,), uint8)
        if isinstance(self.buffer, ConstantTable):
            self.buffer.table = self
        self.memory: object = None  # whoever holds the bytes

    def parts(self) -> list[Buffer]:
        """The words, then each array, as buffers."""
        buffers, at = [self.buffer.view((len(self.words.words),), int64)], self.words.nbytes
        for a in self.arrays:
            buffers.append(self.buffer.view((a.size,), a.dtype, at))
            at += -(-a.nbytes // 8) * 8
        return buffers

    def write(self, runtime: Any) -> None:
        """Put all into new memory of the runtime; what was bound to the memory before goes on reading that."""
        self.memory = memory = runtime.allocate(self.buffer.nbytes)
        self.buffer.ptr = memory.data.ptr
        runtime.upload(self.packed(), self.buffer)

    def packed(self) -> np.ndarray:
        """All bytes."""
        whole, at = np.zeros(self.buffer.size, np.uint8), self.words.nbytes
        whole[:at] = self.words.packed().view(np.uint8)
        for a in self.arrays:
            whole[at : at + a.nbytes] = a.reshape(-1).view(np.uint8)
            at += -(-a.nbytes // 8) * 8
        return whole
