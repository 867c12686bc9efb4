"""A process that builds, compiles, runs and drops programs keeps none of them."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.graph import Graph, OpNode
from minigraph.program import Operator, Program
from minigraph.runtime import executor
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.schedule import Schedule
from tests.support.grades import graded

KEPT = (Program, Operator, Plan, Schedule, Graph, OpNode)


def live(exe, scope, fused):
    """One program from its first line to its last run."""
    main, startup = Program(), Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        loss = mg.mean(mg.exp(mg.nn.Linear(3, 2)(mg.static.data("x", [None, 3]))) * 2.0)
        mg.optimizer.AdamW(0.01).minimize(loss)
    exe.run(startup, scope=scope)
    program = mg.static.CompiledProgram(main, mg.static.BuildStrategy.all()) if fused else main
    exe.run(program, {"x": np.ones((2, 3), "f4")}, [loss], scope=scope)


def counted() -> Counter[str]:
    gc.collect()
    return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, KEPT))


@pytest.mark.parametrize(
    ("fresh", "fused"),
    graded([(False, False), (False, True), (True, False), (True, True)], now=lambda fresh, fused: fresh != fused),
)
def test_programs_that_are_dropped_leave_nothing(fresh, fused, monkeypatch, frozen):
    monkeypatch.setattr(executor, "GONE_KNOWN", 4)
    monkeypatch.setattr(executor, "PROGRAMS_KEPT", 4)
    exe, scope, counts = mg.static.Executor(), mg.static.Scope(), []
    for turn in range(24):
        live(mg.static.Executor() if fresh else exe, mg.static.Scope() if fresh else scope, fused)
        if turn in (11, 23):  # by then as many plans are kept as ever are
            counts.append(counted())
    assert counts[0] == counts[1]
    assert len(exe._plans) <= executor.PROGRAMS_KEPT
    assert len(exe._plans.gone) <= 4
    assert len(scope.steps) <= executor.PROGRAMS_KEPT


def test_counters_of_a_dropped_program_are_dropped(frozen):
    scope, exe = mg.static.Scope(), mg.static.Executor()
    main = Program()
    with mg.static.program_guard(main, Program()):
        out = mg.mean(mg.static.data("x", [2]))
    for _ in range(3):
        exe.run(main, {"x": np.ones(2, "f4")}, [out], scope=scope)
    assert scope.steps[main.origin] == 3 and dict(scope.steps) == {main.origin: 3}
    exe.close()
    del main, out
    gc.collect()
    assert not scope.steps
