"""GPU checks of the profiler: it changes no result, its times are those of work, its peaks are above them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import minigraph as mg
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.gpu.capture import Case, same, trace
from tests.gpu.check import PLACE, Check

LARGE, CHAIN = 4096, 300


def checks() -> Iterator[Check]:
    yield Check("profile/results_are_the_same", results_are_the_same, product=True)
    yield Check("profile/times_are_those_of_work", times_are_those_of_work, product=True, alone=True)
    yield Check("profile/more_calls_than_a_chunk", more_calls_than_a_chunk)


def results_are_the_same() -> None:
    """Runs before, while and after somebody looks give the bits of runs that nobody looks at."""
    case = Case()
    scopes, exes = (case.scope(), case.scope()), (Executor(PLACE), Executor(PLACE))
    plain = trace(case, case.program, exes[0], scopes[0], 6)
    looked = trace(case, case.program, exes[1], scopes[1], 2)
    with mg.profiler.Profiler() as profile:
        looked += [exes[1].run(case.program, case.feed(i), [case.total, case.x_grad], scope=scopes[1]) for i in (2, 3)]
    looked += [exes[1].run(case.program, case.feed(i), [case.total, case.x_grad], scope=scopes[1]) for i in (4, 5)]
    assert same(plain, looked)
    assert scopes[0].read("w").tobytes() == scopes[1].read("w").tobytes()
    assert len(profile.runs) == 2
    assert all(call.seconds >= 0 and call.kernel is not None for run in profile.runs for call in run.calls)


def times_are_those_of_work() -> None:
    """A large product is most of a program, and reaches 20 to 105 % of what the card can do."""
    program = Program("product")
    block = program.global_block()
    g = Builder(block)
    x = block.create_var("x", [LARGE, LARGE], "bfloat16", is_data=True)
    out = g.reduce_sum(g.cast(g.matmul(x, x), dtype="float32"))
    exe, scope = Executor(PLACE), Scope()
    feed = {"x": np.random.default_rng(0).normal(size=(LARGE, LARGE)).astype(x.dtype)}
    for _ in range(2):
        exe.run(program, feed, [out], scope=scope)
    with mg.profiler.Profiler() as profile:
        for _ in range(5):
            exe.run(program, feed, [out], scope=scope)
    (peaks,) = profile.peaks().values()
    assert peaks.bandwidth > 1e11, peaks
    first = profile.rows()[0]
    assert first.type == "matmul", profile.table()
    assert first.flops == 2 * LARGE**3
    if peaks.flops:
        assert first.roofline is not None and 0.2 < first.roofline < 1.05, profile.table()


def more_calls_than_a_chunk() -> None:
    """More calls than are handed over at once; no time holds the wait for the host."""
    program = Program("chain")
    block = program.global_block()
    g = Builder(block)
    y = x = block.create_var("x", [64], "float32", is_data=True)
    for _ in range(CHAIN):
        y = g.tanh(y)
    exe, scope = Executor(PLACE), Scope()
    feed = {"x": np.ones(64, "float32")}
    with mg.profiler.Profiler() as profile:
        for _ in range(3):
            exe.run(program, feed, [y], scope=scope)
    rows = [row for row in profile.rows() if row.type == "tanh"]
    assert len(rows) == CHAIN
    assert x.name == "x" and sorted(r.seconds for r in rows)[CHAIN // 2] < 20e-6, profile.table()
