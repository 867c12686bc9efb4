"""Gradients of functions that are made of several operators, against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static

X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
Y = np.array([[1.5, 2.25, 0.5], [-1.0, 4.0, 1.25]])
ROWS = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.5]])
CUBE = np.linspace(-1, 2, 24).reshape(2, 3, 4) ** 3
I = np.array([1, 0, 1])  # noqa: E741
STEP = 1e-5

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "scatter": (lambda x, v: mg.scatter(x, mg.assign(I), v), (X, ROWS)),
    "scatter sums": (lambda x, v: mg.scatter(x, mg.assign(I), v, overwrite=False), (X, ROWS)),
    "scatter_nd_add": (lambda x, v: mg.scatter_nd_add(x, mg.assign(I[:, None]), v), (X, ROWS)),
    "gather_nd": (lambda x: mg.gather_nd(x, mg.assign([[0, 1], [1, 2], [0, 1]])), (X,)),
    "take_along_axis": (lambda x: mg.take_along_axis(x, mg.assign([[2, 2], [0, 1]]), 1), (X,)),
    "put_along_axis": (lambda x, v: mg.put_along_axis(x, mg.assign([[1, 1], [0, 2]]), v[:, :2], 1), (X, Y)),
    "put_along_axis add": (lambda x, v: mg.put_along_axis(x, mg.assign([[1, 1], [0, 2]]), v[:, :2], 1, "add"), (X, Y)),
    "index_add": (lambda x, v: mg.index_add(x, mg.assign(I), 0, v), (X, ROWS)),
    "index_put": (lambda x, v: mg.index_put(x, (mg.assign([0, 1, 0]), mg.assign([2, 0, 2])), v[0]), (X, Y)),
    "index_fill": (lambda x: mg.index_fill(x, mg.assign([1]), 1, 5.0), (X,)),
    "repeat_interleave": (lambda x: mg.repeat_interleave(x, [2, 0, 1], 1), (X,)),
    "multiplex": (lambda x, y: mg.multiplex([x, y], mg.assign([[1], [0]])), (X, Y)),
    "topk": (lambda x: mg.topk(x, 2)[0], (X,)),
    "kthvalue": (lambda x: mg.kthvalue(x, 2, axis=0)[0], (X,)),
    "median": (lambda x: mg.median(x, axis=1), (X,)),
    "quantile": (lambda x: mg.quantile(x, [0.3, 0.6], axis=1), (X,)),
    "mode": (lambda x: mg.mode(x)[0], (X,)),
    "logsumexp": (lambda x: mg.logsumexp(x, axis=1), (X,)),
    "logsumexp all": (lambda x: mg.logsumexp(x, keepdim=True), (X,)),
    "norm": (lambda x: mg.norm(x, axis=1), (X,)),
    "norm three": (lambda x: mg.norm(x, 3, axis=[0, 1]), (X,)),
    "norm inf": (lambda x: mg.norm(x, np.inf, axis=0), (X,)),
    "dist": (lambda x, y: mg.dist(x, y, 2), (X, Y)),
    "var": (lambda x: mg.var(x, axis=0), (X,)),
    "std": (lambda x: mg.std(x), (X,)),
    "nanmean": (lambda x: mg.nanmean(x, axis=1), (X,)),
    "roll": (lambda x: mg.roll(x, [1, 2], [0, 1]), (X,)),
    "flip": (lambda x: mg.flip(x, [0, 2]), (CUBE,)),
    "rot90": (lambda x: mg.rot90(x), (X,)),
    "diagonal": (lambda x: mg.diagonal(x, 1, 0, 2), (CUBE,)),
    "diag_embed": (lambda x: mg.diag_embed(x, -1, 0, 2), (X,)),
    "kron": (lambda x, y: mg.kron(x, y), (X, Y)),
    "inner": (lambda x, y: mg.inner(x, y), (X, Y)),
    "expand_as": (lambda x: mg.expand_as(x[:1], x), (X,)),
    "diff": (lambda x: mg.diff(x, 2), (X,)),
    "remainder": (lambda x, y: x % y, (X + 0.1, Y)),
    "lerp": (lambda x, y: mg.lerp(x, y, y), (X, Y)),
    "logaddexp": (lambda x, y: mg.logaddexp(x, y), (X, Y)),
    "hypot": (lambda x, y: mg.hypot(x, y), (X, Y)),
    "fmax": (lambda x, y: mg.fmax(x, y), (X, Y)),
    "linspace": (lambda x: mg.linspace(x[0, 0], x[1, 1], 5, "float64"), (X,)),
    "normal": (lambda x: mg.normal(x, 0.0), (X,)),
    "einsum": (lambda x, y: mg.einsum("bij,bjk->bki", x, y), (CUBE, CUBE.transpose(0, 2, 1))),
    "einsum of several axes": (lambda x, y: mg.einsum("bij,bjk->i", x, y), (CUBE, CUBE.transpose(0, 2, 1))),
    "einsum of three": (lambda x, y, z: mg.einsum("ij,ik,kl->jl", x, y, z), (X, Y, ROWS)),
    "tensordot": (lambda x, y: mg.tensordot(x, y, [[2, 1], [1, 0]]), (CUBE, ROWS[:, [0, 1, 2, 0]])),
    "trapezoid": (lambda y, x: mg.trapezoid(y, x), (X, Y)),
    "cumulative_trapezoid": (lambda y: mg.cumulative_trapezoid(y, dx=0.5, axis=1), (CUBE,)),
    "vander": (lambda x: mg.vander(mg.flatten(x), 3), (X,)),
    "cross": (lambda x, y: mg.cross(x, y, axis=1), (X, Y)),
    "cdist": (lambda x, y: mg.cdist(x, y), (X, ROWS)),
    "renorm": (lambda x: mg.renorm(x, 3.0, 1, 1.5), (X,)),
    "select_scatter": (lambda x, v: mg.select_scatter(x, v[:, 0], 1, -1), (X, Y)),
    "diagonal_scatter": (lambda x, v: mg.diagonal_scatter(x, v[0, :2], -1, 0, 1), (ROWS, X)),
    "unfold": (lambda x: mg.unfold(x, 1, 2, 1), (CUBE,)),
    "cummax": (lambda x: mg.cummax(x, 1)[0], (CUBE,)),
    "logcumsumexp": (lambda x: mg.logcumsumexp(x), (X,)),
    "nanquantile": (lambda x: mg.nanquantile(x, [0.3, 0.6], axis=1), (X,)),
    "multigammaln": (lambda x: mg.multigammaln(mg.square(x) + 1.5, 3), (X,)),
    "frexp": (lambda x: mg.frexp(x + 0.1)[0], (X,)),
    "i1": (lambda x: mg.i1(x), (X,)),
    "pad": (lambda x: mg.nn.functional.pad(x, [0, 0, 2, 1], value=2.0), (X,)),
    "pad reflect": (lambda x: mg.nn.functional.pad(x, [2, 1], "reflect", data_format="NCL"), (CUBE,)),
    "unique": (lambda x: mg.unique(x, size=7), (X,)),
    "matrix_power": (lambda x: mg.linalg.matrix_power(mg.einsum("ij,kj->ik", x, x), -2), (X,)),
    "cov": (lambda x: mg.linalg.cov(x), (X,)),
    "corrcoef": (lambda x: mg.linalg.corrcoef(x), (ROWS,)),
    "lstsq": (lambda x, y: mg.linalg.lstsq(x, y)[0], (ROWS[:, :2], ROWS**2)),
    "householder_product": (lambda x, t: mg.linalg.householder_product(x, t[0, :2]), (ROWS[:, :2], X)),
    "cond": (lambda x: mg.linalg.cond(x), (ROWS,)),
}

OF_KNOWN_SIZES = {
    "diagonal", "kron", "inner", "diagonal_scatter", "lstsq", "householder_product",
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "batch unknown"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_slopes(name, known):
    build, arrays = CASES[name]
    given = [static.data(f"x{i}", a.shape if known else (None, *a.shape[1:]), "float64") for i, a in enumerate(arrays)]
    for v in given:
        v.stop_gradient = False
    if not known and name in OF_KNOWN_SIZES:
        with pytest.raises(mg.MinigraphError, match="known"):
            build(*given)
        return
    out = build(*given)
    exe, weights = static.Executor(mg.CPUPlace()), np.random.default_rng(3)
    feed = {f"x{i}": a for i, a in enumerate(arrays)}
    (value,) = exe.run(feed=feed, fetch_list=[out])
    weight = weights.normal(size=value.shape)
    slopes = static.gradients([out], given, [mg.to_tensor(weight)])
    found = exe.run(feed=feed, fetch_list=slopes)
    for i, array in enumerate(arrays):
        expected = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = array.copy()
                moved[place] += step
                (value,) = exe.run(feed=feed | {f"x{i}": moved}, fetch_list=[out])
                sides.append((value * weight).sum())
            expected[place] = (sides[0] - sides[1]) / (2 * STEP)
        np.testing.assert_allclose(found[i], expected, rtol=1e-7, atol=1e-7)
