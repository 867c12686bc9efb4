"""Random functions draw from the program's seed: the right distribution, and the same numbers again for one seed."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static

MANY = [200, 300]


def drawn(build, seed=7):
    with static.program_guard(static.Program(), static.Program()):
        mg.seed(seed)
        out = build()
        return static.Executor(mg.CPUPlace()).run(out.block.program, fetch_list=[out])[0]


CASES = {  # function: mean, standard deviation, bounds, data type
    "rand": (lambda: mg.rand(MANY), 0.5, 12**-0.5, (0, 1), "float32"),
    "uniform": (lambda: mg.uniform(MANY, "float64", 2, 4), 3, 2 * 12**-0.5, (2, 4), "float64"),
    "randn": (lambda: mg.randn(MANY), 0, 1, (-9, 9), "float32"),
    "standard_normal": (lambda: mg.standard_normal(MANY, "float64"), 0, 1, (-9, 9), "float64"),
    "normal": (lambda: mg.normal(2.0, 0.5, MANY), 2, 0.5, (-9, 9), "float32"),
    "normal of variables": (lambda: mg.normal(mg.full(MANY, 3.0), 2.0), 3, 2, (-20, 20), "float32"),
    "randint": (lambda: mg.randint(-2, 3, MANY), 0, 2**0.5, (-2, 2), "int64"),
    "randint_like": (lambda: mg.randint_like(mg.zeros(MANY), 0, 5), 2, 2**0.5, (0, 4), "float32"),
    "bernoulli": (lambda: mg.bernoulli(mg.full(MANY, 0.25)), 0.25, 0.1875**0.5, (0, 1), "float32"),
}


@pytest.mark.parametrize("name", CASES)
def test_distribution(name):
    build, mean, std, (low, high), dtype = CASES[name]
    x = drawn(build)
    assert x.dtype == dtype
    assert x.shape == tuple(MANY)
    assert x.min() >= low
    assert x.max() <= high
    assert abs(x.mean(dtype=float) - mean) < 5 * std / x.size**0.5
    assert abs(x.std(dtype=float) / std - 1) < 0.02
    np.testing.assert_array_equal(x, drawn(build))
    assert (x != drawn(build, seed=8)).any()


def test_every_int_is_drawn():
    assert set(drawn(lambda: mg.randint(-2, 3, MANY)).ravel()) == {-2, -1, 0, 1, 2}
    assert set(drawn(lambda: mg.randint(3, shape=[100])).ravel()) == {0, 1, 2}


def test_permutations_and_draws_of_classes():
    assert sorted(drawn(lambda: mg.randperm(50))) == list(range(50))
    weights = np.array([[0.0, 1.0, 3.0], [2.0, 2.0, 0.0]])
    found = drawn(lambda: mg.multinomial(mg.assign(weights), 20000, replacement=True))
    shares = np.stack([np.bincount(row, minlength=3) for row in found]) / 20000
    np.testing.assert_allclose(shares, weights / weights.sum(1, keepdims=True), atol=0.02)
    found = drawn(lambda: mg.multinomial(mg.full([5000, 3], 1.0) * mg.assign([0.0, 1.0, 3.0]), 2))
    assert (np.sort(found, axis=1) == [1, 2]).all()
    assert abs((found[:, 0] == 2).mean() - 0.75) < 0.03
