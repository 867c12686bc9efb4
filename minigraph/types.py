"""Types: data types, tensor types such as `f32[64,128]`, and places.

A data type is a NumPy dtype (bfloat16 comes from ml_dtypes), so `var.dtype == "float32"` and
`var.dtype == np.float32` both hold. A size of -1 is known only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from .errors import AttrError, require, shortened
from .errors.kinds import AXIS, BROADCAST, NO_DTYPE, NO_SHAPE, WRONG_OBJECT

DType = np.dtype

float64, float32, float16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
bfloat16 = np.dtype(ml_dtypes.bfloat16)
int64, int32, int16, int8 = np.dtype("int64"), np.dtype("int32"), np.dtype("int16"), np.dtype("int8")
uint8, bool_ = np.dtype("uint8"), np.dtype("bool")

SHORT_NAMES = {
    float64: "f64", float32: "f32", float16: "f16", bfloat16: "bf16",
    int64: "i64", int32: "i32", int16: "i16", int8: "i8", uint8: "u8", bool_: "bool",
}  # fmt: skip
DTYPES = {short: dtype for dtype, short in SHORT_NAMES.items()}
FLOATS = frozenset({float64, float32, float16, bfloat16})
INTS = frozenset({int64, int32, int16, int8, uint8})


def as_dtype(dtype: Any) -> DType:
    """The supported data type that `dtype` (a name, a NumPy type or a dtype) stands for."""
    if isinstance(dtype, np.dtype) and dtype in SHORT_NAMES:
        return dtype
    try:
        if dtype is None:  # float64 to NumPy
            raise TypeError
        meant = DTYPES[dtype] if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype)
    except TypeError:
        raise NO_DTYPE(f"{dtype!r} is not a data type", hint=f"known: {_known_dtypes()}") from None
    if meant not in SHORT_NAMES:
        meant = meant.newbyteorder("=")
        if meant not in SHORT_NAMES:
            raise NO_DTYPE(f"data type {meant} is not supported", hint=f"supported: {_known_dtypes()}")
    return meant


def same(a: Any, b: Any) -> bool:
    """a == b for values of attributes; to NumPy None is a name of float64: `np.dtype("float64") == None`."""
    return a is b or (a is not None and b is not None and bool(a == b))


@cache
def _known_dtypes() -> str:
    return ", ".join(d.name for d in SHORT_NAMES)


NO_ARRAY = (ValueError, TypeError, RuntimeError, BufferError)  # what NumPy and other frameworks raise of such values


def as_numpy(value: Any) -> np.ndarray:
    """A value as a NumPy array; a tensor of bfloat16, which NumPy cannot take, by its float32 form."""
    if isinstance(value, np.ma.MaskedArray):  # what the mask hides would be taken for values
        raise TypeError("it is masked; give its filled(...) values")
    foreign = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
    convert: Callable[[Any], np.ndarray] = np.from_dlpack if foreign else np.asarray
    try:
        return convert(value)
    except (TypeError, RuntimeError, BufferError):
        if str(getattr(value, "dtype", "")).rpartition(".")[2] != "bfloat16" or not hasattr(value, "float"):
            raise
    wide = convert(value.float()).astype(np.float32, copy=False)  # the same number, with 16 zeros behind its bits
    return (wide.view(np.uint32) >> 16).astype(np.uint16).view(bfloat16)


def in_type(array: np.ndarray, dtype: DType) -> np.ndarray | None:
    """The numbers of an array in another type; None where that cannot hold them. Floats round, integers do not."""
    with np.errstate(over="ignore", invalid="ignore"):
        typed = array.astype(dtype)
    if array.dtype == dtype:
        return typed
    fits = np.isfinite(typed) == np.isfinite(array) if dtype in FLOATS else typed == array
    return typed if fits.all() else None


def in_one_piece(array: np.ndarray) -> np.ndarray:
    """The array as its bytes are written elsewhere: in C order, aligned, in native byte order and writeable.

    Itself where it is that already, else a copy.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.require(np.asarray(array), requirements=["C", "A", "W"])


def why_no_array(value: Any, problem: Exception) -> str:
    """The reason, in words, why `as_numpy` raised one of NO_ARRAY for a value."""
    lists = isinstance(value, (list, tuple))
    why = "lists in it differ in length" if lists else f"{type(value).__name__}: {shortened(str(problem))}"
    return f"no array: {why}"


@dataclass(frozen=True)
class TensorType:
    """Shape and data type: `TensorType((64, -1), float32)` prints as `f32[64,-1]`."""

    shape: tuple[int, ...]
    dtype: DType

    @cached_property
    def _hash(self) -> int:
        return hash((tuple([getattr(size, "node", size) for size in self.shape]), self.dtype))  # symbolic.py: node

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:  # as most types that are compared: see `_kept`
            return True
        if not isinstance(other, TensorType):
            return NotImplemented
        return self.shape == other.shape and self.dtype == other.dtype

    @property
    def may_be_kept(self) -> bool:
        """Whether a cache of this process may have it as a key: not with symbols, which stand for other sizes, too."""
        return not any(hasattr(size, "node") for size in self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True where every size is known."""
        return -1 not in self.shape

    @property
    def size(self) -> int:
        """Number of elements, -1 where a size is unknown."""
        return math.prod(self.shape) if self.is_static else -1

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize if self.is_static else -1

    @cached_property
    def least_bytes(self) -> int:
        """Bytes where a size that is not known is 1."""
        return math.prod([max(size, 1) if size else 0 for size in self.shape]) * self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: Any) -> TensorType:
        return TensorType(self.shape, as_dtype(dtype))

    def accepts(self, other: TensorType) -> bool:
        """True where a value of type `other` may be put into a variable of this type."""
        own, given = self.shape, other.shape
        if own == given or len(own) != len(given):
            return own == given and self.dtype == other.dtype
        for a, b in zip(own, given, strict=True):
            if a not in (b, -1) and b != -1:
                return False
        return self.dtype == other.dtype

    def __str__(self) -> str:
        return f"{SHORT_NAMES[self.dtype]}[{','.join(map(str, self.shape))}]"


def tensor_type(shape: Iterable[Any], dtype: Any) -> TensorType:
    """A TensorType from a user's shape: ints, None or -1 for a size known at run time."""
    return _kept(normalize_shape(shape), as_dtype(dtype))


def type_of(text: str) -> TensorType:
    """The type that "f32[4,-1]" stands for."""
    dtype, _, sizes = text.removesuffix("]").partition("[")
    known = dtype in DTYPES and text.endswith("]") and all(_is_size(s) for s in sizes.split(",") if sizes)
    require(known, f"{text!r} is no type such as f32[4,-1]", AttrError)
    return tensor_type([int(s) for s in sizes.split(",")] if sizes else [], DTYPES[dtype])


def _is_size(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 20


@lru_cache(maxsize=4096)
def _kept(shape: tuple[int, ...], dtype: DType) -> TensorType:
    """The same object for all variables of a type, so that comparing two types is mostly comparing two addresses."""
    return TensorType(shape, dtype)


def normalize_shape(shape: Any) -> tuple[int, ...]:
    """A tuple of ints >= -1 from a user's shape; None becomes -1."""
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    require(isinstance(shape, Iterable), f"a shape is a list of sizes, not {shape!r}", NO_SHAPE)
    sizes = []
    for size in shape:
        if size is None:
            size = -1
        require(
            isinstance(size, (int, np.integer)) and not isinstance(size, bool),
            f"a size is an int, None or -1, not {size!r}", WRONG_OBJECT,
        )  # fmt: skip
        require(size >= -1, f"size {size} is negative", NO_SHAPE)
        sizes.append(int(size))
    fits = math.prod(max(s, 1) for s in sizes) < 2**63
    require(fits, f"shape {sizes} has more than 2^63 elements", NO_SHAPE)
    return tuple(sizes)


def normalize_axis(axis: int, ndim: int, what: str = "axis") -> int:
    """`axis` counted from the front; it must lie in [-ndim, ndim)."""
    require(
        -ndim <= axis < ndim,
        f"{what} {axis} is out of range for rank {ndim}"
        + (f", it must lie in [{-ndim}, {ndim})" if ndim else ", a scalar has no axes"),
        AXIS,
    )
    return axis % ndim


def normalize_axes(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """All axes for None, else each counted from the front; none may stand twice."""
    if axes is None:
        return tuple(range(ndim))
    from_front = tuple(normalize_axis(a, ndim) for a in axes)
    require(len(set(from_front)) == len(from_front), f"axes {list(axes)} name one axis twice", AXIS)
    return from_front


def broadcast_shapes(*shapes: tuple[int, ...], names: Sequence[str] = "XY", last: int = -1) -> tuple[int, ...]:
    """The NumPy broadcast of shapes; an unknown size meets a known one as that size.

    names  of the operands, for errors; those that have none are numbered
    last   the axis that the last size is of, for errors
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max((len(s) for s in shapes), default=0)
    result: list[int] = []
    named = [*names, *(f"operand {i}" for i in range(len(names), len(shapes)))]
    for axis in range(-rank, 0):
        size, owner = 1, ""
        for name, shape in zip(named, shapes, strict=False):
            other = shape[axis] if -axis <= len(shape) else 1
            if size in (1, -1) and other != 1:
                size, owner = (other, name) if other != -1 or size == 1 else (size, owner)
            elif other not in (1, -1, size):
                raise BROADCAST(f"cannot broadcast axis {axis + 1 + last}: {owner} has {size}, {name} has {other}")
        result.append(size)
    return tuple(result)


@dataclass(frozen=True)
class CPUPlace:
    """Arrays live in host memory and NumPy computes."""

    def __str__(self) -> str:
        return "CPUPlace"


@dataclass(frozen=True, init=False)
class CUDAPlace:
    """Arrays live on GPU `device_id` and CUDA kernels compute."""

    device_id: int = 0

    def __init__(self, device_id: int = 0) -> None:
        fits = isinstance(device_id, int) and not isinstance(device_id, bool) and device_id >= 0
        require(fits, f"device_id must be an int >= 0, is {device_id!r}", AttrError)
        object.__setattr__(self, "device_id", device_id)

    def __str__(self) -> str:
        return f"CUDAPlace({self.device_id})"
