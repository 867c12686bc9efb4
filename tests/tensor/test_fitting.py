"""Windows, strides, kinds of data types, and assignment by index: against NumPy, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError
from minigraph.types import bfloat16
from tests.tensor.test_tensor_api import evaluate

X = np.arange(12.0).reshape(3, 4)
window = np.lib.stride_tricks.sliding_window_view


def test_windows():
    np.testing.assert_array_equal(evaluate(lambda x: mg.unfold(x, 1, 3, 1), X), window(X, 3, 1))
    np.testing.assert_array_equal(evaluate(lambda x: x.unfold(0, 2, 1), X), window(X, 2, 0))
    np.testing.assert_array_equal(evaluate(lambda x: mg.unfold(x, -1, 2, 2), X), window(X, 2, 1)[:, ::2])


def test_strides():
    found = evaluate(lambda x: mg.as_strided(x, [2, 3], [4, 2], 1), X)
    np.testing.assert_array_equal(found, X.reshape(-1)[1 + 4 * np.arange(2)[:, None] + 2 * np.arange(3)])


def test_kinds():
    x, i = mg.static.data("x", [2], "bfloat16"), mg.static.data("i", [2], "int8")
    assert (x.is_floating_point(), x.is_integer(), x.is_complex()) == (True, False, False)
    assert (mg.is_floating_point(i), mg.is_integer(i)) == (False, True)
    assert mg.broadcast_shape([2, 1], [3]) == [2, 3]
    for name in ("float16", "float32", "float64"):
        ours, numpys = mg.finfo(name), np.finfo(name)
        assert (ours.min, ours.max, ours.eps, ours.tiny, ours.bits) == (
            numpys.min, numpys.max, numpys.eps, numpys.tiny, numpys.bits
        )  # fmt: skip
    limits = mg.finfo("bfloat16")
    assert float(np.array(limits.max, bfloat16)) == limits.max
    assert np.isinf(np.array(limits.max * 1.01, bfloat16).astype(float))
    assert np.array(1 + limits.eps, bfloat16) > np.array(1, bfloat16) == np.array(1 + limits.eps / 4, bfloat16)
    assert (mg.iinfo("int8").min, mg.iinfo("int8").max, mg.iinfo("uint8").bits) == (-128, 127, 8)


def test_scalars_become_vectors():
    assert evaluate(lambda x: mg.atleast_1d(x), np.array(2.0)).shape == (1,)
    shapes = [v.shape for v in evaluate(lambda x, y: mg.atleast_3d(x, y), np.array(2.0), X)]
    assert shapes == [(1, 1, 1), (3, 4, 1)]


ASSIGNED: dict[str, tuple[Any, Any]] = {
    "a row": (1, np.arange(4.0)), "an element": ((1, 2), 5), "a column": ((slice(None), 1), 7.0),
    "steps back": ((slice(None, None, -2), slice(1, 3)), np.array([[1.0], [2.0]])), "all": (slice(None), 5),
    "dots": (..., 5), "a new axis": ((None, 1), 5), "the last": (-1, 2.5), "by truth": (X > 5, 0.0),
    "rows by truth": (X[:, 0] > 3, np.arange(4.0)), "nothing": (slice(2, 1), 9.0),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("name", ASSIGNED)
def test_assignment_gives_a_new_variable(name, known):
    index, value = ASSIGNED[name]
    expected = X.copy()
    expected[index] = value
    given = index if isinstance(index, tuple) or not isinstance(index, np.ndarray) else None

    def build(x: Any) -> Any:
        return mg.static.setitem(x, mg.assign(index) if given is None else given, value)

    np.testing.assert_array_equal(evaluate(build, X, known=known), expected)


def test_assignment_by_positions_of_a_run():
    found = evaluate(lambda x, i, v: mg.static.setitem(x, i, v), X, np.array([2, 0, 2]), np.arange(3.0)[:, None])
    np.testing.assert_array_equal(found[0], np.ones(4))
    np.testing.assert_array_equal(found[2], 2 * np.ones(4))


@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_assignment_along_each_axis(axis, known):
    """No slice stays, the first and the last too; of equal positions the last one stays."""
    cube, before = np.arange(60.0).reshape(3, 4, 5), (slice(None),) * axis
    places = np.array([2, 0, 2])
    values = -1.0 - cube[(*before, slice(0, 3))]
    expected = cube.copy()
    for n, place in enumerate(places):
        expected[(*before, place)] = values[(*before, n)]
    found = evaluate(lambda x, i, v: mg.static.setitem(x, (*before, i), v), cube, places, values, known=known)
    np.testing.assert_array_equal(found, expected)
    mask = np.arange(cube.shape[axis]) != 1
    expected = cube.copy()
    expected[(*before, mask)] = 0.5
    found = evaluate(lambda x, m: mg.static.setitem(x, (*before, m), 0.5), cube, mask, known=known)
    np.testing.assert_array_equal(found, expected)


def test_gradients_of_an_assignment():
    x, v = mg.static.data("x", [3, 4], "float64"), mg.static.data("v", [4], "float64")
    x.stop_gradient = v.stop_gradient = False
    out = mg.static.setitem(x, (slice(0, 2),), v)
    slopes = mg.static.gradients([mg.sum(out * out)], [x, v])
    values = mg.static.Executor().run(feed={"x": X, "v": np.arange(4.0)}, fetch_list=slopes)
    np.testing.assert_array_equal(values[0], np.concatenate([np.zeros((2, 4)), 2 * X[2:]]))
    np.testing.assert_array_equal(values[1], 4 * np.arange(4.0))


@pytest.mark.parametrize("index", [1, (slice(None), 0), slice(None, None, -1), slice(None)])
def test_setitem_in_a_branch(index):
    """Of a value from outside, and its gradient."""
    given = np.arange(6.0).reshape(2, 3)
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [2, 3], "float64")
        out = mg.static.nn.cond(mg.sum(x) > 0, lambda: mg.static.setitem(x, index, x[0, 1] * 2), lambda: x * 1)
        (grad,) = mg.static.gradients([out], [x])
    found, slope = mg.static.Executor(mg.CPUPlace()).run(main, {"x": given}, [out, grad])
    expected, ones = given.copy(), np.ones((2, 3))
    expected[index], ones[index] = given[0, 1] * 2, 0
    ones[0, 1] += 2 * (6 - ones.sum())
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(slope, ones)


REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("static.setitem", lambda x: x.__setitem__(0, 1.0)),
    ("value is assign_value_0.tmp_0: f64[3], x[index] is", lambda x: mg.static.setitem(x, 1, np.ones(3))),
    ("how many slices there are a run decides", lambda x: mg.static.setitem(x, x > 5, np.ones(4))),
    ("it must have the first axes of x", lambda x: mg.static.setitem(x, mg.assign(np.ones(2) > 0), 1.0)),
    ("index 9 is out of range", lambda x: mg.static.setitem(x, 9, 1.0)),
    ("apply them one after the other", lambda x: mg.static.setitem(x, (0, x.astype("int64")), 1.0)),
    ("size 5 is not in [0, 3]", lambda x: mg.unfold(x, 0, 5, 1)),
    ("the last place is 13, x has 12 elements", lambda x: mg.as_strided(x, [2, 2], [12, 1])),
    ("index 4 is out of range [-4, 4)", lambda x: mg.select_scatter(x, x[:, 0], 1, 4)),
    ("the diagonal has the shape [3]", lambda x: mg.diagonal_scatter(x, x[0], 1)),
    ("must have an axis of size 3", lambda x: mg.cross(x[0], x[0])),
    ("compute_mode 'fast' is none of", lambda x: mg.cdist(x, x, compute_mode="fast")),
    ("x must be a vector", lambda x: mg.combinations(x)),
    ("mg.iinfo", lambda x: mg.finfo("int8")),
    ("has 3 letters, the operand is", lambda x: mg.einsum("ijk->i", x)),
    ("has 2 terms for 1 operands", lambda x: mg.einsum("ij,jk->ik", x)),
    ("the result has ['k'], no operand does", lambda x: mg.einsum("ij->ik", x)),
    ("a letter stands twice in the result", lambda x: mg.einsum("ij->ii", x)),
    ("axis 'j' has the sizes [3, 4]", lambda x: mg.einsum("ij,jk->ik", x, x)),
    ("sizes of 'i' differ", lambda x: mg.einsum("ii", x)),
    ("axes 3 is more than", lambda x: mg.tensordot(x, x, 3)),
    ("dim must be an int, is None", lambda x: mg.cumprod(x)),
    ("positions are int32 or int64", lambda x: mg.cummax(x, 0, "float32")),
    ("x and dx are both given", lambda x: mg.trapezoid(x, x, 1.0)),
    ("x must be a vector of ints", lambda x: mg.bincount(x[0])),
    ("is out of range", lambda x: mg.bincount(x[0].astype("int64"), minlength=3)),
    ("mode 'min' is not here", lambda x: mg.nanmedian(x, mode="min")),
    ("pad has 3 numbers", lambda x: mg.nn.functional.pad(x, [1, 1, 1])),
    ("mode reflect: axis 3 of size 4 has no border of 4",
     lambda x: mg.nn.functional.pad(x.unsqueeze([0, 1]), [4, 0, 0, 0], "reflect")),
    ("has a negative number", lambda x: mg.nn.functional.pad(x, [-1, 0, 0, 0])),
    ("maxlen must be an int > 0", lambda x: mg.nn.functional.sequence_mask(x[0].astype("int64"), 0)),
]  # fmt: skip


@pytest.mark.parametrize(("fact", "build"), REFUSED, ids=[f"{i}: {r[0]}" for i, r in enumerate(REFUSED)])
def test_refused(fact, build):
    with pytest.raises(MinigraphError) as caught:
        evaluate(build, X)
    assert fact in str(caught.value)
