"""Operators that pick elements by position: slices, rows by index, triangles, one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import INDEX, RANK
from minigraph.kernels.cuda.record.views import sliced
from minigraph.opdef import DTypeAttr, Ints, op
from minigraph.ops.elementwise.elementwise import destination
from minigraph.types import INTS, TensorType, float32, normalize_axes, normalize_axis


def sections(
    ndim: int, axes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...] | None
) -> tuple[Any, ...]:
    """One Python slice for each of ndim axes."""
    steps = steps if steps is not None else (1,) * len(axes)
    require(
        len(axes) == len(starts) == len(ends) == len(steps),
        f"axes, starts, ends and steps have {len(axes)}, {len(starts)}, {len(ends)} and {len(steps)} entries",
        AttrError,
    )
    require(0 not in steps, f"steps {list(steps)} has a 0", AttrError)
    slices: list[Any] = [np.s_[:]] * ndim
    for axis, start, end, step in zip(normalize_axes(axes, ndim), starts, ends, steps, strict=True):
        slices[axis] = np.s_[start:end:step]
    return tuple(slices)


def without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` without `axes`."""
    dropped = normalize_axes(axes, len(shape))
    return tuple(s for axis, s in enumerate(shape) if axis not in dropped)


@op(shows=sliced)
def slice(
    X, *, axes: Ints, starts: Ints, ends: Ints, steps: Ints | None = None, decrease_axes: Ints = ()
):  # fmt: skip
    """X[start:end:step] on each of `axes`, a view; then `decrease_axes`, of size 1 by now, are dropped.

    Starts and ends count from the back where negative and are clamped, as in NumPy; a negative step
    runs backwards, and an end below -size then means "to the very first".
    """
    part = X[(*sections(X.ndim, axes, starts, ends, steps), ...)]
    return part.reshape(without(part.shape, decrease_axes)) if decrease_axes else part


@slice.infer
def _(X, *, axes, starts, ends, steps, decrease_axes):
    parts = sections(X.ndim, axes, starts, ends, steps)
    shape = [s if p == np.s_[:] else -1 if s == -1 else len(range(s)[p]) for s, p in zip(X.shape, parts, strict=True)]
    for axis in normalize_axes(decrease_axes, X.ndim):
        require(
            shape[axis] in (1, -1),
            f"index {parts[axis].start} is out of range for X axis {axis} of size {X.shape[axis]}"
            if shape[axis] == 0 else f"axis {axis} has size {shape[axis]} after slicing, only 1 can be dropped",
        )  # fmt: skip
    return X.with_shape(without(tuple(shape), decrease_axes))


@slice.samples
def _(rng):
    yield (rng.normal(size=(4, 5)),), {"axes": (0,), "starts": (1,), "ends": (3,)}
    yield (rng.normal(size=(4, 5)),), {"axes": (0, -1), "starts": (-3, 0), "ends": (-1, 99)}
    yield (rng.normal(size=(4, 5)),), {"axes": (1,), "starts": (99,), "ends": (-99,), "steps": (-2,)}
    yield (rng.normal(size=(4, 5)),), {"axes": (1, 0), "starts": (2, -1), "ends": (3, 99), "decrease_axes": (1, 0)}
    yield (rng.normal(size=(4, 5)),), {"axes": (0,), "starts": (3,), "ends": (1,)}
    yield (rng.normal(size=()),), {"axes": (), "starts": (), "ends": ()}


@op("X_grad", of=slice, no_need_buffer={"X"}, gpu="movement.movement")
def slice_grad(
    X, Out_grad, *, axes: Ints, starts: Ints, ends: Ints, steps: Ints | None = None, decrease_axes: Ints = (),
    out=None,
):  # fmt: skip
    """Zeros in the shape of X with Out_grad where the slice was taken."""
    X_grad = destination(out, X)
    X_grad.fill(0)
    part = X_grad[(*sections(X.ndim, axes, starts, ends, steps), ...)]
    part[...] = Out_grad.reshape(part.shape)
    return X_grad


@slice_grad.grad
def _(g, X_grad_grad, *, axes, starts, ends, steps, decrease_axes):
    return None, g.slice(
        X_grad_grad, axes=axes, starts=starts, ends=ends, steps=steps, decrease_axes=decrease_axes
    )


def require_index(index: np.ndarray, low: int, size: int, what: str) -> None:
    """Every element of `index` lies in [low, size)."""
    if index.size and (index.min() < low or index.max() >= size):
        wrong = index[(index < low) | (index >= size)].flat[0]
        raise INDEX(f"{what} {wrong} is out of range [{low}, {size})")


def require_ints(name: str, t: TensorType) -> None:
    require(t.dtype in INTS, f"{name} must hold integers, is {t.dtype}", DTypeError, f"cast {name} to int64")


def add_rows(index: np.ndarray, rows: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Out[v] = the sum of rows[i] over all i with index[i] == v; Out has `size` rows.

    A stable sort brings equal indices together: the same bits in every run.
    """
    total = np.empty((size, *rows.shape[1:]), rows.dtype) if out is None else out
    total.fill(0)
    if index.size:
        order = np.argsort(index, kind="stable")
        in_order = index[order].astype(np.intp, copy=False)
        first = np.flatnonzero(np.diff(in_order, prepend=-1))
        total[in_order[first]] = np.add.reduceat(rows[order], first, axis=0)
    return total


@op(traits={"reports"}, gpu="movement.index")
def gather(X, Index, *, axis: int = 0, out=None):
    """The slices of X at positions Index along `axis`: Out has Index's shape in place of that axis.

    Index is an integer array of any rank, as in ONNX (Paddle takes rank 1); negative ones count
    from the back. One outside [-size, size) is a KernelError.
    """
    size = X.shape[axis]
    require_index(Index, -size, size, "index")
    return np.take(X, Index, axis=axis, out=out[0] if out else None, mode="wrap")  # "raise" would copy Out


@gather.infer
def _(X, Index, *, axis):
    require_ints("Index", Index)
    axis = normalize_axis(axis, X.ndim)
    return X.with_shape((*X.shape[:axis], *Index.shape, *X.shape[axis + 1 :]))


@gather.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), np.array([2, 0, 2, -1])), {}
    yield (rng.normal(size=(2, 4, 3)), np.array([[3, 0], [3, 1], [-4, 3]])), {"axis": 1}
    yield (rng.normal(size=(2, 4)), np.array(1)), {"axis": -1}
    yield (rng.normal(size=(2, 4)), np.zeros((0,), np.int64)), {"axis": 1}
    yield (rng.normal(size=(0, 4)), np.array([1, 1], np.int32)), {"axis": 1}


@op("X_grad", of=gather, traits={"reports"}, no_need_buffer={"X"}, gpu="movement.index")
def gather_grad(X, Index, Out_grad, *, axis: int = 0, out=None):
    """Each slice of X is given the sum of Out_grad over the positions that picked it."""
    axis = axis % X.ndim
    require_index(Index, -X.shape[axis], X.shape[axis], "index")
    picked = np.moveaxis(Out_grad.reshape((*X.shape[:axis], Index.size, *X.shape[axis + 1 :])), axis, 0)
    index = Index.reshape(-1).astype(np.intp)
    index[index < 0] += X.shape[axis]
    X_grad = destination(out, X)
    add_rows(index, picked, X.shape[axis], np.moveaxis(X_grad, axis, 0))
    return X_grad


@gather_grad.grad
def _(g, Index, X_grad_grad, *, axis):
    return None, None, g.gather(X_grad_grad, Index, axis=axis)


@op(gpu="movement.index")
def tril_triu(X, *, diagonal: int = 0, lower: bool = True):
    """The lower (or upper) triangle of the last two axes, zeros elsewhere; `diagonal` > 0 lies above the main one.

    ONNX's Trilu takes the upper one by default.
    """
    return np.tril(X, diagonal) if lower else np.triu(X, diagonal)


@tril_triu.infer
def _(X, *, diagonal, lower):
    require(X.ndim >= 2, f"X has rank {X.ndim}, a triangle needs 2 axes or more", RANK)
    return X


@tril_triu.grad
def _(g, Out_grad, *, diagonal, lower):
    return g.tril_triu(Out_grad, diagonal=diagonal, lower=lower)


@tril_triu.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=(3, 4)),), {"lower": False, "diagonal": 1}
    yield (rng.normal(size=(2, 3, 3)),), {"diagonal": -1}
    yield (rng.normal(size=(0, 3)),), {}


@op(traits={"nondifferentiable", "reports"}, gpu="movement.index")
def one_hot(X, *, depth: int, dtype: DTypeAttr = float32, out=None):
    """Out[..., k] = 1 where X[...] == k, else 0; X holds integers in [0, depth), others are a KernelError.

    ONNX's OneHot gives a row of zeros for them and counts negative ones from the back.
    """
    require_index(X, 0, depth, "class")
    Out = np.empty((*X.shape, depth), dtype) if out is None or out[0] is None else out[0]
    Out.fill(0)
    np.put_along_axis(Out, X[..., None].astype(np.intp, copy=False), 1, axis=-1)
    return Out


@one_hot.infer
def _(X, *, depth, dtype):
    require_ints("X", X)
    require(depth > 0, f"depth must be positive, is {depth}", AttrError)
    return TensorType((*X.shape, depth), dtype)


@one_hot.samples
def _(rng):
    yield (np.array([[0, 2], [1, 1]]),), {"depth": 3}
    yield (np.array(1, np.int32),), {"depth": 2, "dtype": "float64"}
    yield (np.zeros((0,), np.int64),), {"depth": 4}
