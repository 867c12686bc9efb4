"""Averages of parameters: what is refused, and what a test program sees."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import AttrError, ProgramError


def test_what_is_refused():
    for decay in (1.0, -0.1, "0.9", True):
        with pytest.raises(AttrError, match="decay must be"):
            static.ExponentialMovingAverage(decay)
    with pytest.raises(AttrError, match="thres_steps"):
        static.ExponentialMovingAverage(0.9, thres_steps=static.data("step", [1]))
    ema = static.ExponentialMovingAverage(0.9)
    with pytest.raises(ProgramError, match="no trainable parameters"):
        ema.update()
    with pytest.raises(ProgramError, match="update was not called"), ema.apply(None):
        pass


def test_parameters_come_back_after_an_error_and_before_the_first_run():
    x = static.data("x", [None, 2])
    net = nn.Linear(2, 1)
    loss = mg.mean(net(x))
    mg.optimizer.SGD(0.1).minimize(loss)
    ema = static.ExponentialMovingAverage(0.5)
    ema.update()
    with pytest.raises(ProgramError, match="second time"):
        ema.update()
    exe = static.Executor()
    exe.run(static.default_startup_program())
    first = np.array(net.weight.get_value())
    with ema.apply(exe):
        assert (np.array(net.weight.get_value()) == first).all()
        with pytest.raises(ProgramError, match="in place already"), ema.apply(exe):
            pass
    exe.run(feed={"x": np.ones((1, 2), "float32")})
    trained = np.array(net.weight.get_value())
    with pytest.raises(KeyError), ema.apply(exe):  # noqa: PT012
        assert np.allclose(np.array(net.weight.get_value()), trained)
        raise KeyError
    assert (np.array(net.weight.get_value()) == trained).all()
    assert not any("ema" in op.call() for op in loss.program.clone(for_test=True).ops)
