"""Eigenvalues of symmetric matrices, singular values, and the inverse that they give of any matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.kernels.linalg import computed
from minigraph.opdef import op

from .factors import of_triangle
from .solve import invertible, require_matrices, rounded, transposed, unit_like


def _row(g: Any, x: Any) -> Any:
    return g.unsqueeze(x, axes=[x.type.ndim - 1])


def _column(g: Any, x: Any) -> Any:
    return g.unsqueeze(x, axes=[x.type.ndim])


def _between(g: Any, values: Any) -> Any:
    """1 / (values[j] - values[i]), 0 on the diagonal: what turns eigenvectors where a matrix changes."""
    gap = g.elementwise_sub(_row(g, values), _column(g, values))
    unit = unit_like(g, gap)
    return g.elementwise_div(g.scale(unit, scale=-1.0, bias=1.0), g.elementwise_add(gap, unit))


def _skew(g: Any, vectors: Any, slope: Any) -> Any:
    """vectors^T slope - slope^T vectors"""
    product = g.matmul(vectors, slope, trans_x=True)
    return g.elementwise_sub(product, transposed(g, product))


@op("Values, Vectors", traits={"reports"}, gpu="linalg.linalg")
def eigh(X, *, upper: bool = False):
    """The eigenvalues [..., n] of symmetric matrices X [..., n, n], in order, and eigenvectors in columns.

    upper  read the upper triangle of X, else the lower one; that alone is read, and has a gradient
    Where two eigenvalues are equal, the gradient of the vectors is infinite.
    """
    values, vectors = computed(np.linalg.eigh, X, UPLO="U" if upper else "L")
    return rounded(X, values), rounded(X, vectors)


@eigh.infer
def _(X, *, upper):
    require_matrices("X", X, square=True)
    return X.with_shape(X.shape[:-1]), X


@eigh.grad
def _(g, Values, Vectors, Values_grad=None, Vectors_grad=None, *, upper):
    """V (diag(Values_grad) + V^T Vectors_grad / (w_j - w_i)) V^T"""
    inner = None
    if Vectors_grad is not None:
        inner = g.elementwise_mul(g.matmul(Vectors, Vectors_grad, trans_x=True), _between(g, Values))
    if Values_grad is not None:
        own = g.elementwise_mul(unit_like(g, Vectors), _row(g, Values_grad))
        inner = own if inner is None else g.elementwise_add(inner, own)
    whole = g.matmul(g.matmul(Vectors, inner), Vectors, trans_y=True)
    return of_triangle(g, g.elementwise_add(whole, transposed(g, whole)), upper)


@eigh.samples
def _(rng):
    for batch in ((), (2,), (0,)):
        for upper in (False, True):
            x = rng.normal(size=(*batch, 3, 3)) + np.diag([0.0, 5.0, 10.0])
            yield (x + np.swapaxes(x, -1, -2),), {"upper": upper}
    yield (np.array([[2.5]]),), {}


@op("U, S, VH", traits={"reports"}, gpu="linalg.linalg")
def svd(X):
    """Singular values S [..., k] of X [..., m, n], falling, with X = U @ diag(S) @ VH; k = min(m, n).

    U [..., m, k] has orthonormal columns, VH [..., k, n] rows. Where two singular values are equal, or one is 0, the
    gradient of the vectors is infinite.
    """
    u, s, vh = computed(np.linalg.svd, X, full_matrices=False)
    return rounded(X, u), rounded(X, s), rounded(X, vh)


@svd.infer
def _(X):
    require_matrices("X", X)
    *batch, m, n = X.shape
    k = -1 if -1 in (m, n) else min(m, n)
    return X.with_shape((*batch, m, k)), X.with_shape((*batch, k)), X.with_shape((*batch, k, n))


@svd.grad
def _(g, U, S, VH, U_grad=None, S_grad=None, VH_grad=None):
    """Townsend, Differentiating the singular value decomposition, 2016."""
    V = transposed(g, VH)
    inner = None if S_grad is None else g.elementwise_mul(unit_like(g, _square(g, S)), _row(g, S_grad))
    outside = []
    turn = None if U_grad is None and VH_grad is None else _between(g, g.square(S))
    if U_grad is not None:
        own = g.elementwise_mul(g.elementwise_mul(turn, _skew(g, U, U_grad)), _row(g, S))
        inner = own if inner is None else g.elementwise_add(inner, own)
        outside.append(g.matmul(g.elementwise_div(_beside(g, U, U_grad), _row(g, S)), VH))
    if VH_grad is not None:
        V_grad = transposed(g, VH_grad)
        own = g.elementwise_mul(g.elementwise_mul(turn, _skew(g, V, V_grad)), _column(g, S))
        inner = own if inner is None else g.elementwise_add(inner, own)
        outside.append(g.matmul(g.elementwise_div(U, _row(g, S)), _beside(g, V, V_grad), trans_y=True))
    whole = g.matmul(g.matmul(U, inner), VH)
    for part in outside:
        whole = g.elementwise_add(whole, part)
    return whole


def _square(g: Any, values: Any) -> Any:
    """Something in the shape of the matrices that have these values on their diagonals."""
    return g.elementwise_mul(_row(g, values), _column(g, values))


def _beside(g: Any, vectors: Any, slope: Any) -> Any:
    """The part of `slope` that lies outside of what the vectors span."""
    return g.elementwise_sub(slope, g.matmul(vectors, g.matmul(vectors, slope, trans_x=True)))


@svd.samples
def _(rng):
    for shape in ((4, 3), (2, 3, 3), (2, 4), (1, 1), (0, 3, 2)):
        yield (rng.normal(size=shape) + np.eye(*shape[-2:]) * (2 + 3 * np.arange(shape[-1])),), {}


@op(traits={"reports"}, gpu="linalg.linalg")
def pinv(X, *, rcond: float = 1e-15, hermitian: bool = False):
    """The Moore-Penrose inverse [..., n, m] of X [..., m, n].

    rcond      singular values below `rcond` times the largest one count as 0
    hermitian  X is symmetric; only its lower triangle is read
    """
    return rounded(X, computed(np.linalg.pinv, X, rcond=rcond, hermitian=hermitian))


@pinv.infer
def _(X, *, rcond, hermitian):
    require_matrices("X", X, square=hermitian)
    return X.with_shape((*X.shape[:-2], X.shape[-1], X.shape[-2]))


@pinv.grad
def _(g, X, Out, Out_grad, *, rcond, hermitian):
    """Golub and Pereyra, 1973: the slope where the rank stays the same."""
    forth = g.matmul(g.matmul(Out, Out_grad, trans_x=True), Out, trans_y=True)  # P^T G P^T
    left = g.matmul(Out_grad, g.matmul(Out, Out, trans_y=True), trans_x=True)  # G^T P P^T, outside of X's columns
    left = g.elementwise_sub(left, g.matmul(X, g.matmul(Out, left)))
    right = g.matmul(g.matmul(Out, Out, trans_x=True), Out_grad, trans_y=True)  # P^T P G^T, outside of its rows
    right = g.elementwise_sub(right, g.matmul(g.matmul(right, Out), X))
    whole = g.elementwise_sub(g.elementwise_add(left, right), forth)
    return of_triangle(g, g.elementwise_add(whole, transposed(g, whole)), False) if hermitian else whole


@pinv.samples
def _(rng):
    for shape in ((4, 3), (2, 3, 3), (2, 4), (1, 1), (0, 3, 2)):
        yield (rng.normal(size=shape) + 2 * np.eye(*shape[-2:]),), {}
    x = invertible(rng)
    yield (x + x.T,), {"hermitian": True}
    yield (np.diag([2.0, 2.0, 1.0])[:, :2],), {"rcond": 0.1}
