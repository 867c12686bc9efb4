"""Learning rate schedules against Paddle, against closed forms, and through save, restore and errors."""

from __future__ import annotations

import json
import logging
import math
from functools import partial
from pathlib import Path

import pytest

from minigraph.errors import AttrError
from minigraph.optimizer import lr

EPOCHS = 30
PADDLE = json.loads((Path(__file__).parent / "fixtures" / "paddle_optimizers.json").read_text())["schedules"]


def cosine(t):
    return 0.02 + 0.48 * (1 + math.cos(math.pi * t / 8)) / 2


# name: (scheduler, its rate at epoch t)
FORMS = {
    "noam": (lambda: lr.NoamDecay(16, 7, 0.5), lambda t: 0.5 * 16**-0.5 * min(max(t, 1) ** -0.5, t * 7**-1.5)),
    "piecewise": (
        lambda: lr.PiecewiseDecay([3, 8], [0.1, 0.05, 0.01]), lambda t: 0.1 if t < 3 else 0.05 if t < 8 else 0.01
    ),
    "natural": (lambda: lr.NaturalExpDecay(0.5, 0.1), lambda t: 0.5 * math.exp(-0.1 * t)),
    "inverse": (lambda: lr.InverseTimeDecay(0.5, 0.1), lambda t: 0.5 / (1 + 0.1 * t)),
    "polynomial": (
        lambda: lr.PolynomialDecay(0.5, 11, 0.01, 2.0), lambda t: 0.01 + 0.49 * (1 - min(t, 11) / 11) ** 2
    ),
    "polynomial, cycle": (
        lambda: lr.PolynomialDecay(0.5, 11, 0.01, cycle=True),
        lambda t: 0.01 + 0.49 * (1 - t / (11 if t <= 11 else 22 if t <= 22 else 33)),
    ),
    "warmup": (lambda: lr.LinearWarmup(0.4, 6, 0.1, 0.5), lambda t: 0.1 + 0.4 * t / 6 if t < 6 else 0.4),
    "warmup, cosine": (
        lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.5, 8, 0.02), 6, 0.0, 0.5),
        lambda t: 0.5 * t / 6 if t < 6 else cosine(t - 6),
    ),
    "warmup of no epochs": (
        lambda: lr.LinearWarmup(lr.ExponentialDecay(0.5, 0.9), 0, 0.0, 0.5), lambda t: 0.5 * 0.9**t
    ),
    "exponential": (lambda: lr.ExponentialDecay(0.5, 0.9), lambda t: 0.5 * 0.9**t),
    "step": (lambda: lr.StepDecay(0.5, 4, 0.8), lambda t: 0.5 * 0.8 ** (t // 4)),
    "multistep": (
        lambda: lr.MultiStepDecay(0.5, [3, 8, 20], 0.8),
        lambda t: 0.5 if t < 3 else 0.4 if t < 8 else 0.32 if t < 20 else 0.256,
    ),
    "cosine": (lambda: lr.CosineAnnealingDecay(0.5, 8, 0.02), cosine),
    "lambda": (lambda: lr.LambdaDecay(0.5, lambda t: 1 / (1 + t * t)), lambda t: 0.5 / (1 + t * t)),
}  # fmt: skip


def rates(scheduler, epochs=EPOCHS):
    found = []
    for _ in range(epochs):
        found.append(scheduler())
        scheduler.step()
    return found


@pytest.mark.parametrize("name", FORMS)
def test_thirty_epochs_follow_the_closed_form(name):
    make, form = FORMS[name]
    expected = [form(t) for t in range(EPOCHS)]
    assert rates(make()) == pytest.approx(expected, rel=1e-14, abs=1e-16)
    assert len(set(expected)) > 1


@pytest.mark.parametrize("name", PADDLE)
def test_thirty_epochs_equal_paddle(name):
    arguments = PADDLE[name]["arguments"]
    make = FORMS["warmup, cosine"][0] if arguments is None else partial(getattr(lr, name.split()[0]), **arguments)
    assert rates(make()) == pytest.approx(PADDLE[name]["rates"], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_a_chosen_epoch_and_a_later_start(name):
    make, form = FORMS[name]
    scheduler = make()
    scheduler.step(12)
    assert scheduler() == pytest.approx(form(12), rel=1e-14)
    assert scheduler.last_epoch == 12
    scheduler.step()
    assert scheduler() == pytest.approx(form(13), rel=1e-14)
    scheduler.step(0)
    assert scheduler() == pytest.approx(form(0), rel=1e-14, abs=1e-16)


def test_last_epoch_continues_after_it():
    assert lr.StepDecay(0.5, 4, 0.5, last_epoch=7)() == 0.125
    assert lr.CosineAnnealingDecay(0.5, 8, 0.02, last_epoch=4)() == pytest.approx(cosine(5))


@pytest.mark.parametrize("name", FORMS)
def test_a_saved_state_continues(name):
    make, form = FORMS[name]
    first, second = make(), make()
    rates(first, 11)
    second.set_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second() == first()
    assert rates(second, 10) == pytest.approx([form(t) for t in range(11, 21)], rel=1e-14)


def test_state_of_another_kind_is_refused_and_changes_nothing():
    scheduler = lr.StepDecay(0.5, 4)
    with pytest.raises(AttrError, match="state of StepDecay 'last_lr' does not exist"):
        scheduler.set_state_dict({"last_epoch": 3})
    assert scheduler.state_dict() == {"last_epoch": 0, "last_lr": 0.5}
    warmup = FORMS["warmup, cosine"][0]()
    with pytest.raises(AttrError, match="LinearWarmup_LR"):
        warmup.set_state_dict({"last_epoch": 3, "last_lr": 0.5})
    assert warmup.last_epoch == 0


def test_a_scheduler_of_ones_own():
    class Halving(lr.LRScheduler):
        def get_lr(self):
            return self.base_lr / 2**self.last_epoch

    assert rates(Halving(1), 4) == [1.0, 0.5, 0.25, 0.125]


def test_verbose_logs_each_rate(caplog):
    with caplog.at_level(logging.INFO):
        lr.StepDecay(0.5, 1, 0.5, verbose=True).step()
    assert [r.getMessage() for r in caplog.records] == [
        "epoch 0: StepDecay sets the learning rate to 0.5", "epoch 1: StepDecay sets the learning rate to 0.25",
    ]  # fmt: skip


@pytest.mark.parametrize(("make", "fact"), [
    (lambda: lr.StepDecay(-0.1, 3), "learning_rate must be a number >= 0, is -0.1"),
    (lambda: lr.StepDecay(float("nan"), 3), "learning_rate must be a number >= 0, is nan"),
    (lambda: lr.StepDecay("a", 3), "learning_rate must be a number >= 0, is 'a'"),
    (lambda: lr.StepDecay(0.1, 0), "step_size must be an int > 0, is 0"),
    (lambda: lr.StepDecay(0.1, 2.5), "step_size must be an int > 0, is 2.5"),
    (lambda: lr.StepDecay(0.1, 3, 1.0), r"gamma must be a number in \[0, 1\), is 1.0"),
    (lambda: lr.StepDecay(0.1, 3, last_epoch=-2), "last_epoch must be an int >= -1, is -2"),
    (lambda: lr.StepDecay(0.1, 3).step(-1), "epoch must be an int >= 0, is -1"),
    (lambda: lr.MultiStepDecay(0.1, [5, 3]), "milestones must be a list of rising ints"),
    (lambda: lr.PiecewiseDecay([3, 8], [0.1, 0.2]), "values must be 3 numbers >= 0"),
    (lambda: lr.ExponentialDecay(0.1, 1.5), r"gamma must be a number in \(0, 1\), is 1.5"),
    (lambda: lr.NaturalExpDecay(0.1, -1), "gamma must be a number > 0"),
    (lambda: lr.PolynomialDecay(0.1, 0), "decay_steps must be an int > 0"),
    (lambda: lr.NoamDecay(0, 10), "d_model must be an int > 0"),
    (lambda: lr.CosineAnnealingDecay(0.1, 0), "T_max must be an int > 0"),
    (lambda: lr.LinearWarmup(0.1, 5, 0.5, 0.5), "end_lr must be a number > start_lr 0.5, is 0.5"),
    (lambda: lr.LinearWarmup("a", 5, 0.0, 0.5), "learning_rate must be a number >= 0 or an LRScheduler"),
    (lambda: lr.LambdaDecay(0.1, 0.5), "lr_lambda must be a function"),
])  # fmt: skip
def test_bad_arguments_are_named(make, fact):
    with pytest.raises(AttrError, match=fact):
        make()
