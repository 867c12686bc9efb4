"""Solutions of systems of equations, and determinants.

All operators of this family take matrices in the last two axes, one for each place of the axes before them, and
compute in float64 by LAPACK, on a GPU too. A matrix that has no answer is a KernelError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import INNER, MIXED_TYPES, RANK
from minigraph.kernels.linalg import computed
from minigraph.opdef import op
from minigraph.types import TensorType


def rounded(like: np.ndarray, x: Any) -> np.ndarray:
    """x in the type of `like`, in C order."""
    return np.array(x, like.dtype, order="C")


def require_matrices(name: str, t: TensorType, square: bool = False) -> None:
    require(t.is_float, f"{name} must be a float, is {t}", DTypeError, f"cast {name}")
    require(t.ndim >= 2, f"{name} must hold matrices in its last two axes, is {t}", RANK)
    rows, columns = t.shape[-2:]
    require(not square or -1 in (rows, columns) or rows == columns, f"matrices of {name} must be square, it is {t}")


def transposed(g: Any, x: Any) -> Any:
    """The last two axes swapped."""
    return g.transpose(x, perm=[*range(x.type.ndim - 2), x.type.ndim - 1, x.type.ndim - 2])


def unit_like(g: Any, x: Any) -> Any:
    """Unit matrices in the shape of x."""
    ones = g.tril_triu(g.fill_any_like(x, value=1.0))
    return g.tril_triu(ones, lower=False)


def of_one_batch(X: TensorType, Y: TensorType) -> tuple[int, ...]:
    """The axes before the matrices, which X and Y share."""
    require(X.dtype == Y.dtype, f"X is {X.dtype}, Y is {Y.dtype}", MIXED_TYPES, "cast one of them")
    same = X.ndim == Y.ndim and all(-1 in (a, b) or a == b for a, b in zip(X.shape[:-2], Y.shape[:-2], strict=True))
    require(same, f"axes before the matrices differ: X is {X}, Y is {Y}", hint="expand one of them")
    n, rows = X.shape[-1], Y.shape[-2]
    require(-1 in (n, rows) or n == rows, f"X has {n} columns, Y has {rows} rows", INNER)
    return tuple(b if a == -1 else a for a, b in zip(X.shape[:-2], Y.shape[:-2], strict=True))


def invertible(rng: Any, *batch: int, n: int = 3) -> np.ndarray:
    """Matrices far from singular ones."""
    return rng.normal(size=(*batch, n, n)) + 3 * np.eye(n)


@op(traits={"reports"}, gpu="linalg.linalg")
def solve(X, Y):
    """Out with X @ Out = Y; X [..., n, n], Y [..., n, k]. A singular X is a KernelError."""
    return rounded(Y, computed(np.linalg.solve, X, Y))


@solve.infer
def _(X, Y):
    require_matrices("X", X, square=True)
    require_matrices("Y", Y)
    return Y.with_shape((*of_one_batch(X, Y), *Y.shape[-2:]))


@solve.grad
def _(g, X, Out, Out_grad):
    Y_grad = g.solve(transposed(g, X), Out_grad)
    return g.scale(g.matmul(Y_grad, Out, trans_y=True), scale=-1.0), Y_grad


@solve.samples
def _(rng):
    yield (invertible(rng), rng.normal(size=(3, 2))), {}
    yield (invertible(rng, 2, 1), rng.normal(size=(2, 1, 3, 1))), {}
    yield (invertible(rng, n=1), rng.normal(size=(1, 4))), {}
    yield (np.zeros((0, 3, 3)), np.zeros((0, 3, 2))), {}
    yield (invertible(rng), np.zeros((3, 0))), {}


@op(traits={"reports"}, gpu="linalg.linalg")
def triangular_solve(X, Y, *, upper: bool = True, transpose: bool = False, unitriangular: bool = False):
    """Out with T @ Out = Y, T the upper or lower triangle of X [..., n, n]; Y [..., n, k].

    transpose      T is transposed
    unitriangular  the diagonal of T is taken as 1, whatever X has there
    """
    triangle = np.triu(X) if upper else np.tril(X)
    if unitriangular:
        n = X.shape[-1]
        triangle = np.where(np.eye(n, dtype=bool), np.ones((), X.dtype), triangle)
    return rounded(Y, computed(np.linalg.solve, np.swapaxes(triangle, -1, -2) if transpose else triangle, Y))


@triangular_solve.infer
def _(X, Y, *, upper, transpose, unitriangular):
    return solve.infer_types({"X": [X], "Y": [Y]}, {})["Out"][0]


@triangular_solve.grad
def _(g, X, Out, Out_grad, *, upper, transpose, unitriangular):
    Y_grad = g.triangular_solve(X, Out_grad, upper=upper, transpose=not transpose, unitriangular=unitriangular)
    pair = (Out, Y_grad) if transpose else (Y_grad, Out)
    whole = g.scale(g.matmul(*pair, trans_y=True), scale=-1.0)
    off = int(unitriangular)
    return g.tril_triu(whole, diagonal=off if upper else -off, lower=not upper), Y_grad


@triangular_solve.samples
def _(rng):
    for upper in (False, True):
        for transpose in (False, True):
            attrs = {"upper": upper, "transpose": transpose, "unitriangular": upper == transpose}
            yield (invertible(rng), rng.normal(size=(3, 2))), attrs
    yield (invertible(rng, 2), rng.normal(size=(2, 3, 1))), {"unitriangular": True}
    yield (np.zeros((0, 2, 2)), np.zeros((0, 2, 3))), {}


def _inverse_transposed(g: Any, X: Any) -> Any:
    return g.solve(transposed(g, X), unit_like(g, X))


def _for_matrices(g: Any, x: Any) -> Any:
    """One number for each matrix, as a factor of its elements."""
    return g.unsqueeze(x, axes=[x.type.ndim, x.type.ndim + 1])


@op(gpu="linalg.linalg")
def determinant(X):
    """The determinants of X [..., n, n]. The gradient needs an inverse: at a singular X it is a KernelError."""
    return rounded(X, computed(np.linalg.det, X))


@determinant.infer
def _(X):
    require_matrices("X", X, square=True)
    return X.with_shape(X.shape[:-2])


@determinant.grad
def _(g, X, Out, Out_grad):
    return g.elementwise_mul(_inverse_transposed(g, X), _for_matrices(g, g.elementwise_mul(Out, Out_grad)))


@determinant.samples
def _(rng):
    yield (invertible(rng),), {}
    yield (invertible(rng, 2, 2, n=2),), {}
    yield (np.zeros((0, 3, 3)),), {}


@op("Sign, LogAbs", gpu="linalg.linalg")
def slogdeterminant(X):
    """The signs of the determinants of X [..., n, n], and log |determinant|: 0 and -inf of a singular one."""
    sign, log = computed(np.linalg.slogdet, X)
    return rounded(X, sign), rounded(X, log)


@slogdeterminant.infer
def _(X):
    one = determinant.infer_types({"X": [X]}, {})["Out"][0]
    return one, one


@slogdeterminant.grad
def _(g, X, LogAbs_grad):
    return g.elementwise_mul(_inverse_transposed(g, X), _for_matrices(g, LogAbs_grad))


@slogdeterminant.samples
def _(rng):
    yield (invertible(rng),), {}
    yield (-invertible(rng, 2, 2),), {}
