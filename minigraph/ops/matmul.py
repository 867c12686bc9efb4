"""Matrix product and its gradient."""

from __future__ import annotations

import math

import numpy as np

from ..errors import DTypeError, require
from ..opdef import op
from ..types import TensorType, broadcast_shapes


def _transposed(x: np.ndarray, transpose: bool) -> np.ndarray:
    """The last two axes swapped; a vector has nothing to swap."""
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def _as_rows(x: np.ndarray) -> np.ndarray:
    """All leading axes as one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@op("Out", gpu="gemm")
def matmul(X, Y, *, trans_x: bool = False, trans_y: bool = False, out=None):
    """X @ Y with NumPy's rules: 1-D operands are vectors, leading axes broadcast as batch.

    trans_x, trans_y swap the last two axes of an operand of rank 2 or more first.
    """
    x, y, result = _transposed(X, trans_x), _transposed(Y, trans_y), out[0] if out else None
    if x.ndim > 2 and y.ndim == 2 and x.flags.c_contiguous:  # one product over all rows, not a batch of them
        rows = None if result is None else _as_rows(result)
        return np.matmul(_as_rows(x), y, out=rows).reshape(*x.shape[:-1], y.shape[-1])
    return np.matmul(x, y, out=result)


@matmul.infer
def _(X: TensorType, Y: TensorType, *, trans_x, trans_y):
    require(X.ndim >= 1 and Y.ndim >= 1, "a 0-d operand has no rows to multiply")
    require(X.dtype == Y.dtype, f"X is {X.dtype}, Y is {Y.dtype}", DTypeError, "cast one of them")
    x, y = list(X.shape), list(Y.shape)
    x_axis = -2 if trans_x and X.ndim > 1 else -1
    y_axis = -1 if (trans_y and Y.ndim > 1) or Y.ndim == 1 else -2
    require(
        x[x_axis] == y[y_axis] or -1 in (x[x_axis], y[y_axis]),
        f"inner sizes differ: X axis {x_axis} is {x[x_axis]}, Y axis {y_axis} is {y[y_axis]}",
        hint="transpose Y" if Y.ndim > 1 and x[x_axis] == y[-3 - y_axis] else None,
    )
    rows = [] if X.ndim == 1 else [x[-1] if trans_x else x[-2]]
    columns = [] if Y.ndim == 1 else [y[-2] if trans_y else y[-1]]
    batch = broadcast_shapes(tuple(x[:-2]), tuple(y[:-2]), last=-3)
    return X.with_shape((*batch, *rows, *columns))


@matmul.grad
def _(g, X, Y, Out_grad, *, trans_x, trans_y):
    return g.matmul_grad(X, Y, Out_grad, trans_x=trans_x, trans_y=trans_y)


@matmul.samples
def _(rng):
    for x, y in [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((3, 4), (4,)),
                 ((4,), (2, 4, 3)), ((0, 4), (4, 5)), ((3, 0), (0, 2)), ((1, 1), (1, 1))]:  # fmt: skip
        yield (rng.normal(size=x), rng.normal(size=y)), {}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 5))), {"trans_x": True}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))), {"trans_y": True}
    yield (rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 4))), {"trans_x": True, "trans_y": True}


def _sum_to(grad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum the batch axes that broadcasting had added or stretched."""
    extra = grad.ndim - len(shape)
    stretched = tuple(i for i, s in enumerate(shape, extra) if s == 1 and grad.shape[i] != 1)
    return grad.sum(axis=(*range(extra), *stretched)).reshape(shape) if extra or stretched else grad


@op("X_grad?, Y_grad?", gpu="gemm")
def matmul_grad(X, Y, Out_grad, *, trans_x: bool = False, trans_y: bool = False, needs=("X_grad", "Y_grad"), out=None):
    """Gradients of X @ Y: Out_grad @ Y^T and X^T @ Out_grad, summed over broadcast batch axes."""
    x, y = _transposed(X, trans_x), _transposed(Y, trans_y)
    x = x[None, :] if X.ndim == 1 else x
    y = y[:, None] if Y.ndim == 1 else y
    d = Out_grad.reshape((*Out_grad.shape[: Out_grad.ndim - (X.ndim > 1) - (Y.ndim > 1)], x.shape[-2], y.shape[-1]))
    X_grad = Y_grad = None
    x_out, y_out = out or (None, None)
    if "X_grad" in needs:
        if trans_x and X.ndim > 1:
            X_grad = _product(y, np.swapaxes(d, -1, -2), X.shape, x_out)
        else:
            X_grad = _product(d, np.swapaxes(y, -1, -2), X.shape, x_out)
    if "Y_grad" in needs:
        if y.ndim == 2 and x.ndim > 2:  # one product over all rows instead of a batch and a sum
            x, d = _as_rows(x), _as_rows(d)
        if trans_y and Y.ndim > 1:
            Y_grad = _product(np.swapaxes(d, -1, -2), x, Y.shape, y_out)
        else:
            Y_grad = _product(np.swapaxes(x, -1, -2), d, Y.shape, y_out)
    return X_grad, Y_grad


def _product(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...], out: np.ndarray | None) -> np.ndarray:
    """a @ b brought to the shape of the operand whose gradient it is."""
    direct = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]) == shape
    result = np.matmul(a, b, out=out if direct else None)
    if direct:
        return result
    if len(shape) == 1:
        return _sum_to(result.reshape((*result.shape[:-2], shape[0])), shape)
    return _sum_to(result, shape)


@matmul_grad.infer
def _(X, Y, Out_grad, *, trans_x, trans_y):
    return X, Y


@matmul_grad.grad
def _(g, X, Y, Out_grad, X_grad_grad=None, Y_grad_grad=None, *, trans_x, trans_y):
    """Out_grad enters both products: d(X_grad) meets Y, d(Y_grad) meets X."""
    X_grad = Y_grad = to_out = None
    if X_grad_grad is not None:
        _, Y_grad = g.matmul_grad(X_grad_grad, Y, Out_grad, trans_x=trans_x, trans_y=trans_y, needs=["Y_grad"])
        to_out = g.matmul(X_grad_grad, Y, trans_x=trans_x, trans_y=trans_y)
    if Y_grad_grad is not None:
        X_grad, _ = g.matmul_grad(X, Y_grad_grad, Out_grad, trans_x=trans_x, trans_y=trans_y, needs=["X_grad"])
        other = g.matmul(X, Y_grad_grad, trans_x=trans_x, trans_y=trans_y)
        to_out = other if to_out is None else g.sum([to_out, other])
    return X_grad, Y_grad, to_out


@matmul_grad.samples
def _(rng):
    yield (rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(3, 5))), {}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(2, 3, 5))), {}
    both = {"trans_x": True, "trans_y": True}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(5, 4)), rng.normal(size=(3, 5))), both
