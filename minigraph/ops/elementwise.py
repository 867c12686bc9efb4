"""Elementwise operators on one or two operands, with NumPy broadcasting and its gradients."""

from __future__ import annotations

import numpy as np

from ..errors import DTypeError, require
from ..opdef import op
from ..types import TensorType, broadcast_shapes


def align(Y: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    """Y with axes of size 1 appended, so that its first axis meets axis `axis` of the other operand.

    axis=-1 is NumPy's rule, which aligns the last axes.
    """
    return Y if axis == -1 or Y.ndim >= ndim else Y.reshape(Y.shape + (1,) * (ndim - axis - Y.ndim))


def infer_binary(X: TensorType, Y: TensorType, *, axis: int = -1) -> TensorType:
    """The broadcast type of two operands of one data type."""
    require(X.dtype == Y.dtype, f"X is {X.dtype}, Y is {Y.dtype}", DTypeError, "cast one of them")
    y = Y.shape
    if axis != -1 and Y.ndim < X.ndim:
        require(
            0 <= axis <= X.ndim - Y.ndim,
            f"axis {axis} does not place Y of rank {Y.ndim} inside X of rank {X.ndim}",
        )
        y = y + (1,) * (X.ndim - axis - Y.ndim)
    return X.with_shape(broadcast_shapes(X.shape, y))


def sum_to(grad: np.ndarray, shape: tuple[int, ...], axis: int = -1) -> np.ndarray:
    """`grad` summed over the axes along which an operand of `shape` was broadcast."""
    if grad.shape == shape:
        return grad
    full = shape if axis == -1 or len(shape) >= grad.ndim else shape + (1,) * (grad.ndim - axis - len(shape))
    extra = grad.ndim - len(full)
    stretched = tuple(i for i, size in enumerate(full, extra) if size == 1 and grad.shape[i] != 1)
    return grad.sum(axis=(*range(extra), *stretched)).reshape(shape)


@op(traits={"elementwise", "commutative"}, inplace={"Out": "X"})
def elementwise_add(X, Y, *, axis: int = -1, out=None):
    """X + Y with broadcasting; axis >= 0 aligns Y's first axis with that axis of X."""
    return np.add(X, align(Y, X.ndim, axis), out=out[0] if out else None)


elementwise_add.infer(infer_binary)


@elementwise_add.grad
def _(g, X, Y, Out_grad, *, axis):
    return g.elementwise_add_grad(X, Y, Out_grad, axis=axis)


@elementwise_add.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(3,))), {}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4,))), {"axis": 0}
    yield (rng.normal(size=(2, 1, 3)), rng.normal(size=(4, 1))), {}


@op("X_grad?, Y_grad?", no_need_buffer={"X", "Y"})
def elementwise_add_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad")):
    """Out_grad summed to the shapes of X and Y; of X and Y only the shapes are used."""
    return (
        sum_to(Out_grad, X.shape) if "X_grad" in needs else None,
        sum_to(Out_grad, Y.shape, axis) if "Y_grad" in needs else None,
    )


@elementwise_add_grad.infer
def _(X, Y, Out_grad, *, axis):
    return X, Y


@elementwise_add_grad.grad
def _(g, X, Y, X_grad_grad=None, Y_grad_grad=None, *, axis):
    X_part = X_grad_grad if X_grad_grad is not None else g.fill_any_like(X, value=0.0)
    Y_part = Y_grad_grad if Y_grad_grad is not None else g.fill_any_like(Y, value=0.0)
    return None, None, g.elementwise_add(X_part, Y_part, axis=axis)


@elementwise_add_grad.samples
def _(rng):
    yield (rng.normal(size=(4, 3)), rng.normal(size=(3,)), rng.normal(size=(4, 3))), {}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4,)), rng.normal(size=(4, 3))), {"axis": 0}
