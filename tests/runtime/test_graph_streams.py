"""Which stream of a captured graph goes on with which call. What holds on any streams is in test_memory.py."""

from __future__ import annotations

import random

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.strategy import BuildStrategy
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.layout.graph_streams import assign_streams, assigned, followers, waits
from minigraph.runtime.cuda.layout.order import Unit, dependencies
from minigraph.types import TensorType, float32
from tests.runtime.test_memory import happened_before


def lanes_of(units, sizes):
    return [turn.stream for turn in assign_streams(range(len(units)), units, {}, sizes)]


def test_a_lane_goes_on_with_the_longest_way():
    """Both need the first call, and the one that is recorded later has more to do behind it."""
    small = {b: 1 for b in range(10)}
    units = [Unit({0}, {1}), Unit({1}, {2}), Unit({1}, {3}), Unit({3}, {4}), Unit({4}, {5})]
    assert lanes_of(units, small) == [0, 1, 0, 0, 0]
    assert lanes_of(units, small | {2: 100}) == [0, 0, 1, 1, 1], "it has more to do by itself"


def test_of_two_lanes_that_end_in_a_call_it_takes_that_of_more_work():
    units = [Unit({0}, {1}), Unit({8}, {2}), Unit({2}, {3}), Unit({1, 3}, {4})]
    assert lanes_of(units, {0: 90, 1: 90, 8: 1, 2: 1, 3: 1, 4: 1}) == [0, 1, 1, 0]
    assert lanes_of(units, {0: 1, 1: 1, 8: 50, 2: 50, 3: 50, 4: 1}) == [0, 1, 1, 1]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_every_dependency_is_kept(streams):
    r = random.Random(streams)
    for _ in range(150):
        units = []
        for i in range(r.randint(1, 14)):
            after = {r.randrange(i)} if i and r.random() < 0.2 else ()
            units.append(Unit(set(r.sample(range(8), r.randint(0, 3))), {r.randrange(8)}, after=frozenset(after)))
        order, before = range(len(units)), dependencies(units)
        work = {i: r.randint(1, 9) for i in order}
        made = assigned(order, waits(order, units, {}), streams, followers(order, before, work), work)
        ended = happened_before(made)
        assert all(w in ended[i] for i in order for w in before[i])
        assert all(turn.stream < streams for turn in made)


def test_a_host_call_waits_for_no_constant():
    """A constant is there before the first run: nothing of a run's calls waits for it."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        a = mg.full([2], 1.5)
        mg.static.Print(a)
        out = a * 2.0
    plan = bind_program(main, {}, (out.name,))
    assert len(plan.order) < len(plan.binder.calls)
    assert [turn.position for turn in plan.streams()] == plan.order


def test_updates_of_different_layers_do_not_wait_for_one_another():
    """They read the numbers of the step that one kernel has made for both."""
    main = mg.static.Program("net")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        h = mg.static.data("x", [32, 800], "float32")
        for a, b in ((800, 900), (900, 700)):
            h = mg.nn.Linear(a, b)(h)
        mg.optimizer.Adam(0.1).minimize(mg.mean(mg.square(h)))
    program = mg.static.CompiledProgram(main, build_strategy=BuildStrategy.all()).program_for(())
    plan = bind_program(program, {"x": TensorType((32, 800), float32)}, ())
    calls = plan.binder.calls
    first, second = (i for i in plan.order if getattr(calls[i], "function", "") == "update")
    (prepare,) = (i for i in plan.order if getattr(calls[i], "function", "") == "prepare")
    before = dependencies(plan.units.units)
    assert first not in before[second] and {prepare} <= before[first] & before[second]
    assert np.unique([turn.stream for turn in plan.streams()]).tolist() == [0, 1]
