"""What a program was built with, set afterwards: an error without an effect, a warning where it may have one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import incubate, nn, static
from minigraph.errors import AttrError, ProgramError
from minigraph.incubate.optimizer import GradientMergeOptimizer
from minigraph.program.scope import Scope
from minigraph.regularizer import L2Decay


def weight() -> Any:
    return static.create_parameter([2], "float32", default_initializer=nn.initializer.Constant(2.0))


def minimized(optimizer: Any) -> Any:
    w = weight()
    optimizer.minimize(mg.mean(w * w))
    return w


def averaged() -> Any:
    minimized(mg.optimizer.SGD(0.1))
    average = static.ExponentialMovingAverage(0.5)
    average.decay = 0.75
    average.update()
    return average


def model_average() -> Any:
    minimized(mg.optimizer.SGD(0.1))
    return incubate.ModelAverage(0.5)


def around(optimizer: Any) -> Any:
    minimized(optimizer)
    return optimizer


def rule_of(rule: Any, **where: Any) -> Any:
    minimized(mg.optimizer.SGD(0.1, **where))
    return rule


def clip(rule: Any) -> Any:
    return rule_of(rule, grad_clip=rule)


LATE: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "EMA": (averaged, "decay", 0.9),
    "ModelAverage": (model_average, "most", 3),
    "LookAhead": (lambda: around(incubate.LookAhead(mg.optimizer.SGD(0.1))), "alpha", 0.1),
    "GradientMerge": (lambda: around(GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2)), "k_steps", 3),
    "clip by value": (lambda: clip(nn.ClipGradByValue(1.0)), "max", 2.0),
    "clip by norm": (lambda: clip(nn.ClipGradByNorm(1.0)), "clip_norm", 2.0),
    "clip by global norm": (lambda: clip(nn.ClipGradByGlobalNorm(1.0)), "clip_norm", 2.0),
    "decay": (lambda: rule_of(decay := L2Decay(0.1), weight_decay=decay), "coeff", 0.2),
}  # fmt: skip


@pytest.mark.parametrize("kind", LATE)
def test_a_setting_without_effect_is_refused(kind: str):
    make, name, value = LATE[kind]
    made = make()
    before = getattr(made, name)
    with pytest.raises(ProgramError, match=f"{name} is set after .*, it would have no effect"):
        setattr(made, name, value)
    assert getattr(made, name) == before
    made.note = "of a user's own"


def test_a_decay_that_is_set_before_update_is_the_one_of_the_averages():
    average, exe = averaged(), static.Executor()
    exe.run(static.default_startup_program())
    w = static.default_main_program().all_parameters()[0]
    seen = [exe.run(fetch_list=[w])[0] for _ in range(3)]
    expected = sum(0.75 ** (2 - i) * 0.25 * np.float64(value) for i, value in enumerate(seen)) / (1 - 0.75**3)
    with average.apply(exe):
        np.testing.assert_allclose(np.array(w.get_value()), expected, rtol=1e-5)


WRONG: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "EMA": (lambda: static.ExponentialMovingAverage(0.5), "decay", 1.0),
    "LookAhead": (lambda: incubate.LookAhead(mg.optimizer.SGD(0.1)), "k", 0),
    "LookAhead's share": (lambda: incubate.LookAhead(mg.optimizer.SGD(0.1)), "alpha", 1.5),
    "GradientMerge": (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2), "k_steps", 2.5),
    "sum or mean": (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2), "avg", "no"),
    "clip by norm": (lambda: nn.ClipGradByNorm(1.0), "clip_norm", -1.0),
    "clip by value": (lambda: nn.ClipGradByValue(1.0), "max", "2"),
    "decay": (lambda: L2Decay(0.1), "coeff", -0.1),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_setting_is_checked_as_the_argument_is(kind: str):
    make, name, value = WRONG[kind]
    made = make()
    before = getattr(made, name)
    with pytest.raises(AttrError, match=f"{name} (must be|is a flag)"):
        setattr(made, name, value)
    assert getattr(made, name) == before


def set_factor(w: Any) -> None:
    w.optimize_attr["learning_rate"] = 0.5


def join_factor(w: Any) -> None:
    w.optimize_attr |= {"learning_rate": 0.5}


CHANGES: dict[str, Callable[[Any], None]] = {
    "trainable": lambda w: setattr(w, "trainable", False),
    "stop_gradient": lambda w: setattr(w, "stop_gradient", True),
    "regularizer": lambda w: setattr(w, "regularizer", L2Decay(0.1)),
    "need_clip": lambda w: setattr(w, "need_clip", False),
    "optimize_attr": set_factor,
    "optimize_attr joined": join_factor,
    "optimize_attr anew": lambda w: setattr(w, "optimize_attr", {"learning_rate": 0.5}),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_parameter_that_changes_after_minimize(kind: str):
    """It is trained as before, in Paddle, too; who sets it is told so, at the line where it is set."""
    w = weight()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CHANGES[kind](w)  # before: it is used
        w.optimize_attr, w.trainable, w.regularizer, w.need_clip = {"learning_rate": 1.0}, True, None, True
        mg.optimizer.SGD(0.1).minimize(mg.mean(w * w))
        w.trainable, w.optimize_attr["learning_rate"] = True, 1.0  # as it is
    with pytest.warns(UserWarning, match=f"{kind.split()[0]}.* is set after minimize, whose update") as told:
        CHANGES[kind](w)
    assert [one.filename for one in told] == [__file__]
    with pytest.warns(UserWarning, match="is set after minimize"):
        CHANGES["need_clip" if kind != "need_clip" else "trainable"](
            static.default_main_program().clone().all_parameters()[0]
        )


def test_a_parameter_whose_stop_gradient_is_set_after_minimize_is_trained_as_before():
    """Paddle 2.6.2 gives the same."""
    w, exe = minimized(mg.optimizer.SGD(0.1)), static.Executor()
    exe.run(static.default_startup_program())
    before = static.global_scope().read(w.name)
    with pytest.warns(UserWarning, match="stop_gradient.* is set after minimize, whose update"):
        w.stop_gradient = True
    exe.run(static.default_main_program())
    assert (static.global_scope().read(w.name) != before).all()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), "2", True, float("nan"), None], ids=repr)
def test_a_factor_of_a_parameter_that_is_no_number_is_refused(value: Any, late: bool):
    w = minimized(mg.optimizer.SGD(0.1)) if late else weight()
    for change in (
        lambda: w.optimize_attr.update(learning_rate=value),
        lambda: setattr(w, "optimize_attr", {"learning_rate": value}),
        lambda: setattr(w, "optimize_attr", value),
    ):
        with pytest.raises(AttrError, match=r"learning_rate of a parameter must be a finite number|must be a dict"):
            change()
    assert w.optimize_attr == {"learning_rate": 1.0}


@pytest.mark.parametrize("late", [False, True])
def test_the_factor_of_a_parameter_cannot_be_taken_out(late: bool):
    w = minimized(mg.optimizer.SGD(0.1)) if late else weight()
    for take in (
        lambda: w.optimize_attr.pop("learning_rate"), lambda: w.optimize_attr.__delitem__("learning_rate"),
        w.optimize_attr.popitem, w.optimize_attr.clear,
    ):  # fmt: skip
        with pytest.raises(AttrError, match="cannot be taken out"):
            take()
    w.optimize_attr.setdefault("note", 1)
    assert (w.optimize_attr.popitem(), w.optimize_attr.pop("note", 2)) == (("note", 1), 2)
    assert w.optimize_attr == {"learning_rate": 1.0}


def test_settings_that_cannot_be_compared_are_told_of():
    w = minimized(mg.optimizer.SGD(0.1))
    for _ in range(2):
        w.optimize_attr["note"] = np.array([1.0, 2.0])  # nobody reads it
    with pytest.warns(UserWarning, match="regularizer of a parameter is set after minimize"):
        w.regularizer = np.array([1.0, 2.0])
    with pytest.warns(UserWarning, match="regularizer of a parameter is set after minimize"):
        w.regularizer = np.array([1.0, 2.0])


def test_a_parameter_without_a_factor_has_the_factor_1():
    w = weight()
    w.optimize_attr = {}
    assert mg.optimizer.SGD(0.1).minimize(mg.mean(w * w))


def test_a_test_program_has_no_update_to_warn_of():
    w = minimized(mg.optimizer.SGD(0.1))
    own = static.default_main_program().clone(for_test=True).global_block().var(w.name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.trainable = False


def test_a_copy_of_the_facts_of_a_parameter_is_a_dict_of_its_own():
    w = minimized(mg.optimizer.SGD(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for own in (copy.copy(w.optimize_attr), copy.deepcopy(w.optimize_attr)):
            own["learning_rate"] = 0.5
    assert w.optimize_attr == {"learning_rate": 1.0}


def test_the_facts_of_a_copied_parameter_are_its_own():
    w = minimized(mg.optimizer.SGD(0.1))
    own = static.default_main_program().clone().global_block().var(w.name)
    with pytest.warns(UserWarning, match="optimize_attr.* is set after minimize, whose update"):
        own.optimize_attr["learning_rate"] = 0.5
    assert own.optimize_attr.parameter is own and w.optimize_attr == {"learning_rate": 1.0}
    assert w.optimize_attr.parameter is w


def test_an_optimizer_is_decorated_for_one_program_after_another():
    adam = mg.optimizer.Adam(0.1)
    for _ in range(2):
        with static.program_guard(static.Program(), static.Program()):
            minimized(static.amp.decorate(adam, level="O2", dtype="bfloat16"))
    with pytest.raises(ProgramError, match="multi_precision is set after minimize"):
        static.amp.decorate(adam, level="O2", dtype="bfloat16", master_weight=False)


def test_the_learning_rate_is_that_of_the_scope():
    sgd, exe, fresh = mg.optimizer.SGD(0.1), static.Executor(), Scope()
    assert sgd.get_lr() == 0.1
    w = minimized(sgd)
    assert sgd.get_lr() == 0.1  # there is no value yet
    exe.run(static.default_startup_program())
    saved = static.default_main_program().state_dict()
    assert sgd.get_lr() == 0.1  # and not its float32
    sgd.set_lr(0.5)
    assert sgd.get_lr() == 0.5
    static.default_main_program().set_state_dict(saved)
    assert sgd.get_lr() == pytest.approx(0.1, rel=1e-6) != 0.5
    exe.run()
    np.testing.assert_allclose(np.array(w.get_value()), np.full(2, 2.0 - 0.1 * 2.0), rtol=1e-6)
    assert sgd.get_lr(fresh) == 0.5
    exe.run(static.default_startup_program(), scope=fresh)
    assert sgd.get_lr(fresh) == 0.5
