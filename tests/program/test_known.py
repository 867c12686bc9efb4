"""Variables in attributes: sizes and constants count, and what a run decides is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import MinigraphError

X = np.arange(24.0).reshape(2, 3, 4)

CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray], Any]]] = {
    "reshape": (lambda x, y: mg.reshape(x, [mg.shape(x)[0], -1]), lambda x: x.reshape(2, 12)),
    "reshape by products": (
        lambda x, y: mg.reshape(x, [mg.shape(x)[0], mg.shape(x)[1] * mg.shape(x)[2]]), lambda x: x.reshape(2, 12)),
    "reshape by another's batch": (
        lambda x, y: mg.reshape(mg.flatten(x), [mg.shape(x)[0], 12]), lambda x: x.reshape(2, 12)),
    "reshape by a product of unknown sizes": (
        lambda x, y: mg.reshape(x, [mg.shape(x)[0] * 3, 4]), lambda x: x.reshape(6, 4)),
    "reshape by two sizes of others": (
        lambda x, y: mg.reshape(mg.tile(x, [2, 1, 1]), [mg.shape(x)[0], 3, mg.shape(mg.flatten(x[:, 0, :2]))[0], 2]),
        lambda x: np.tile(x, (2, 1, 1)).reshape(2, 3, 4, 2)),
    "full of a batch": (
        lambda x, y: mg.full([3, mg.shape(x)[0], 1, mg.shape(mg.flatten(x))[0]], 2.5, "float64"),
        lambda x: np.full((3, 2, 1, 24), 2.5)),
    "expand to a batch": (lambda x, y: mg.expand(y[0], [mg.shape(x)[0], -1, 4]), lambda x: np.stack([x[0], x[0]])),
    "arange of a batch": (
        lambda x, y: mg.arange(1, mg.shape(mg.flatten(x))[0], 2, "float64"), lambda x: np.arange(1, 24, 2)),
    "a whole shape": (
        lambda x, y: mg.reshape(y, mg.concat([mg.shape(y)[:1], mg.assign([12]).astype("int32")])),
        lambda x: x.reshape(2, 12)),
    "slice": (lambda x, y: y[: mg.shape(y)[1] - 2, 1 : mg.assign(3)], lambda x: x[:1, 1:3]),
    "slice function": (lambda x, y: mg.slice(y, [2], [mg.assign(1)], [mg.assign(3)]), lambda x: x[:, :, 1:3]),
    "full": (lambda x, y: mg.full([mg.assign(2) + 1, 3], 0.5, "float64"), lambda x: np.full((3, 3), 0.5)),
    "zeros": (lambda x, y: mg.zeros(mg.shape(y), "float64"), np.zeros_like),
    "arange": (lambda x, y: mg.arange(mg.shape(y)[2]), lambda x: np.arange(4)),
    "linspace": (lambda x, y: mg.linspace(0, 1, mg.shape(y)[1], "float64"), lambda x: np.linspace(0, 1, 3)),
    "axis": (lambda x, y: mg.sum(x, axis=mg.assign(1)), lambda x: x.sum(1)),
    "topk": (lambda x, y: mg.topk(x, mg.assign(2))[0], lambda x: x[..., :1:-1]),
    "split": (lambda x, y: mg.split(x, mg.assign(3), axis=1)[1], lambda x: x[:, 1:2]),
    "tile": (lambda x, y: mg.tile(x, [1, mg.assign(2), 1]), lambda x: np.tile(x, (1, 2, 1))),
    "a counter": (lambda x, y: mg.zeros([mg.increment(mg.assign([1]), 2.0), 2], "float64"), lambda x: np.zeros((3, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numbers(name):
    build, numpys = CASES[name]
    x, y = static.data("x", [None, 3, 4], "float64"), static.data("y", X.shape, "float64")
    (value,) = static.Executor().run(feed={"x": X, "y": X}, fetch_list=[build(x, y)])
    np.testing.assert_array_equal(value, numpys(X))


WAIT = {
    "fed": (lambda x, n: mg.full([n], 1.5, "float64"), lambda x: np.full(3, 1.5)),
    "a size": (lambda x, n: mg.tile(x, [mg.shape(x)[0], 1, 1]), lambda x: np.tile(x, (2, 1, 1))),
    "twice a size": (lambda x, n: mg.tile(x, [mg.shape(x)[0] * 2, 1, 1]), lambda x: np.tile(x, (4, 1, 1))),
    "a sum": (lambda x, n: mg.reshape(x, [mg.shape(x)[0] + 4, 4]), lambda x: x.reshape(6, 4)),
    "beside another one": (
        lambda x, n: mg.reshape(mg.transpose(x, [1, 0, 2]), [mg.shape(x)[0], -1]),
        lambda x: x.transpose(1, 0, 2).reshape(2, 12)),
    "of another axis": (
        lambda x, n: mg.tile(mg.ones([2, 3], "float64"), [mg.shape(x)[0], 1]), lambda x: np.ones((4, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", WAIT)
def test_numbers_that_only_a_run_knows_are_waited_for(name):
    build, numpys = WAIT[name]
    x, n = static.data("x", [None, 3, 4], "float64"), static.data("n", [], "int64")
    (value,) = static.Executor().run(feed={"x": X, "n": np.array(3)}, fetch_list=[build(x, n)])
    np.testing.assert_array_equal(value, numpys(X))


def test_numbers_of_a_run_that_do_not_fit_are_refused_there():
    x = static.data("x", [None, 3, 4], "float64")
    y = mg.reshape(x, [mg.shape(x)[0] * 2, 4])
    with pytest.raises(MinigraphError, match=r"reshape.*24"):
        static.Executor().run(feed={"x": X}, fetch_list=[y])


REFUSED = {
    "w is kept in a scope": lambda x: mg.reshape(x, [static.create_parameter([1], "int64", "w"), 12]),
    "is computed by uniform_random": lambda x: mg.reshape(x, [mg.rand([1]), 12]),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_is_no_number_of_a_run_is_refused(fact):
    with pytest.raises(MinigraphError) as caught:
        REFUSED[fact](static.data("x", [None, 3, 4], "float64"))
    assert fact in str(caught.value)
