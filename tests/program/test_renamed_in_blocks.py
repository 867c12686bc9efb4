"""Variables that branches and loops read: renamed, or fed although the Scope has them. None goes wrong in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.base import unique_name
from minigraph.errors import ProgramError
from minigraph.ir.text import parse

X = {"x": np.ones((3, 4), "float32")}


@pytest.fixture(autouse=True)
def fresh():
    scope = static.Scope()
    with static.program_guard(static.Program(), static.Program()), static.scope_guard(scope), unique_name.guard():
        yield


def looped(w: Any) -> Any:
    """x * w * w * w + w."""
    x, i = static.data("x", [None, 4], "float32"), mg.zeros([1], "int32")
    return static.nn.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * w), [i, x])[1] + w


def result(out: Any, **feed: Any) -> float:
    return static.Executor().run(static.default_main_program(), X | feed, [out])[0][0, 0].item()


def put(name: str, value: float) -> None:
    static.global_scope().var(name).get_tensor().set(np.full(4, value, "float32"))


def state(name: str, value: float) -> Any:
    made = static.create_global_var([4], value, "float32", persistable=True, name=name)
    put(name, value)
    return made


def test_a_loop_reads_a_renamed_state_under_its_new_name():
    w = state("w", 2.0)
    out = looped(w)
    assert result(out) == 10
    w.name = "v"
    put("v", 3.0)
    assert result(out) == 30
    text = parse(str(static.default_main_program()), "test")
    assert static.Executor().run(text, X, [out.name])[0][0, 0] == 30


def test_a_branch_trains_a_renamed_parameter():
    x = static.data("x", [None, 4], "float32")
    w = static.create_parameter([4], "float32", name="w", default_initializer=nn.initializer.Constant(2.0))
    loss = mg.mean(static.nn.cond(mg.sum(x) > 0, lambda: x * w, lambda: x - w))
    mg.optimizer.SGD(0.4).minimize(loss)
    static.Executor().run(static.default_startup_program())
    w.name = "v"
    put("v", 8.0)
    exe = static.Executor()
    seen = [exe.run(static.default_main_program(), X, [loss])[0].item() for _ in range(3)]
    np.testing.assert_allclose(seen, [8.0, 7.9, 7.8], rtol=1e-6)


def test_two_states_swap_their_names_around_nested_branches():
    w, u = state("w", 2.0), state("u", 5.0)
    x = static.data("x", [None, 4], "float32")
    inner = lambda: static.nn.cond(mg.sum(x) > 1, lambda: x * w, lambda: x * u)  # noqa: E731
    out = static.nn.cond(mg.sum(x) > 0, inner, lambda: x - w)
    assert result(out) == 2
    w.name, u.name = "free", "w"
    w.name = "u"
    assert result(out) == 5


def test_a_renamed_state_takes_a_name_that_a_value_inside_has():
    w = state("w", 2.0)
    x = static.data("x", [None, 4], "float32")
    out = static.nn.cond(mg.sum(x) > 0, lambda: (x * 3) * w, lambda: x - w)
    inside = static.default_main_program().block(1)
    w.name = next(v.name for v in inside.vars.values() if not v.is_data and not v.persistable)
    put(w.name, 7.0)
    assert result(out) == 21


def test_what_a_loop_returns_may_swap_names():
    out = looped(mg.assign(np.full(4, 2.0, "float32")))
    body = static.default_main_program().block(2)
    count, value = (body.vars[name] for name in body.program.fetched)
    names = count.name, value.name
    count.name, value.name = "free", names[0]
    count.name = names[1]
    assert body.program.fetched == names[::-1]
    assert result(out) == 10


def test_a_state_is_not_renamed_inside_of_a_block():
    out = looped(state("w", 2.0))
    for block in static.default_main_program().blocks[1:]:
        with pytest.raises(ProgramError, match=r"(?s)cannot rename w in while_loop_0.*rename it in the program around"):
            block.vars["w"].name = "v"
    assert result(out) == 10


@pytest.mark.parametrize("persistable_when", ["before", "after"])
def test_a_fed_state_is_what_a_loop_reads_or_is_refused(persistable_when: str):
    w = static.data("w", [4], "float32")
    w.persistable = persistable_when == "before"
    out = looped(w)
    w.persistable = True
    put("w", 2.0)
    assert result(out) == 10
    fed = np.full(4, 3.0, "float32")
    if persistable_when == "after":
        assert result(out, w=fed) == 30
    else:
        with pytest.raises(ProgramError, match=r"(?s)reads w: f32.4. in the scope.*fed or computed is not persistable"):
            result(out, w=fed)
    assert result(out) == 10


def test_what_a_loop_computes_of_a_fed_state():
    """Outside of the loop, too, the fed value counts."""
    w = static.data("w", [4], "float32")
    w.persistable = True
    put("w", 2.0)
    x, i = static.data("x", [None, 4], "float32"), mg.zeros([1], "int32")
    out = static.nn.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2.0), [i, x])[1] + w
    assert result(out, w=np.full(4, 3.0, "float32")) == 11
    assert result(out) == 10
