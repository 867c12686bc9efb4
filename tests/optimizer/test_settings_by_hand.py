"""Attributes of an optimizer that a user sets: checked as arguments are, and refused where they come too late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, optimizer, static
from minigraph.errors import AttrError, ProgramError

SET = {
    "beta1": 0.5, "epsilon": 1e-3, "amsgrad": True, "learning_rate": 0.5, "grad_clip": nn.ClipGradByNorm(1.0),
    "regularization": mg.regularizer.L2Decay(0.1), "multi_precision": True,
}  # fmt: skip


def minimized(adam: Any, value: float = 2.0) -> Any:
    w = static.create_parameter([2], "float32", default_initializer=nn.initializer.Constant(value))
    adam.minimize(mg.mean(w * w))
    return w


@pytest.mark.parametrize("name", SET)
def test_an_attribute_that_would_have_no_effect_is_refused(name: str):
    adam = optimizer.Adam(0.1)
    setattr(adam, name, SET[name])
    before = getattr(adam, name)
    minimized(adam)
    with pytest.raises(ProgramError, match=f"{name} is set after minimize, it would have no effect"):
        setattr(adam, name, SET[name])
    assert getattr(adam, name) is before
    adam.note = "of a user's own"


def test_an_attribute_that_is_set_before_is_used_and_checked():
    adam = optimizer.Adam(0.1)
    for name, wrong in (("beta1", 1.5), ("epsilon", 0.0), ("amsgrad", "no")):
        with pytest.raises(AttrError, match=f"{name} must be"):
            setattr(adam, name, wrong)
    adam.beta1 = 0.25
    minimized(adam)
    update = next(op for op in static.default_main_program().ops if op.type == "adam")
    assert update.attrs["beta1"] == 0.25


def test_set_lr_holds_for_the_next_run():
    sgd, exe = optimizer.SGD(0.5), static.Executor()
    w = minimized(sgd)
    exe.run(static.default_startup_program())
    sgd.set_lr(0.25)
    exe.run()
    assert sgd.get_lr() == 0.25
    np.testing.assert_array_equal(np.array(w.get_value()), np.full(2, 1.5, "float32"))


def test_a_minimize_that_is_refused_leaves_attributes_free():
    adam = optimizer.Adam(0.1, grad_clip=lambda pairs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        minimized(adam)
    adam.grad_clip = None
    minimized(adam)
