"""Functions of tensors and of matrices, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.paddle.cases import Case, Gradients

Made = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
Y = np.array([[1.5, 2.25, 0.5], [-1.0, 4.0, 1.25]])
M = np.array([[4.0, 1.0, -0.5], [0.25, 3.0, 1.5], [-1.0, 0.5, 5.0]])
N = np.array([[1.0, 0.5], [-0.25, 2.0], [0.75, -1.5]])
TALL = np.array([[1.0, 0.5, 0.0], [-0.25, 2.0, 1.0], [0.75, -1.5, 3.0], [2.0, 0.25, 0.5]])
MATRICES = np.stack([M, M.T + np.eye(3)])
CUBE = np.sin(np.arange(24.0)).reshape(2, 3, 4)
GAPS = np.array([[1.0, np.nan, 3.0, 4.0], [2.0, 0.5, np.nan, 8.0]])
VECTOR = np.array([2.0, -0.5, 3.0, 0.0, 1.5])


def symmetric(x: Any) -> Any:
    """Symmetric matrices whose gradient is that of x on both sides."""
    return (x + x.transpose([*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2])) * 0.5


def positive(p: Any, x: Any) -> Any:
    return p.matmul(x, x, transpose_y=True) + p.eye(3, dtype="float64")


def equations() -> dict[str, Made]:
    """einsum: (operands, equation)."""
    batch = np.cos(np.arange(24.0)).reshape(2, 4, 3)
    given = {
        "ij,kj->ik": (X, Y), "ij,ij->": (X, Y), "ij->ji": (X,), "ii->i": (M,), "ii": (M,), "ij,ij->j": (X, Y),
        "bij,bjk->bik": (CUBE, batch), "bij,bjk->ki": (CUBE, batch), "i,j->ij": (VECTOR, X[0]),
        "...ij,...jk->...ik": (CUBE, batch), "ij,jk,kl->il": (X, M, N), "bij,kj->bik": (CUBE, np.ones((2, 4))),
        "bij,bij->bi": (CUBE, CUBE + 1), "ijk->i": (CUBE,),
    }  # fmt: skip
    return {
        f"einsum {equation}": (lambda p, *x, e=equation: p.einsum(e, *x), arrays) for equation, arrays in given.items()
    }


def running() -> dict[str, Made]:
    return {
        "cumprod": (lambda p, x: p.cumprod(x, 0), (VECTOR,)),
        "cumprod of columns": (lambda p, x: p.cumprod(x, 1), (CUBE,)),
        "cummax": (lambda p, x: p.cummax(x, 1)[0], (CUBE,)),
        "cummax laid flat": (lambda p, x: p.cummax(x)[0], (X,)),
        "cummax places": (lambda p, x: p.cummax(x, 0, "int32")[1], (np.array([1, 3, 3, 2, 5]),)),
        "cummin": (lambda p, x: p.cummin(x, -1)[0], (CUBE,)),
        "cummin places": (lambda p, x: p.cummin(x, 1)[1], (np.array([[4, 2, 3, 2, 1], [1, 1, 0, 7, 0]]),)),
        "logcumsumexp": (lambda p, x: p.logcumsumexp(x, 1), (CUBE,)),
        "logcumsumexp laid flat": (lambda p, x: p.logcumsumexp(x * 100.0), (X,)),
        "trapezoid": (lambda p, y, x: p.trapezoid(y, x), (X, np.array([0.0, 1.5, 2.0]))),
        "trapezoid by steps": (lambda p, y: p.trapezoid(y, dx=0.5, axis=0), (CUBE,)),
        "cumulative_trapezoid": (lambda p, y: p.cumulative_trapezoid(y), (CUBE,)),
        "vander": (lambda p, x: p.vander(x, 4), (np.array([0.5, 2.0, -1.0]),)),
        "vander increasing": (lambda p, x: p.vander(x, increasing=True), (np.array([0.5, 2.0, -1.0]),)),
    }


def fitting() -> dict[str, Made]:
    return {
        "tensordot": (lambda p, x, y: p.tensordot(x, y), (CUBE, CUBE.transpose(1, 2, 0))),
        "tensordot of lists": (lambda p, x, y: p.tensordot(x, y, [[1], [0]]), (CUBE, M)),
        "cross": (lambda p, x, y: p.cross(x, y), (X, Y)),
        "cross along an axis": (lambda p, x, y: p.cross(x, y, axis=0), (M, MATRICES[1])),
        "cdist": (lambda p, x, y: p.cdist(x, y), (X, TALL)),
        "cdist by 1": (lambda p, x, y: p.cdist(x, y, p=1.0), (X, TALL)),
        "renorm": (lambda p, x: p.renorm(x, 2.0, 0, 2.5), (CUBE * 2,)),
        "atleast_3d": (lambda p, x: p.atleast_3d(x), (X,)),
        "atleast_2d": (lambda p, x: p.atleast_2d(x), (VECTOR,)),
        "vsplit": (lambda p, x: p.vsplit(x, [1, -1])[1], (TALL,)),
        "select_scatter": (lambda p, x, y: p.select_scatter(x, y, 1, -2), (CUBE, CUBE[:, 0] + 2)),
        "diagonal_scatter": (lambda p, x, y: p.diagonal_scatter(x, y, 1), (X, np.array([7.0, 8.0]))),
        "diagonal_scatter below": (lambda p, x, y: p.diagonal_scatter(x, y, -1, 2, 1), (CUBE, CUBE[:, 0, :3] + 3)),
        "combinations": (lambda p, x: p.reshape(p.combinations(x, 3), [10, 3]), (VECTOR,)),
        "combinations with replacement": (
            lambda p, x: p.reshape(p.combinations(x, 2, True), [15, 2]), (VECTOR,)),
        "frexp": (lambda p, x: p.frexp(x)[0], (X * 1000,)),
        "frexp exponent": (lambda p, x: p.frexp(p.cast(x, "float64"))[1], (np.array([[1, -3], [1024, 0]]),)),
        "i0": (lambda p, x: p.i0(x), (X * 2,)),
        "i0e": (lambda p, x: p.i0e(x), (X * 20,)),
        "i1": (lambda p, x: p.i1(x), (X * 2,)),
        "i1e": (lambda p, x: p.i1e(x), (X * 20,)),
        "multigammaln": (lambda p, x: p.multigammaln(x, 2), (np.array([2.5, 3.0, 7.25]),)),
        "nanmedian": (lambda p, x: p.nanmedian(x, 1, True), (GAPS,)),
        "nanmedian of all": (lambda p, x: p.nanmedian(x), (GAPS,)),
        "nanquantile": (lambda p, x: p.nanquantile(x, [0.25, 0.5], 1), (GAPS,)),
        "bincount": (lambda p, x: p.reshape(p.bincount(x, minlength=7), [7]), (np.array([1, 2, 2, 6]),)),
        "setitem": (lambda p, x: p.static.setitem(x, (slice(None), slice(0, None, 2)), 9.0), (X,)),
        "setitem of a value": (lambda p, x, y: p.static.setitem(x, 1, y), (X, Y[0])),
        "setitem by truth": (lambda p, x: p.static.setitem(x, x > 1.0, 9.0), (X,)),
        "a shape from sizes": (lambda p, x: p.reshape(p.reshape(x, [p.shape(x)[0], -1]), [2, 12]), (CUBE,)),
    }


def padding() -> dict[str, Made]:
    plane = CUBE[:, None]
    cases: dict[str, Made] = {
        "pad": (lambda p, x: p.nn.functional.pad(x, [1, 0, 2, 1], value=0.5), (X,)),
        "nn.Pad1D": (lambda p, x: p.nn.Pad1D([1, 2], mode="reflect")(x), (CUBE,)),
        "nn.Pad2D": (lambda p, x: p.nn.Pad2D(1, mode="constant", value=2.0)(x), (plane,)),
        "nn.Pad3D": (lambda p, x: p.nn.Pad3D([1, 0, 0, 1, 1, 1], mode="replicate")(x), (plane[None],)),
        "nn.ZeroPad2D": (lambda p, x: p.nn.ZeroPad2D([1, 0, 2, 1])(x), (plane,)),
        "sequence_mask": (lambda p, x: p.nn.functional.sequence_mask(x, 4, "float64"), (np.array([1, 3, 0]),)),
    }
    for mode in ("constant", "reflect", "replicate", "circular"):
        cases[f"pad {mode} NCHW"] = (
            lambda p, x, m=mode: p.nn.functional.pad(x, [1, 2, 2, 0], m), (plane,)
        )  # fmt: skip
        cases[f"pad {mode} NHWC"] = (
            lambda p, x, m=mode: p.nn.functional.pad(x, [0, 1, 1, 1], m, data_format="NHWC"),
            (plane.transpose(0, 2, 3, 1),),
        )
    return cases


def matrices() -> dict[str, Made]:
    """paddle.linalg; what has a free sign is squared."""
    return {
        "inverse": (lambda p, x: p.inverse(x), (MATRICES,)),
        "linalg.solve": (lambda p, x, y: p.linalg.solve(x, y), (M, N)),
        "linalg.solve of a vector": (lambda p, x, y: p.linalg.solve(x, y), (M, N[:, 0])),
        "linalg.solve of batches": (lambda p, x, y: p.linalg.solve(x, y), (MATRICES, np.stack([N, N + 1]))),
        "linalg.triangular_solve": (lambda p, x, y: p.linalg.triangular_solve(x, y), (M, N)),
        "linalg.triangular_solve otherwise": (
            lambda p, x, y: p.linalg.triangular_solve(x, y, upper=False, transpose=True, unitriangular=True), (M, N)),
        "linalg.cholesky": (lambda p, x: p.linalg.cholesky(positive(p, x)), (M,)),
        "linalg.cholesky upper": (lambda p, x: p.linalg.cholesky(positive(p, x), upper=True), (MATRICES,)),
        "linalg.cholesky_solve": (
            lambda p, x, y: p.linalg.cholesky_solve(y, p.linalg.cholesky(positive(p, x))), (M, N)),
        "linalg.det": (lambda p, x: p.sum(p.linalg.det(x)), (M,)),
        "linalg.qr": (lambda p, x: p.linalg.qr(x)[0] ** 2.0, (TALL,)),
        "linalg.qr R": (lambda p, x: p.linalg.qr(x)[1] ** 2.0, (TALL,)),
        "linalg.qr both": (lambda p, x: p.matmul(*p.linalg.qr(x)), (TALL,)),
        "linalg.lu": (lambda p, x: p.linalg.lu(x)[0], (M,)),
        "linalg.lu of a tall one": (lambda p, x: p.linalg.lu(x)[0], (TALL,)),
        "linalg.lu pivots": (
            lambda p, x: p.linalg.lu(p.cast(x, "float64"), get_infos=True)[1], (np.array([[1, 2], [5, 1], [7, 3]]),)),
        "linalg.lu_unpack": (lambda p, x: p.linalg.lu_unpack(*p.linalg.lu(x))[2], (M,)),
        "linalg.eigh": (lambda p, x: p.linalg.eigh(symmetric(x))[0], (MATRICES,)),
        "linalg.eigh vectors": (lambda p, x: p.linalg.eigh(symmetric(x), "U")[1] ** 2.0, (M,)),
        "linalg.eigvalsh": (lambda p, x: p.linalg.eigvalsh(symmetric(x)), (M,)),
        "linalg.svd": (lambda p, x: p.linalg.svd(x)[1], (TALL,)),
        "linalg.svd vectors": (lambda p, x: p.linalg.svd(x)[0] ** 2.0, (TALL,)),
        "linalg.svd of a wide one": (lambda p, x: p.linalg.svd(x)[2] ** 2.0, (TALL.T,)),
        "linalg.pinv": (lambda p, x: p.linalg.pinv(x), (TALL,)),
        "linalg.pinv of a symmetric one": (lambda p, x: p.linalg.pinv(symmetric(x), hermitian=True), (M,)),
        "linalg.lstsq": (lambda p, x, y: p.linalg.lstsq(x, y, driver="gelsd")[0], (TALL, TALL[:, :2] ** 2.0)),
        "linalg.lstsq rest": (lambda p, x, y: p.linalg.lstsq(x, y, driver="gelsd")[1], (TALL, TALL[:, :2] ** 2.0)),
        "linalg.matrix_rank": (
            lambda p, x: p.linalg.matrix_rank(p.cast(x, "float64")), (np.array([[[1, 2], [5, 1]], [[1, 2], [2, 4]]]),)),
        "linalg.matrix_power": (lambda p, x: p.linalg.matrix_power(x, 3), (M,)),
        "linalg.matrix_power -2": (lambda p, x: p.linalg.matrix_power(x, -2), (MATRICES,)),
        "linalg.multi_dot": (lambda p, x, y, z: p.linalg.multi_dot([x, y, z]), (X, M, N)),
        "linalg.cond": (lambda p, x: p.linalg.cond(x), (M,)),
        "linalg.cond of the largest sums": (lambda p, x: p.linalg.cond(x, np.inf), (M,)),
        "linalg.cond fro": (lambda p, x: p.linalg.cond(x, "fro"), (M,)),
        "linalg.norm": (lambda p, x: p.linalg.norm(x, axis=1), (TALL,)),
        "linalg.householder_product": (
            lambda p, x, t: p.linalg.householder_product(x, t), (TALL, np.array([0.5, 1.0, 0.25]))),
    }  # fmt: skip


NEAR = {"multigammaln": 1e-7}  # Paddle keeps a constant of it in float32
SLIPS = {
    "trapezoid": "all rows of y get the gradient of the first one",
    "cumulative_trapezoid": "all rows of y get the gradient of the first one",
    "linalg.triangular_solve otherwise": "the diagonal, which is not read, and the other triangle get a gradient",
    "linalg.eigh": "all matrices of a batch get the gradient of the first one's eigenvalues",
}
# How many of the float inputs have a gradient in Paddle, where not all have.
WITH = {"diagonal_scatter": 1, "diagonal_scatter below": 1, "linalg.lstsq": 0, "linalg.lstsq rest": 0}
CASES = {
    name: Gradients(*made, of=WITH.get(name))
    for name, made in (equations() | running() | fitting() | padding() | matrices()).items()
} | {"linalg.slogdet": Case(lambda p, x: p.linalg.slogdet(x), (M,))}  # Paddle declares another shape than it gives
