"""Calls with arguments that do not fit: one clear error with the nearest name, never a raw TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import ArgumentError, MinigraphError
from minigraph.program import Program


@pytest.fixture
def x():
    with mg.static.program_guard(Program(), Program()):
        yield mg.static.data("x", [2, 3])


MISSPELLED: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("Linear: there is no argument 'wieght_attr'", "weight_attr", lambda x: mg.nn.Linear(3, 4, wieght_attr=None)),
    ("sum: there is no argument 'keepdims'", "keepdim", lambda x: mg.sum(x, keepdims=True)),
    ("sum: there is no argument 'keepdims'", "keepdim", lambda x: x.sum(keepdims=True)),
    ("AdamW: there is no argument 'learnin_rate'", "learning_rate", lambda x: mg.optimizer.AdamW(learnin_rate=0.1)),
    ("StepDecay: there is no argument 'stepsize'", "step_size", lambda x: mg.optimizer.lr.StepDecay(0.1, stepsize=3)),
    ("Normal: there is no argument 'sdt'", "std", lambda x: mg.nn.initializer.Normal(sdt=2.0)),
    ("Executor.run: there is no argument 'feeds'", "feed",
     lambda x: mg.static.Executor(mg.CPUPlace()).run(x.block.program, feeds={})),
    ("fc: there is no argument 'activaton'", "activation", lambda x: mg.static.nn.fc(x, 3, activaton="relu")),
    ("layer_norm: there is no argument 'eps'", "epsilon", lambda x: mg.nn.functional.layer_norm(x, [3], eps=1e-3)),
    ("CompiledProgram: there is no argument 'build_stategy'", "build_strategy",
     lambda x: mg.static.CompiledProgram(x.block.program, build_stategy=None)),
    ("append_backward: there is no argument 'parameters_list'", "parameter_list",
     lambda x: mg.static.append_backward(mg.mean(x), parameters_list=[])),
]  # fmt: skip


@pytest.mark.parametrize(("fact", "name", "call"), MISSPELLED, ids=[m[0] for m in MISSPELLED])
def test_a_misspelled_argument_is_named_with_the_nearest(fact, name, call, x):
    with pytest.raises(ArgumentError) as caught:
        call(x)
    said = str(caught.value)
    assert fact in said and "test_arguments.py:" in said
    assert f"did you mean '{name}'?" in said


def test_missing_and_surplus_arguments(x):
    with pytest.raises(ArgumentError, match=r"add: missing a required argument: 'y'[\s\S]*it takes x, y"):
        mg.add(x)
    with pytest.raises(ArgumentError, match="Linear: too many positional arguments"):
        mg.nn.Linear(1, 2, 3, 4, 5, 6, 7)


def test_a_type_error_of_other_origin_stays_as_it_is():
    class Strange(mg.nn.Layer):
        def forward(self):
            return None + 1

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        Strange()()
    assert not isinstance(caught.value, MinigraphError)


REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("device_count must be an int > 0, is 'a'", lambda x: mg.static.cpu_places("a")),
    ("device_count must be an int > 0, is 0", lambda x: mg.static.cpu_places(0)),
    ("state_dict must be a dict, is 3", lambda x: mg.optimizer.lr.StepDecay(0.1, 2).set_state_dict(3)),
    ("there is no operator // on variables", lambda x: x // 2),
    ("there is no operator // on variables", lambda x: 5 // x),
    ("there is no operator % on variables", lambda x: x % 2),
    ("there is no operator % on variables", lambda x: 5 % x),
    ("there is no operator divmod on variables", lambda x: divmod(x, 2)),
    ("there is no operator << on variables", lambda x: x << 2),
    ("has no value while the program is built", lambda x: bool(x > 0)),
    ("append_backward takes no checkpoints", lambda x: mg.static.append_backward(mg.mean(x), checkpoints=[x])),
    ("append_backward takes no callbacks", lambda x: mg.static.append_backward(mg.mean(x), callbacks=[print])),
    ("append_backward takes no distop_context", lambda x: mg.static.append_backward(mg.mean(x), distop_context=1)),
]


@pytest.mark.parametrize(("fact", "call"), REFUSED, ids=[f"{i}: {r[0]}" for i, r in enumerate(REFUSED)])
def test_what_is_not_there_is_refused(fact, call, x):
    with pytest.raises(MinigraphError) as caught:
        call(x)
    assert fact in str(caught.value)


def test_paddles_arguments_of_append_backward_may_be_none_or_empty(x):
    w = mg.static.create_parameter([3], "float32")
    found = mg.static.append_backward(
        mg.mean(x * w), parameter_list=None, no_grad_set=None, callbacks=None, checkpoints=[], distop_context=None
    )
    assert [p.name for p, _ in found] == [w.name]


def test_floor_and_remainder_by_the_hint(x):
    out = mg.floor(x / 2.0), x - mg.floor(x / 2.0) * 2.0
    feed = {"x": np.array([[-3, -1, 0], [1, 2, 5]], "float32")}
    floors, rests = mg.static.Executor(mg.CPUPlace()).run(x.block.program, feed=feed, fetch_list=list(out))
    np.testing.assert_array_equal(floors, feed["x"] // 2)
    np.testing.assert_array_equal(rests, feed["x"] % 2)
