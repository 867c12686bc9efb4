"""GPU checks of linear algebra: the host takes part in a step that trains, and a singular matrix loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import minigraph as mg
from minigraph.errors import KernelError
from minigraph.program import Program, program_guard
from minigraph.program.scope import Scope
from minigraph.program.unique_name import guard
from minigraph.runtime.executor import Executor
from minigraph.static import CompiledProgram
from minigraph.types import CPUPlace
from tests.gpu.check import PLACE, Check, assert_near

STEPS = 4


def checks() -> Iterator[Check]:
    for optimizer in ("SGD", "AdamW"):
        yield Check(f"linalg/training/{optimizer}", partial(training, optimizer), product=True)
        yield Check(f"linalg/singular/{optimizer}", partial(singular, optimizer), product=True)


def net(optimizer: str) -> tuple[Program, Program, list[mg.Variable]]:
    """A loss of a solution, a determinant and singular values of matrices that parameters change."""
    main, startup = Program(), Program()
    with guard("linalg_"), program_guard(main, startup):
        x = mg.static.data("x", [2, 3, 3], "float64")
        weight = mg.static.create_parameter(
            [3, 3], "float64", default_initializer=mg.nn.initializer.Assign(np.eye(3) * 0.5 + 0.25)
        )
        both = mg.matmul(x, weight)
        answer = mg.linalg.solve(both, mg.ones([2, 3, 2], "float64"))
        values = mg.linalg.svd(both)[1]
        symmetric = mg.matmul(both, both, transpose_y=True) + mg.eye(3, dtype="float64")
        factor = mg.linalg.cholesky(symmetric)
        loss = mg.mean(answer * answer) + mg.mean(values) + mg.mean(factor) + mg.mean(mg.linalg.det(both))
        getattr(mg.optimizer, optimizer)(0.01).minimize(loss)
    return main, startup, [loss, weight]


def feeds() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(20221)
    for _ in range(STEPS):
        yield rng.normal(size=(2, 3, 3)) + 3 * np.eye(3)


def training(optimizer: str) -> None:
    """Four steps give the CPU's losses and parameters, written and compiled."""
    found = []
    for place, compiled in ((CPUPlace(), False), (PLACE, False), (PLACE, True)):
        main, startup, fetches = net(optimizer)
        exe, scope = Executor(place), Scope()
        exe.run(startup, scope=scope)
        program = CompiledProgram(main, mg.static.BuildStrategy.all()) if compiled else main
        found.append([exe.run(program, {"x": x}, fetches, scope=scope) for x in feeds()])
    for others in found[1:]:
        for own, right in zip(others, found[0], strict=True):
            for a, b in zip(own, right, strict=True):
                assert_near(a, b, 1e-11, optimizer)


def refusal(exe: Executor, main: Program, x: np.ndarray, fetches: list[mg.Variable], scope: Scope) -> str:
    """What a run says of matrices that it does not take; empty where it takes them."""
    try:
        exe.run(main, {"x": x}, fetches, scope=scope)
    except KernelError as problem:
        return str(problem)
    return ""


def singular(optimizer: str) -> None:
    """A singular matrix is an error that names the operator; parameters, states and later steps do not notice."""
    main, startup, fetches = net(optimizer)
    runs = []
    for disturbed in (False, True):
        exe, scope = Executor(PLACE), Scope()
        exe.run(startup, scope=scope)
        values = []
        for x in feeds():
            if disturbed:
                bad = x.copy()
                bad[1] = 0.0
                told = refusal(exe, main, bad, fetches, scope)
                assert "solve" in told, told
                assert "no answer" in told, told
            values.append(exe.run(main, {"x": x}, fetches, scope=scope))
        runs.append(values)
    for plain, other in zip(*runs, strict=True):
        for a, b in zip(plain, other, strict=True):
            assert np.array_equal(a, b)
