"""Learning rates that a program counts. tests/paddle/script_programs.py has their values."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, ProgramError

lr = mg.optimizer.lr


def weight_after(rate, runs, dtype="float32"):
    """A weight that begins as 1 and has the gradient 1."""
    weight = static.create_parameter([1], dtype, "w", default_initializer=mg.nn.initializer.Constant(1.0))
    loss = mg.sum(weight)
    test = static.default_main_program().clone(for_test=True)
    mg.optimizer.SGD(rate()).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for _ in range(runs):
        exe.run(test, fetch_list=[loss.name])  # a test does not count
        exe.run(static.default_main_program())
    return exe.run(test, fetch_list=["w"])[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_optimizer_follows_the_counter(dtype):
    found = weight_after(lambda: lr.piecewise_decay([1, 2], [0.5, 0.25, 0.125]), 3, dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [1 - 0.5 - 0.25 - 0.125])


def test_a_rate_may_be_any_float_of_the_program():
    rate = static.create_global_var([], 0.25, "float32", persistable=True)
    assert weight_after(lambda: rate, 2) == 0.5


def test_what_is_no_rate_is_refused():
    with pytest.raises(AttrError, match=r"learning_rate must be a float \[1\]"):
        mg.optimizer.SGD(static.data("x", [2]))
    with pytest.raises(AttrError, match="2 boundaries need 3 values, got 2"):
        lr.piecewise_decay([1, 2], [0.1, 0.2])
    assert not static.default_main_program().ops, "nothing stays of what is refused"
    optimizer = mg.optimizer.SGD(lr.cosine_decay(0.1, 2, 3))
    with pytest.raises(ProgramError, match="the learning rate is a Variable"):
        optimizer.get_lr()
    with pytest.raises(ProgramError, match="follows an LRScheduler or a Variable"):
        optimizer.set_lr(0.1)
