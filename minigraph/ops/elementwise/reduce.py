"""Reductions over axes, running sums, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import EMPTY
from minigraph.opdef import DTypeAttr, Ints, OpDef, Rows, op
from minigraph.types import TensorType, bool_, int32, int64, normalize_axes, normalize_axis

from .elementwise import draw, masked

CASES = (
    ((4, 3), None, False), ((2, 4, 3), (0, -1), True), ((2, 4, 3), (1,), False), ((2, 3), (), False),
    ((), None, False), ((1, 1), (0,), True), ((0, 3), (1,), False),
)  # fmt: skip


def reduced(X: TensorType, axis: tuple[int, ...] | None, keepdim: bool) -> TensorType:
    """The type of X with `axis` (all axes for None) summed away or kept with size 1."""
    axes = normalize_axes(axis, X.ndim)
    return X.with_shape(1 if i in axes else s for i, s in enumerate(X.shape) if keepdim or i not in axes)


def kept_shape(shape: tuple[int, ...], axis: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape` with size 1 along `axis`."""
    axes = normalize_axes(axis, len(shape))
    return tuple(1 if i in axes else s for i, s in enumerate(shape))


def expanded(Out_grad: np.ndarray, shape: tuple[int, ...], axis: tuple[int, ...] | None) -> np.ndarray:
    """The gradient of a reduction's output, seen with the input's shape; a view."""
    return np.broadcast_to(Out_grad.reshape(kept_shape(shape, axis)), shape)


def _spread(grad: np.ndarray, shape: tuple[int, ...], axis: tuple[int, ...] | None, out: Any) -> np.ndarray:
    """`expanded` with memory of its own."""
    X_grad = np.empty(shape, grad.dtype) if out is None or out[0] is None else out[0]
    np.copyto(X_grad, expanded(grad, shape, axis))
    return X_grad


def infer_sum(X: TensorType, *, axis: tuple[int, ...] | None, keepdim: bool) -> TensorType:
    """Floats keep their type; bool and ints become int64."""
    return reduced(X if X.is_float else X.with_dtype(int64), axis, keepdim)


def _samples(rng):
    for shape, axis, keepdim in CASES:
        yield (draw(rng, shape),), {"axis": axis, "keepdim": keepdim}


def _samples_of_nothing(rng):
    """For reductions that have a value for no elements."""
    yield from _samples(rng)
    yield (np.zeros((0, 3)),), {"axis": (0,)}
    yield (np.zeros((2, 0)),), {}


def _samples_with_ints(rng):
    yield from _samples_of_nothing(rng)
    yield (np.array([[1, 2], [3, 4]], "int32"),), {"axis": (0,)}
    yield (np.array([True, False, True]),), {}


def _grad_samples(rng):
    for (X,), attrs in _samples(rng):
        Out_grad = draw(rng, np.sum(X, axis=attrs["axis"], keepdims=attrs["keepdim"]).shape)
        yield (X, Out_grad), attrs


def _last_axes(attrs, ndim):
    """The first axis of rows where the last axes are reduced, but not all."""
    axes = sorted(normalize_axes(attrs["axis"], ndim))
    return axes[0] if axes and axes[0] > 0 and axes == [*range(axes[0], ndim)] else None


ROWS, GRAD_ROWS = Rows(_last_axes, frozenset({"Out"})), Rows(_last_axes, frozenset({"Out", "Out_grad"}))


@op(gpu="elementwise.reduce", rows=ROWS)
def reduce_sum(X, *, axis: Ints | None = None, keepdim: bool = False, out=None):
    """The sum over `axis` (None: all axes, (): none); of bool and ints it is int64, of nothing 0."""
    dtype = X.dtype if X.dtype.kind == "f" else int64
    return np.sum(X, axis=axis, keepdims=keepdim, dtype=dtype, out=out[0] if out else None)


@reduce_sum.cuda_rows
def _(r):
    r.total("result", r.read("X"))
    r.once("Out", "result")


@op("X_grad", of=reduce_sum, no_need_buffer={"X"}, gpu="elementwise.reduce", rows=GRAD_ROWS)
def reduce_sum_grad(X, Out_grad, *, axis: Ints | None = None, keepdim: bool = False, out=None):
    """Out_grad, spread over X's shape."""
    return _spread(Out_grad, X.shape, axis, out)


@reduce_sum_grad.cuda_rows
def _(r):
    r.each("X_grad", r.read("Out_grad"))


@reduce_sum_grad.grad
def _(g, X_grad_grad, *, axis, keepdim):
    return None, g.reduce_sum(X_grad_grad, axis=axis, keepdim=keepdim)


@op(gpu="elementwise.reduce", rows=ROWS)
def reduce_mean(X, *, axis: Ints | None = None, keepdim: bool = False):
    """The mean over `axis` (None: all axes, (): none) of floats; of nothing it is NaN."""
    total = np.sum(X, axis=axis, keepdims=keepdim)
    with np.errstate(invalid="ignore"):
        return total / X.dtype.type(_count(X.shape, axis))


def _count(shape: tuple[int, ...], axis: tuple[int, ...] | None) -> int:
    """The number of elements in each mean."""
    return int(np.prod([shape[a] for a in normalize_axes(axis, len(shape))], dtype=int))


@reduce_mean.cuda_rows
def _(r):
    r.total("result", r.read("X"))
    r.once("Out", f"result / C({r.n})")


@reduce_mean.infer
def _(X, *, axis, keepdim):
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError, "cast it first")
    return reduced(X, axis, keepdim)


@op("X_grad", of=reduce_mean, no_need_buffer={"X"}, gpu="elementwise.reduce", rows=GRAD_ROWS)
def reduce_mean_grad(X, Out_grad, *, axis: Ints | None = None, keepdim: bool = False, out=None):
    """Out_grad / (number of elements in each mean), spread over X's shape."""
    return _spread(Out_grad / X.dtype.type(max(_count(X.shape, axis), 1)), X.shape, axis, out)


@reduce_mean_grad.cuda_rows
def _(r):
    r.each("X_grad", f"{r.read('Out_grad')} / C({r.n})")


@reduce_mean_grad.grad
def _(g, X_grad_grad, *, axis, keepdim):
    return None, g.reduce_mean(X_grad_grad, axis=axis, keepdim=keepdim)


@op(gpu="elementwise.reduce")
def reduce_prod(X, *, axis: Ints | None = None, keepdim: bool = False):
    """The product over `axis` (None: all axes, (): none); of bool and ints it is int64, of nothing 1."""
    dtype = X.dtype if X.dtype.kind == "f" else int64
    return np.prod(X, axis=axis, keepdims=keepdim, dtype=dtype)


@op("X_grad", of=reduce_prod, gpu="rows.cumsum")
def reduce_prod_grad(X, Out_grad, *, axis: Ints | None = None, keepdim: bool = False):
    """Out_grad * the product of the other elements, which is right where elements are 0, too."""
    axes = normalize_axes(axis, X.ndim)
    last = tuple(range(X.ndim - len(axes), X.ndim))
    moved = np.moveaxis(X, axes, last)
    rows = moved.reshape((*moved.shape[: X.ndim - len(axes)], _count(X.shape, axis)))
    before, after = np.ones_like(rows), np.ones_like(rows)
    np.cumprod(rows[..., :-1], axis=-1, out=before[..., 1:])
    np.cumprod(rows[..., :0:-1], axis=-1, out=after[..., -2::-1])
    return np.moveaxis((before * after).reshape(moved.shape), last, axes) * expanded(Out_grad, X.shape, axis)


@reduce_prod_grad.samples
def _(rng):
    yield from _grad_samples(rng)
    yield (np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]), draw(rng, (2,))), {"axis": (1,)}


def require_elements(X: TensorType, axes: tuple[int, ...]) -> None:
    """No axis of `axes` is empty."""
    for a in axes:
        require(X.shape[a] != 0, f"axis {a} of X has size 0, there is nothing to choose from", EMPTY)


def _extremum(name: str, ufunc: np.ufunc, word: str) -> OpDef:
    """The operator and its grad operator, as reduce_max and reduce_max_grad."""

    def extremum(X, *, axis: Ints | None = None, keepdim: bool = False, share: bool = True, out=None):
        return ufunc.reduce(X, axis=axis, keepdims=keepdim, out=out[0] if out else None)

    def extremum_grad(X, Out, Out_grad, *, axis: Ints | None = None, keepdim: bool = False, share: bool = True):
        chosen = expanded(Out, X.shape, axis) == X
        number = np.sum(chosen, axis=axis, keepdims=True, dtype=X.dtype)
        grad = Out_grad.reshape(number.shape)
        return masked(grad / np.maximum(number, 1) if share else grad, chosen)

    extremum.__name__, extremum_grad.__name__ = name, f"{name}_grad"
    extremum.__doc__ = (
        f"The {word} over `axis` (None: all axes, (): none), NaN where one of them is; of nothing it is refused. Where"
        " several are equal they share the gradient, or each has all of it."
    )
    extremum_grad.__doc__ = "Out_grad, shared equally among the elements that are equal to Out, or all of it for each."
    forward = op(gpu="elementwise.reduce", rows=ROWS)(extremum)
    backward = op("X_grad", of=forward, gpu="elementwise.reduce")(extremum_grad)

    @forward.cuda_rows
    def _(r):
        r.total("result", r.read("X"), name.removeprefix("reduce_"))
        r.once("Out", "result")

    @forward.infer
    def _(X, *, axis, keepdim, share):
        require_elements(X, normalize_axes(axis, X.ndim))
        return reduced(X, axis, keepdim)

    @backward.grad
    def _(g, X, Out, X_grad_grad, *, axis, keepdim, share):
        ones = g.fill_any_like(Out, value=1.0)
        parts = g.emit(f"{name}_grad", X, Out, ones, axis=axis, keepdim=keepdim, share=share)
        return None, None, g.reduce_sum(g.elementwise_mul(X_grad_grad, parts), axis=axis, keepdim=keepdim)

    backward.samples(lambda rng: _extremum_grad_samples(rng, forward))
    return forward.samples(_extremum_samples)


def _extremum_samples(rng):
    yield from _samples(rng)
    yield (rng.permutation(24).reshape(2, 3, 4).astype(float),), {"axis": (0, 2)}


def _extremum_grad_samples(rng, forward):
    for (X,), attrs in _extremum_samples(rng):
        Out = forward(X, **attrs)
        yield (X, Out, draw(rng, np.shape(Out))), attrs
    tied = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    for share in (True, False):
        yield (tied, forward(tied, axis=(1,)), draw(rng, (2,))), {"axis": (1,), "share": share}


reduce_max = _extremum("reduce_max", np.maximum, "largest element")
reduce_min = _extremum("reduce_min", np.minimum, "smallest element")

reduce_sum.infer(infer_sum).samples(_samples_with_ints)
reduce_prod.infer(infer_sum).samples(_samples_with_ints)
reduce_mean.samples(_samples_of_nothing)
reduce_mean_grad.samples(_grad_samples)  # of something: there are no slopes of NaN


def _position(name: str, function: Any, word: str) -> OpDef:
    def position(X, *, axis: int | None = None, keepdim: bool = False, dtype: DTypeAttr = int64):
        return np.asarray(function(X, axis=axis, keepdims=keepdim)).astype(dtype)

    position.__name__ = name
    position.__doc__ = f"The position of the first {word} along `axis`, in the flattened X for None."

    define = op(traits={"nondifferentiable"}, gpu="elementwise.reduce")
    return define(position).infer(_infer_position).samples(_position_samples)


def _infer_position(X: TensorType, *, axis: int | None, keepdim: bool, dtype: np.dtype) -> TensorType:
    require(dtype in (int32, int64), f"positions are int32 or int64, not {dtype}", DTypeError)
    axes = None if axis is None else (normalize_axis(axis, X.ndim),)
    require_elements(X, normalize_axes(axes, X.ndim))
    return reduced(X, axes, keepdim).with_dtype(dtype)


def _position_samples(rng):
    yield (draw(rng, (4, 3)),), {"axis": -1}
    yield (draw(rng, (4, 3)),), {"keepdim": True}
    yield (draw(rng, (2, 4, 3)),), {"axis": 1, "keepdim": True, "dtype": "int32"}
    yield (np.array([1, 3, 3]),), {}
    yield (np.array(2.0),), {}
    yield (np.zeros((0, 3)),), {"axis": 1}


arg_max = _position("arg_max", np.argmax, "largest element")
arg_min = _position("arg_min", np.argmin, "smallest element")


@op(gpu="rows.cumsum")
def cumsum(X, *, axis: int | None = None, exclusive: bool = False, reverse: bool = False):
    """Sums of the elements up to each one along `axis`, of the flattened X for None.

    exclusive leaves the element itself out; reverse sums from the end. X's type stays.
    """
    terms = X.reshape(-1) if axis is None else X
    return _running_sum(terms, axis or 0, exclusive, reverse)


def _running_sum(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    total = np.zeros(x.shape, x.dtype)
    terms, sums = np.moveaxis(x, axis, 0), np.moveaxis(total, axis, 0)
    if reverse:
        terms, sums = terms[::-1], sums[::-1]
    if exclusive:
        terms, sums = terms[:-1], sums[1:]
    np.cumsum(terms, axis=0, dtype=x.dtype, out=sums)
    return total


@cumsum.infer
def _(X, *, axis, exclusive, reverse):
    require(X.dtype != bool_, "X is bool", DTypeError, "cast it first")
    if axis is None:
        return X.with_shape((X.size,))
    normalize_axis(axis, X.ndim)
    return X


@cumsum.samples
def _(rng):
    for exclusive in (False, True):
        for reverse in (False, True):
            yield (draw(rng, (2, 4, 3)),), {"axis": 1, "exclusive": exclusive, "reverse": reverse}
    yield (draw(rng, (2, 3)),), {}
    yield (draw(rng, ()),), {"exclusive": True}
    yield (np.zeros((2, 0)),), {"axis": -1, "exclusive": True}
    yield (np.array([1, 2, 3], "int32"),), {"axis": 0}


@op("X_grad", of=cumsum, no_need_buffer={"X"}, gpu="rows.cumsum")
def cumsum_grad(X, Out_grad, *, axis: int | None = None, exclusive: bool = False, reverse: bool = False):
    """Out_grad summed from the other end, in X's shape."""
    return _running_sum(Out_grad, axis or 0, exclusive, not reverse).reshape(X.shape)


@cumsum_grad.grad
def _(g, X_grad_grad, *, axis, exclusive, reverse):
    return None, g.cumsum(X_grad_grad, axis=axis, exclusive=exclusive, reverse=reverse)
