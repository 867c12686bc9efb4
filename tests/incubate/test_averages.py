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


def test_what_it_wraps_is_asked_for_the_rest():
    assert mg.incubate.LookAhead(mg.optimizer.SGD(0.25)).get_lr() == 0.25
