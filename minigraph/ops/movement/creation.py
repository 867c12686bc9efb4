"""Operators that make values from nothing or pass them on: constants, copies, sums of gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import COUNT, MIXED_TYPES, UNKNOWN_SIZE
from minigraph.opdef import Arrays, DTypeAttr, Ints, Number, Numbers, op
from minigraph.ops.elementwise.elementwise import destination
from minigraph.types import INTS, TensorType, float32, int64, normalize_axes, normalize_shape


def require_fits(value: Number, dtype: np.dtype, what: str = "value") -> None:
    """An int type holds whole numbers within its bounds."""
    if dtype in INTS:
        info = np.iinfo(dtype)
        whole = isinstance(value, int) or value.is_integer()
        require(whole and info.min <= value <= info.max, f"{what} {value} is no {dtype}", AttrError)


@op(traits={"nondifferentiable", "uniform"}, gpu="movement.creation")
def fill_constant(*, shape: Ints = (), value: Number = 0.0, dtype: DTypeAttr = float32, out=None):
    """An array of the given shape with every element equal to `value`."""
    return _filled(shape, value, dtype, out)


def _filled(shape: tuple[int, ...], value: Number, dtype: np.dtype, out: Any) -> np.ndarray:
    Out = np.empty(shape, dtype) if out is None or out[0] is None else out[0]
    Out.fill(value)
    return Out


@fill_constant.infer
def _(*, shape, value, dtype):
    known = -1 not in normalize_shape(shape)
    require(known, f"every size of a constant must be known, got {list(shape)}", UNKNOWN_SIZE)
    require_fits(value, dtype)
    return TensorType(shape, dtype)


@fill_constant.samples
def _(rng):
    yield (), {"shape": (2, 3), "value": 1.5}
    yield (), {"shape": (), "value": 7, "dtype": "int64"}
    yield (), {"shape": (0, 2), "value": True, "dtype": "bool"}


@op(traits={"nondifferentiable", "uniform", "pointwise"}, no_need_buffer={"X"}, cuda="value", gpu="movement.creation")
def fill_any_like(X, *, value: Number = 0.0, dtype: DTypeAttr | None = None, out=None):
    """An array shaped like X with every element equal to `value`; X's type unless dtype is given."""
    return _filled(X.shape, value, dtype or X.dtype, out)


@fill_any_like.infer
def _(X, *, value, dtype):
    require_fits(value, dtype or X.dtype)
    return X.with_dtype(dtype) if dtype is not None else X


@fill_any_like.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {"value": 2.0}
    yield (rng.normal(size=()),), {"value": 2, "dtype": "int32"}


@op(traits={"pointwise"}, copies={"Out": "X"}, cuda="X", gpu="movement.creation")
def assign(X, *, out=None):
    """A copy of X."""
    Out = destination(out, X)
    np.copyto(Out, X)
    return Out


@assign.grad
def _(g, Out_grad):
    return g.assign(Out_grad)


@assign.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {}


@op(inplace={"Out": "X"}, cuda="X + step")
def increment(X, *, step: float = 1.0, out=None):
    """X + step, written back in place where Out is X itself."""
    return np.add(X, np.asarray(step).astype(X.dtype), out=out[0] if out else None)


@increment.grad
def _(g, Out_grad, *, step):
    return g.assign(Out_grad)


@increment.samples
def _(rng):
    yield (rng.normal(size=(1,)),), {"step": 2.0}


@op(traits={"pointwise", "in_place"}, gpu="movement.creation")
def sum(X: Arrays, *, out=None):
    """X[0] + X[1] + ...: arrays of one shape, as gradients with several readers need it."""
    total = np.asarray(np.add(X[0], X[1], out=out[0] if out else None)) if len(X) > 1 else X[0].copy()
    for x in X[2:]:
        np.add(total, x, out=total)
    return total


def _may_overwrite(X, **attrs):
    """Over which of X the result may be written on a CPU: over the first two, which are read before it."""
    return [range(min(2, len(X)))]


sum.reference.may_overwrite = _may_overwrite


@sum.infer
def _(X):
    for i, x in enumerate(X):
        require(x.dtype == X[0].dtype, f"X[0] is {X[0].dtype}, X[{i}] is {x.dtype}", MIXED_TYPES)
        require(x.accepts(X[0]), f"X[0] is {X[0]}, X[{i}] is {x}")
    return next((x for x in X if x.is_static), X[0])


@sum.grad
def _(g, X, Out_grad):
    return [g.assign(Out_grad) for _ in X]


@sum.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)) for _ in range(3)],), {}
    yield ([rng.normal(size=(2, 3))],), {}


@op(traits={"nondifferentiable"}, gpu="movement.creation")
def assign_value(*, values: Numbers, shape: Ints, dtype: DTypeAttr):
    """An array of the given shape that holds `values` in row-major order."""
    return np.array(values, dtype).reshape(shape)


@assign_value.infer
def _(*, values, shape, dtype):
    type = TensorType(normalize_shape(shape), dtype)
    require(type.is_static, f"every size must be known, got {list(shape)}", UNKNOWN_SIZE)
    require(type.size == len(values), f"{len(values)} values do not fill shape {list(shape)}", COUNT)
    return type


@assign_value.samples
def _(rng):
    yield (), {"values": (1.5, 2.0, -3.0, 0.25), "shape": (2, 2), "dtype": "float64"}
    yield (), {"values": (7,), "shape": (), "dtype": "int64"}
    yield (), {"values": (True, False), "shape": (2,), "dtype": "bool"}
    yield (), {"values": (), "shape": (0, 3), "dtype": "float32"}


def range_length(start: Number, end: Number, step: Number) -> int:
    """ceil((end - start) / step), not below 0."""
    for name, value in (("start", start), ("end", end), ("step", step)):
        require(math.isfinite(value), f"{name} must be finite, is {value}", AttrError)
    require(step != 0, "step is 0", AttrError)
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        return max(-((start - end) // step), 0)  # without rounding
    return max(math.ceil((end - start) / step), 0)


@op(traits={"nondifferentiable"}, gpu="movement.creation")
def arange(*, start: Number = 0, end: Number, step: Number = 1, dtype: DTypeAttr = int64):
    """start, start + step, start + 2 step, ... up to `end`, which is left out."""
    return (start + step * np.arange(range_length(start, end, step))).astype(dtype)


@arange.infer
def _(*, start, end, step, dtype):
    length = range_length(start, end, step)
    if length and dtype in INTS:
        for value in (start, start + step * (length - 1)):
            require_fits(math.trunc(value), dtype)
    return TensorType(normalize_shape((length,)), dtype)


@arange.samples
def _(rng):
    yield (), {"end": 5}
    yield (), {"start": 5, "end": -2, "step": -3, "dtype": "int32"}
    yield (), {"start": 0.5, "end": 2.0, "step": 0.25, "dtype": "float64"}
    yield (), {"start": 3, "end": 3}


@op(traits={"nondifferentiable"}, no_need_buffer={"X"}, gpu="movement.creation")
def arange_like(X, *, axis: int = 0, start: Number = 0, step: Number = 1, dtype: DTypeAttr = int64):
    """arange up to the size of an axis of X: 0, 1, ... for start 0 and step 1."""
    return (start + step * np.arange(range_length(start, X.shape[axis], step))).astype(dtype)


@arange_like.infer
def _(X, *, axis, start, step, dtype):
    (axis,) = normalize_axes((axis,), X.ndim)
    size = X.shape[axis]
    length = -1 if size == -1 else range_length(start, size, step)
    if length > 0 and dtype in INTS:
        for value in (start, start + step * (length - 1)):
            require_fits(math.trunc(value), dtype)
    return TensorType((length,), dtype)


@arange_like.samples
def _(rng):
    yield (rng.normal(size=(2, 5)),), {"axis": 1}
    yield (rng.normal(size=(7, 2)),), {"axis": -2, "start": 1, "step": 2, "dtype": "int32"}
    yield (rng.normal(size=(4,)),), {"start": 0.5, "step": 0.25, "dtype": "float32"}
    yield (rng.normal(size=(0, 3)),), {}


@op(traits={"nondifferentiable"}, no_need_buffer={"X"}, gpu="movement.creation")
def shape(X):
    """The sizes of X in this run, int32."""
    return np.array(X.shape, np.int32)


@shape.infer
def _(X):
    return TensorType((X.ndim,), np.dtype(np.int32))


@shape.samples
def _(rng):
    yield (rng.normal(size=(2, 0, 3)),), {}
    yield (rng.normal(size=()),), {}
