"""ModelAverage and LookAhead: what they refuse. tests/paddle has their values."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, ProgramError


def test_what_is_refused():
    with pytest.raises(ProgramError, match="made of an optimizer"):
        mg.incubate.LookAhead(0.1)
    for alpha, k, text in ((2.0, 5, "alpha must be"), (0.5, 0, "k must be")):
        with pytest.raises(AttrError, match=text):
            mg.incubate.LookAhead(mg.optimizer.SGD(0.1), alpha, k)
    with pytest.raises(ProgramError, match="has no parameters"):
        mg.incubate.ModelAverage(0.1)
    with pytest.raises(AttrError, match="min_average_window must be a positive int"):
        mg.incubate.ModelAverage(0.1, min_average_window=0)


def test_before_the_first_run_parameters_stay():
    w = mg.create_parameter([2], "float32")
    mg.optimizer.SGD(0.1).minimize(mg.sum(w))
    average, exe = mg.incubate.ModelAverage(0.1), static.Executor()
    exe.run(static.default_startup_program())
    first = np.array(w.get_value())
    with average.apply(exe):
        assert (np.array(w.get_value()) == first).all()
    with average.apply(exe), pytest.raises(ProgramError, match="in place already"), average.apply(exe):
        pass


def averaged() -> tuple[mg.incubate.ModelAverage, list[bytes], list[bytes]]:
    """Averages after some runs, the parameters then, and their means."""
    params = [mg.create_parameter([2], "float32", name=name) for name in "vw"]
    mg.optimizer.SGD(0.1).minimize(mg.sum(params[0] * params[1]))
    average, exe = mg.incubate.ModelAverage(0.5, max_average_window=4), static.Executor()
    exe.run(static.default_startup_program())
    for _ in range(3):
        exe.run()
    now = state()
    with average.apply():
        return average, now, state()


def state() -> list[bytes]:
    return [static.global_scope().read(name).tobytes() for name in "vw"]


def test_an_interrupt_leaves_the_parameters_or_their_means(monkeypatch):
    average, now, means = averaged()
    assert state() == now != means
    take, given = static.Scope.take, []

    def interrupted(scope, name, array):
        given.append(name)
        if len(given) == 2:
            raise KeyboardInterrupt
        take(scope, name, array)

    monkeypatch.setattr(static.Scope, "take", interrupted)
    with pytest.raises(KeyboardInterrupt), average.apply():
        pass
    assert state() == now
    with average.apply():
        assert state() == means
    assert state() == now


def test_parameters_come_back_where_they_were():
    average, now, means = averaged()
    with average.apply(need_restore=False):
        pass
    assert state() == means
    with static.scope_guard(static.Scope()):
        average.restore()
        assert static.global_scope().list_names() == []
    assert state() == now


def test_what_it_wraps_is_asked_for_the_rest():
    assert mg.incubate.LookAhead(mg.optimizer.SGD(0.25)).get_lr() == 0.25


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["ema", "mean"])
def test_averages_of_16_bits_reach_a_parameter_that_stays(kind: str, dtype: str):
    """Sums of 16 bits stood still: .64 and .17 of a parameter that was 1 in 1500 runs."""
    w = mg.create_parameter([2], dtype, default_initializer=mg.nn.initializer.Constant(1.0))
    mg.optimizer.SGD(0.0).minimize(mg.sum(w))
    if kind == "ema":
        average = static.ExponentialMovingAverage(0.99)
        average.update()
    else:
        average = mg.incubate.ModelAverage(0.5, min_average_window=600, max_average_window=600)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for _ in range(500):
        exe.run()
    (mean,) = average.means(static.global_scope()).values()
    rounded = mean.astype(w.dtype)
    assert mean.dtype == "float32" and rounded.astype("float64").tolist() == [1, 1]
    with average.apply():
        assert static.global_scope().read(w.name).tobytes() == rounded.tobytes()
        exe.run()
