"""Arguments of Paddle that have no meaning here, and operators that variables do not have: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError
from minigraph.program import Program


@pytest.fixture
def x():
    with mg.static.program_guard(Program(), Program()):
        yield mg.static.data("x", [2, 3])


REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("device_count must be an int > 0, is 'a'", lambda x: mg.static.cpu_places("a")),
    ("device_count must be an int > 0, is 0", lambda x: mg.static.cpu_places(0)),
    ("state_dict must be a dict, is 3", lambda x: mg.optimizer.lr.StepDecay(0.1, 2).set_state_dict(3)),
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


def test_floor_and_remainder(x):
    feed = {"x": np.array([[-3, -1, 0], [1, 2, 5]], "float32")}
    floors, rests = mg.static.Executor(mg.CPUPlace()).run(x.block.program, feed=feed, fetch_list=[x // 2, x % 2])
    np.testing.assert_array_equal(floors, feed["x"] // 2)
    np.testing.assert_array_equal(rests, feed["x"] % 2)
