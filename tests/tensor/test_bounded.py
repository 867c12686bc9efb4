"""Results whose size depends on values: what NumPy gives; with a bound cut or filled."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import MinigraphError
from tests.tensor.test_tensor_api import evaluate

X = np.array([[3.0, 0.0, 1.0], [0.0, 1.0, 3.0]])
I = np.array([4, 1, 1, 7, 4, 4])  # noqa: E741
ROWS = np.array([[1, 2], [0, 5], [1, 2], [1, 0]])


def filled(values: np.ndarray, size: int, fill: Any) -> np.ndarray:
    """The first `size` values, then `fill`."""
    rest = max(size - len(values), 0)
    return np.concatenate([values[:size], np.full((rest, *values.shape[1:]), fill, values.dtype)])


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "batch unknown"])
@pytest.mark.parametrize("size", [0, 2, 4, 9])
def test_nonzero(size, known):
    def build(x):
        return [mg.nonzero(x, size=size), *mg.nonzero(x, as_tuple=True, size=size, fill_value=7)]

    x = static.data("x", X.shape if known else [None, 3], "float64")
    rows, *columns = static.Executor().run(feed={"x": X}, fetch_list=build(x))
    expected = np.argwhere(X)
    np.testing.assert_array_equal(rows, filled(expected, size, -1))
    np.testing.assert_array_equal(np.concatenate(columns, 1), filled(expected, size, 7))
    assert rows.dtype == np.int64


@pytest.mark.parametrize("size", [0, 2, 4, 9])
def test_masked_select(size):
    found = evaluate(lambda x: mg.masked_select(x, x > 0, size=size, fill_value=-5.0), X)
    np.testing.assert_array_equal(found, filled(X[X > 0], size, -5.0))
    row = np.array([True, False, True])
    found = evaluate(lambda x, m: x.masked_select(m, size=size), X, row)
    np.testing.assert_array_equal(found, filled(X[:, row].reshape(-1), size, 0.0))


def test_gradients_go_where_the_elements_came_from():
    x = static.data("x", [2, 3], "float64")
    x.stop_gradient = False
    loss = mg.sum(mg.masked_select(x, x > 0, size=3) * mg.assign(np.array([1.0, 10.0, 100.0])))
    (slope,) = static.gradients([loss], [x])
    (value,) = static.Executor().run(feed={"x": X}, fetch_list=[slope])
    np.testing.assert_array_equal(value, [[1.0, 0.0, 10.0], [0.0, 100.0, 0.0]])


@pytest.mark.parametrize("size", [1, 3, 8])
def test_unique(size):
    values, first, inverse, counts = np.unique(I, return_index=True, return_inverse=True, return_counts=True)
    found = evaluate(lambda x: mg.unique(x, True, True, True, size=size, fill_value=-1), I)
    for value, expected, fill in zip(found, (values, first, None, counts), (-1, 0, None, 0), strict=True):
        np.testing.assert_array_equal(value, inverse if expected is None else filled(expected, size, fill))
    found = evaluate(lambda x: mg.unique(x, size=size), X)
    np.testing.assert_array_equal(found, filled(np.unique(X), size, 0.0))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unique_slices(axis):
    values, inverse = np.unique(ROWS, axis=axis, return_inverse=True)
    found, numbers = evaluate(lambda x: mg.unique(x, return_inverse=True, axis=axis, dtype="int32", size=4), ROWS)
    expected = np.moveaxis(filled(np.moveaxis(values, axis, 0), 4, 0), 0, axis)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(numbers, inverse.reshape(-1))
    assert numbers.dtype == np.int32


def test_unique_consecutive():
    values, numbers, lengths = evaluate(lambda x: mg.unique_consecutive(x, True, True, size=5), I)
    np.testing.assert_array_equal(values, [4, 1, 7, 4, 0])
    np.testing.assert_array_equal(numbers, [0, 1, 1, 2, 3, 3])
    np.testing.assert_array_equal(lengths, [1, 2, 1, 2, 0])
    found = evaluate(lambda x: mg.unique_consecutive(x, axis=0, size=2), np.array([[1, 2], [1, 2], [0, 3], [1, 2]]))
    np.testing.assert_array_equal(found, [[1, 2], [0, 3]])


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
def test_without_a_bound_a_run_counts(known):
    def build(x, i):
        return [mg.nonzero(x), *mg.where(x > 1), mg.masked_select(x, x > 0), x[x > 0], x[x[:, 1] > 0],
                x[:, x[0] > 0], *mg.unique(i, True, True, True), *mg.unique_consecutive(i, True, True)]  # fmt: skip

    starts = np.concatenate([[True], I[1:] != I[:-1]])
    for x, i in ((X, I), (X[:1] * 0 + 2, I[:1])):
        expected = [np.argwhere(x), *(p[:, None] for p in np.nonzero(x > 1)), x[x > 0], x[x > 0], x[x[:, 1] > 0],
                    x[:, x[0] > 0], *np.unique(i, True, True, True)]  # fmt: skip
        runs = np.cumsum(starts[: len(i)]) - 1
        expected += [i[starts[: len(i)]], runs, np.bincount(runs)]
        for value, wanted in zip(evaluate(build, x, i, known=known), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_bincount_without_a_length_goes_to_the_largest_int():
    np.testing.assert_array_equal(evaluate(mg.bincount, I), np.bincount(I))
    weights = np.arange(6) / 4
    np.testing.assert_array_equal(evaluate(lambda x, w: mg.bincount(x, w), I, weights), np.bincount(I, weights))


def test_a_list_of_truth_values_is_an_index():
    np.testing.assert_array_equal(evaluate(lambda x: x[[True, False]], X), X[:1])
    np.testing.assert_array_equal(evaluate(lambda x: x[:, np.array([False, True, True])], X), X[:, 1:])


@pytest.mark.parametrize("name", ["nonzero", "masked_select", "unique", "unique_consecutive"])
def test_a_bound_is_an_int(name):
    x = static.data("x", [2, 3], "float64")
    arguments = [x, x > 0] if name == "masked_select" else [x]
    for size in (-1, 2.0, True):
        with pytest.raises(MinigraphError, match=re.escape(f"size must be an int >= 0, is {size!r}")):
            getattr(mg, name)(*arguments, size=size)
