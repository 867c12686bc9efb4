"""Linear algebra against np.linalg, and what it refuses; tests/paddle/function_programs.py compares it with Paddle."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError
from tests.tensor.test_tensor_api import evaluate

M = np.array([[4.0, 1.0, -0.5], [0.25, 3.0, 1.5], [-1.0, 0.5, 5.0]])
N = np.array([[1.0, 0.5], [-0.25, 2.0], [0.75, -1.5]])
TALL = np.array([[1.0, 0.5, 0.0], [-0.25, 2.0, 1.0], [0.75, -1.5, 3.0], [2.0, 0.25, 0.5]])
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
BATCH = np.stack([np.eye(2), SINGULAR])
SIGNS = np.stack([np.eye(2), -np.eye(2)])
WEIGHTS = np.array([0.5, 1.0, 2.0])

NUMPYS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cov": (lambda x: mg.linalg.cov(x), np.cov, (TALL,)),
    "cov of columns": (lambda x: mg.linalg.cov(x, rowvar=False), lambda x: np.cov(x.T), (TALL,)),
    "cov of a vector": (lambda x: mg.linalg.cov(x), np.cov, (N[:, 0],)),
    "cov weighted": (
        lambda x, f, a: mg.linalg.cov(x, fweights=f, aweights=a), lambda x, f, a: np.cov(x, fweights=f, aweights=a),
        (TALL, np.array([1, 2, 1]), WEIGHTS)),
    "cov of times": (lambda x, f: mg.linalg.cov(x, fweights=f), lambda x, f: np.cov(x, fweights=f),
                     (TALL, np.array([3, 2, 1]))),
    "cov of all": (lambda x, a: mg.linalg.cov(x, ddof=False, aweights=a),
                   lambda x, a: np.cov(x, ddof=0, aweights=a), (TALL, WEIGHTS)),
    "corrcoef": (lambda x: mg.linalg.corrcoef(x), np.corrcoef, (TALL,)),
    "solve of one matrix and many sides": (
        lambda x, y: mg.linalg.solve(x, y), np.linalg.solve, (M, np.stack([N, N + 1]))),
    "cond -2": (lambda x: mg.linalg.cond(x, -2), lambda x: np.linalg.cond(x, -2), (M,)),
    "cond nuc": (lambda x: mg.linalg.cond(x, "nuc"), lambda x: np.linalg.cond(x, "nuc"), (M,)),
    "cond -1": (lambda x: mg.linalg.cond(x, -1), lambda x: np.linalg.cond(x, -1), (M,)),
    "matrix_power 0": (lambda x: mg.linalg.matrix_power(x, 0), lambda x: np.linalg.matrix_power(x, 0), (M,)),
    "multi_dot of vectors": (
        lambda x, y, z: mg.linalg.multi_dot([x[0], y, z[0]]), lambda x, y, z: x[0] @ y @ z[0], (M, N, N[1:])),
    "det of batches": (lambda x: mg.linalg.det(x), np.linalg.det, (BATCH,)),
    "slogdet of batches": (lambda x: mg.linalg.slogdet(x), lambda x: np.stack(np.linalg.slogdet(x)), (BATCH,)),
    "lu of all": (
        lambda x: mg.linalg.multi_dot([*mg.linalg.lu_unpack(*mg.linalg.lu(x))]), lambda x: x, (TALL.T,)),
    "infos of lu": (lambda x: mg.linalg.lu(x, get_infos=True)[2], lambda x: np.array([0, 2], np.int32), (BATCH,)),
    "infos of one lu": (
        lambda x: mg.linalg.lu(x, get_infos=True)[2], lambda x: np.array([2], np.int32), (SINGULAR,)),
    "ranks": (lambda x: mg.linalg.matrix_rank(x, hermitian=True), lambda x: np.array([2, 1], np.int32), (BATCH,)),
    "rank by a bound": (lambda x: mg.linalg.matrix_rank(x, tol=4.5), lambda x: np.array(1, np.int32), (M,)),
    "rank of lstsq": (
        lambda x: mg.linalg.lstsq(x, x)[2], lambda x: np.array([2, 1], np.int32), (BATCH,)),
    "the shortest solution": (
        lambda x, y: mg.linalg.lstsq(x, y)[0], lambda x, y: np.linalg.pinv(x) @ y, (SINGULAR, N[:2])),
    "pca_lowrank": (
        lambda x: (lambda u, s, v: mg.matmul(u * s, v, transpose_y=True))(*mg.linalg.pca_lowrank(x, 3)),
        lambda x: x - x.mean(0), (TALL,)),
    "NaN stays with its matrix": (
        lambda x: mg.linalg.svd(x)[1], lambda x: np.array([[np.nan, np.nan], [5.0, 0.0]]),
        (np.stack([np.full((2, 2), np.nan), SINGULAR]),)),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPYS)
def test_values_are_those_of_numpy(name):
    ours, numpys, arrays = NUMPYS[name]
    mg.set_default_dtype("float64")
    found, expected = evaluate(ours, *arrays), np.asarray(numpys(*arrays))
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


REFUSED: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    ("solve(X=x0: f64[2,2,2], Y=x1: f64[2,2,2]): matrix 1 of [2, 2, 2] has no answer", mg.linalg.solve, (BATCH, BATCH)),
    ("matrix 0 of [2, 2] has no answer", mg.linalg.inv, (SINGULAR,)),
    ("matrix 1 of [2, 2, 2] has no answer: Matrix is not positive definite", mg.linalg.cholesky, (SIGNS,)),
    ("matrices of X must be square", mg.linalg.inv, (N,)),
    ("X must be a float", mg.linalg.det, (np.eye(2, dtype=np.int64),)),
    ("X has 3 columns, Y has 2 rows", mg.linalg.solve, (M, N[:2])),
    ("pivot must be True", lambda x: mg.linalg.lu(x, pivot=False), (M,)),
    ("mode 'complete' is none of reduced, r", lambda x: mg.linalg.qr(x, "complete"), (M,)),
    ("UPLO 'X' is neither", lambda x: mg.linalg.eigh(x, "X"), (M,)),
    ("full_matrices=True is not here", lambda x: mg.linalg.svd(x, True), (M,)),
    ("q 5 is not in [0, 3]", lambda x: mg.linalg.pca_lowrank(x, 5), (M,)),
    ("rows >= columns >= tau's size", lambda x: mg.linalg.householder_product(x, x[0]), (N.T,)),
    ("driver 'fast' is unknown", lambda x: mg.linalg.lstsq(x, x, driver="fast"), (M,)),
    ("p is 3, known are", lambda x: mg.linalg.cond(x, 3), (M,)),
    ("n must be an int, is 0.5", lambda x: mg.linalg.matrix_power(x, 0.5), (M,)),
    ("two matrices or more", lambda x: mg.linalg.multi_dot([x]), (M,)),
    ("fweights must hold ints", lambda x: mg.linalg.cov(x, fweights=x[0]), (M,)),
]


@pytest.mark.parametrize(("fact", "build", "arrays"), REFUSED, ids=[f"{i}: {r[0]}" for i, r in enumerate(REFUSED)])
def test_refused(fact, build, arrays):
    with pytest.raises(MinigraphError, match=re.escape(fact)):
        evaluate(build, *arrays)


def test_complex_eigenvalues_say_why_they_are_not_here():
    for name in ("eig", "eigvals"):
        with pytest.raises(MinigraphError, match="complex numbers are not part of minigraph"):
            getattr(mg.linalg, name)


@pytest.mark.parametrize(("driver", "there"), [("gelsd", 2), ("gelss", 2), ("gelsy", 1), (None, 1), ("gels", 0)])
def test_lstsq_gives_what_the_driver_has(driver, there):
    found = evaluate(lambda x: mg.linalg.lstsq(x, x, driver=driver)[2:], M)
    assert [v.size > 0 for v in found] == [i < there for i in range(2)]
