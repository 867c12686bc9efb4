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
}

OF_KNOWN_SIZES = {"roll", "diagonal", "kron", "normal", "inner"}


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
    slopes = static.gradients([out], given, [mg.assign(weight)])
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
