"""Variables in place of numbers: where their values are known while the program is built, and where not."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, MinigraphError
from minigraph.program.known import axis_of_size, known_value


def test_values_are_those_of_a_run():
    x = static.data("x", [2, 3, 8])
    sizes = mg.shape(x)
    found = [mg.full([1], 3, "int32"), mg.cast(sizes[1], "int64"), sizes[1:] * 2, mg.concat([sizes[:1], sizes[2:]])]
    run = static.Executor().run(feed={"x": np.zeros((2, 3, 8), "float32")}, fetch_list=found)
    for v, value in zip(found, run, strict=True):
        known = known_value(v)
        assert known is not None
        assert known.dtype == value.dtype
        np.testing.assert_array_equal(known, value)


def test_what_may_change_is_not_known():
    fed, unknown = static.data("fed", [1], "int32"), static.data("x", [None, 3])
    twice = mg.full([1], 2, "int32")
    mg.assign(fed, output=twice)
    kept = static.create_global_var([1], 2, "int32", persistable=True)
    drawn, long = mg.randint(0, 5, [1]), mg.full([65], 1, "int32")
    for v in (fed, twice, kept, drawn, long, mg.shape(unknown)[0], mg.shape(unknown)[0] + 1):
        assert known_value(v) is None


def test_the_place_of_a_size():
    x, y = static.data("x", [None, 3]), static.data("y", [None, 3])
    assert axis_of_size(mg.shape(x)[0]) == (x, 0)
    assert axis_of_size(mg.cast(mg.shape(x)[1], "int64")) == (x, 1)
    for v in (mg.shape(x)[0] + 1, mg.shape(x)[0] * mg.shape(y)[0], mg.full([1], 0, "int32"), x):
        assert axis_of_size(v) is None


@pytest.mark.parametrize(
    "shape",
    [
        lambda x, y: [mg.shape(y)[0], 3], lambda x, y: [3, mg.shape(x)[0]], lambda x, y: [mg.shape(x)[0] * 2, -1],
        lambda x, y: [mg.shape(x)[1], mg.shape(x)[0]],
    ],
)  # fmt: skip
def test_a_size_that_is_another_ones_is_refused(shape):
    """What would be a guess: the run would reshape to sizes that the user did not ask for."""
    x, y = static.data("x", [None, 3]), static.data("y", [None, 3])
    with pytest.raises(AttrError, match="attribute shape must be a list of ints"):
        mg.reshape(x, shape(x, y))


def test_a_size_of_its_own_is_copied():
    x = static.data("x", [None, 3, 4])
    out = mg.reshape(x, [mg.shape(x)[0], 2, -1])
    assert out.shape == (-1, 2, 6)
    (found,) = static.Executor().run(feed={"x": np.zeros((5, 3, 4), "float32")}, fetch_list=[out])
    assert found.shape == (5, 2, 6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x, u: mg.crop(x, u), "shape must be a list of ints"),
        (lambda x, u: mg.crop(x, [2, 2], [u[0], 0]), "offsets must be a list of ints"),
        (lambda x, u: mg.repeat_interleave(x, u), "repeats must be an int or a list of ints"),
        (lambda x, u: mg.full([2], u[0]), "fill_value must be a number"),
        (lambda x, u: mg.full([2], "half"), "fill_value must be a number, is a str: 'half'"),
        (lambda x, u: mg.slice(x, [0], [u[0]], [3]), "attribute starts must be a list of ints"),
    ],
)  # fmt: skip
def test_what_a_run_decides_is_refused(call, said):
    x, u = static.data("x", [3, 3]), static.data("u", [2], "int32")
    with pytest.raises(MinigraphError, match=said):
        call(x, u)
