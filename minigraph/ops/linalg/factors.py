"""Matrices as products of triangular and orthogonal ones: Cholesky's factor, LU and QR."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import NO_GRADIENT, RANK
from minigraph.kernels.linalg import computed
from minigraph.opdef import DTypeAttr, op
from minigraph.types import INTS, TensorType, int32

from .solve import invertible, require_matrices, rounded, transposed


def of_triangle(g: Any, both: Any, upper: bool) -> Any:
    """The gradient of a triangle that stands for a symmetric matrix, from S + S^T, S that of the whole matrix."""
    triangle = g.tril_triu(both, lower=not upper)
    diagonal = g.tril_triu(triangle, lower=upper)
    return g.elementwise_sub(triangle, g.scale(diagonal, scale=0.5))


@op(traits={"reports"}, gpu="linalg.linalg")
def cholesky(X, *, upper: bool = False):
    """The lower triangle L with L @ L^T = X, or the upper one U with U^T @ U = X; X [..., n, n] is symmetric.

    Only that triangle of X is read, and it alone has a gradient. X that is not positive is a KernelError.
    """
    factor = computed(np.linalg.cholesky, np.swapaxes(X, -1, -2) if upper else X)
    return rounded(X, np.swapaxes(factor, -1, -2) if upper else factor)


@cholesky.infer
def _(X, *, upper):
    require_matrices("X", X, square=True)
    return X


@cholesky.grad
def _(g, Out, Out_grad, *, upper):
    """Murray, Differentiation of the Cholesky decomposition, 2016 (arXiv:1602.07527)."""
    L, slope = (transposed(g, Out), transposed(g, Out_grad)) if upper else (Out, Out_grad)
    whole = g.matmul(L, slope, trans_x=True)
    half = of_triangle(g, whole, False)
    left = g.triangular_solve(L, half, upper=False, transpose=True)
    S = g.triangular_solve(L, transposed(g, left), upper=False, transpose=True)
    return of_triangle(g, g.elementwise_add(S, transposed(g, S)), upper)


@cholesky.samples
def _(rng):
    for batch in ((), (2,), (0,)):
        for upper in (False, True):
            x = invertible(rng, *batch)
            yield (x @ np.swapaxes(x, -1, -2),), {"upper": upper}
    yield (np.array([[2.25]]),), {}


@op("Out, Pivots", gpu="linalg.linalg")
def lu(X):
    """L and U of X [..., m, n] with P @ L @ U = X in one array, without the 1 on L's diagonal, and the pivots.

    Pivots[..., i] says with which row, counted from 1, row i changed places (int32). A singular X has a 0 on
    U's diagonal.
    """
    work = X.astype(np.float64)
    m, n = X.shape[-2:]
    pivots = np.zeros((*X.shape[:-2], min(m, n)), np.int32)
    for matrix, changed in zip(work.reshape(-1, m, n), pivots.reshape(-1, min(m, n)), strict=True):
        for i in range(min(m, n)):
            best = i + int(np.argmax(np.abs(matrix[i:, i])))
            changed[i] = best + 1
            matrix[[i, best]] = matrix[[best, i]]
            if matrix[i, i] != 0:
                matrix[i + 1 :, i] /= matrix[i, i]
                matrix[i + 1 :, i + 1 :] -= np.outer(matrix[i + 1 :, i], matrix[i, i + 1 :])
    return rounded(X, work), pivots


@lu.infer
def _(X):
    require_matrices("X", X)
    m, n = X.shape[-2:]
    return X, TensorType((*X.shape[:-2], -1 if -1 in (m, n) else min(m, n)), int32)


@lu.grad
def _(g, X, Out, Pivots, Out_grad):
    """L^-T (tril(L^T L_grad) + triu(U_grad U^T)) U^-T, its rows back in their places.

    What X has beyond a square is a product with L or U of that square, and gives its slope to them.
    """
    m, n = X.type.shape[-2:]
    require(-1 not in (m, n), f"the gradient of LU needs matrices of a known size, X is {X.type}", NO_GRADIENT)
    k, last = min(m, n), X.type.ndim - 1
    square, slope, rest = Out, Out_grad, None
    if m != n:
        axis = last if m < n else last - 1
        (square, beyond), (slope, far) = (g.split(x, sections=[k, max(m, n) - k], axis=axis) for x in (Out, Out_grad))
        if m < n:
            rest = g.triangular_solve(square, far, upper=False, transpose=True, unitriangular=True)
            less = g.tril_triu(g.matmul(rest, beyond, trans_y=True), diagonal=-1)
        else:
            rest = transposed(g, g.triangular_solve(square, transposed(g, far)))
            less = g.tril_triu(g.matmul(beyond, rest, trans_x=True), lower=False)
        slope = g.elementwise_sub(slope, less)
    below = g.matmul(g.tril_triu(square, diagonal=-1), g.tril_triu(slope, diagonal=-1), trans_x=True)
    below = g.elementwise_add(below, slope)  # L^T with its diagonal of 1
    above = g.matmul(g.tril_triu(slope, lower=False), g.tril_triu(square, lower=False), trans_y=True)
    both = g.elementwise_add(g.tril_triu(below, diagonal=-1), g.tril_triu(above, lower=False))
    left = g.triangular_solve(square, both, upper=False, transpose=True, unitriangular=True)
    whole = transposed(g, g.triangular_solve(square, transposed(g, left)))
    if rest is not None:
        whole = g.concat([whole, rest], axis=last if m < n else last - 1)
    return g.matmul(g.pivots_to_matrix(Pivots, rows=m, dtype=X.type.dtype), whole)


@lu.samples
def _(rng):
    yield (rng.normal(size=(3, 3)),), {}
    yield (rng.normal(size=(2, 2, 2)),), {}
    yield (rng.normal(size=(2, 4)),), {}
    yield (rng.normal(size=(2, 4, 2)),), {}
    yield (np.array([[0.0, 1.0], [2.0, 0.0]]),), {}
    yield (np.zeros((0, 2, 2)),), {}


@op(traits={"nondifferentiable"}, gpu="linalg.linalg")
def pivots_to_matrix(Pivots, *, rows: int, dtype: DTypeAttr):
    """P [..., rows, rows] of P @ L @ U = X, from the Pivots [..., k] of X."""
    order = np.tile(np.arange(rows), (*Pivots.shape[:-1], 1))
    for rows_in_order, pivots in zip(order.reshape(-1, rows), Pivots.reshape(-1, Pivots.shape[-1]), strict=True):
        for i, j in enumerate(pivots):
            rows_in_order[[i, j - 1]] = rows_in_order[[j - 1, i]]
    return np.equal(np.arange(rows)[:, None], order[..., None, :]).astype(dtype)


@pivots_to_matrix.infer
def _(Pivots, *, rows, dtype):
    require(Pivots.dtype in INTS, f"Pivots must hold integers, is {Pivots}", DTypeError)
    require(Pivots.ndim >= 1, "Pivots is a scalar", RANK)
    require(rows >= 1, f"rows must be positive, is {rows}", AttrError)
    return TensorType((*Pivots.shape[:-1], rows, rows), dtype)


@pivots_to_matrix.samples
def _(rng):
    yield (np.array([3, 2, 3], np.int32),), {"rows": 3, "dtype": "float64"}
    yield (np.array([[2, 2], [1, 4]], np.int32),), {"rows": 4, "dtype": "float32"}
    yield (np.zeros((0, 2), np.int32),), {"rows": 2, "dtype": "float64"}


@op("Q, R", traits={"reports"}, gpu="linalg.linalg")
def qr(X):
    """Q [..., m, k] with orthonormal columns and R [..., k, n], upper triangular, with Q @ R = X; k = min(m, n)."""
    q, r = computed(np.linalg.qr, X)
    return rounded(X, q), rounded(X, r)


@qr.infer
def _(X):
    require_matrices("X", X)
    *batch, m, n = X.shape
    k = -1 if -1 in (m, n) else min(m, n)
    return X.with_shape((*batch, m, k)), X.with_shape((*batch, k, n))


@qr.grad
def _(g, X, Q, R, Q_grad=None, R_grad=None):
    """Walter and Lehmann, Algorithmic differentiation of linear algebra functions, 2012 (arXiv:1001.1654).

    Of a wide X = [A, B] the first columns A have the same Q, and R = [U, Q^T B].
    """
    m, n = X.type.shape[-2:]
    require(-1 not in (m, n), f"the gradient of QR needs matrices of a known size, X is {X.type}", NO_GRADIENT)
    if m >= n:
        return _tall_qr_grad(g, Q, R, Q_grad, R_grad)
    last = X.type.ndim - 1

    def columns(x: Any, start: int, end: int) -> Any:
        return g.slice(x, axes=[last], starts=[start], ends=[end])

    U, U_grad, V_grad = columns(R, 0, m), None, None
    if R_grad is not None:
        U_grad, V_grad = columns(R_grad, 0, m), columns(R_grad, m, n)
        through = g.matmul(columns(X, m, n), V_grad, trans_y=True)
        Q_grad = through if Q_grad is None else g.elementwise_add(Q_grad, through)
    A_grad = _tall_qr_grad(g, Q, U, Q_grad, U_grad)
    B_grad = g.matmul(Q, V_grad) if V_grad is not None else g.fill_any_like(columns(X, m, n), value=0.0)
    return g.concat([A_grad, B_grad], axis=last)


def _tall_qr_grad(g: Any, Q: Any, R: Any, Q_grad: Any, R_grad: Any) -> Any:
    """(Q_grad + Q sym(tril(R R_grad^T - Q_grad^T Q))) R^-T, sym: the lower triangle on both sides."""
    M = None if R_grad is None else g.matmul(R, R_grad, trans_y=True)
    if Q_grad is not None:
        through = g.matmul(Q_grad, Q, trans_x=True)
        M = g.scale(through, scale=-1.0) if M is None else g.elementwise_sub(M, through)
    lower = g.tril_triu(M)
    both = g.elementwise_add(lower, transposed(g, g.tril_triu(M, diagonal=-1)))
    whole = g.matmul(Q, both)
    whole = whole if Q_grad is None else g.elementwise_add(whole, Q_grad)
    return transposed(g, g.triangular_solve(R, transposed(g, whole)))


@qr.samples
def _(rng):
    for shape in ((4, 3), (2, 3, 3), (2, 4), (1, 1), (0, 3, 2)):
        yield (rng.normal(size=shape) + 2 * np.eye(*shape[-2:]),), {}
