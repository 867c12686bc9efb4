"""GPU checks of branches and loops: the cases recorded from Paddle, random programs, functions of Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

import minigraph as mg
from minigraph.compiler.strategy import BuildStrategy
from minigraph.program import unique_name
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import CompiledProgram
from tests import fuzz
from tests.gpu.check import Check, GpuExecutor, each, on_gpu
from tests.support import control_cases
from tests.support.random_control import random_control

PROGRAMS, CHUNK = 100, 10
RUNS = 3  # one by one, captured, launched
TOLERANCE = 1e-10


def checks() -> Iterator[Check]:
    yield Check("control/cases", _cases, product=True)
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"control/random/{first:03}", partial(_random, first), product=True)
    yield Check("control/py_func", _py_func)


def _cases() -> None:
    with _in_float64():
        each((title, partial(_case, title)) for title in control_cases.cases())


@contextmanager
def _in_float64() -> Iterator[None]:
    """Other checks of the process have the usual type."""
    mg.set_default_dtype("float64")
    try:
        yield
    finally:
        mg.set_default_dtype("float32")


def _case(title: str) -> None:
    case = control_cases.cases()[title]
    with unique_name.guard():
        main, startup, wanted = control_cases.build(mg, case)
    feed = {f"x{i}": a for i, a in enumerate(case[1])}
    fetches = [v for v in wanted if v is not None]
    found = []
    for exe in (Executor(), GpuExecutor()):
        scope = Scope()
        exe.run(startup, scope=scope)
        found.append([exe.run(main, feed=feed, fetch_list=fetches, scope=scope) for _ in range(RUNS)])
    for expected, ours in zip(*found, strict=True):
        for a, b in zip(expected, ours, strict=True):
            np.testing.assert_allclose(b, a, rtol=TOLERANCE, atol=TOLERANCE)


def _random(first: int) -> None:
    with _in_float64():
        each((f"seed {seed}", partial(_random_program, seed)) for seed in range(first, first + CHUNK))


def _random_program(seed: int) -> None:
    case = random_control(seed)
    expected = fuzz.run(case, case.program)
    compiled = CompiledProgram(case.program, BuildStrategy.all())
    peak = max(float(np.abs(a).max(initial=0.0)) for a in expected.values())
    with on_gpu(fuzz):
        for who, program in (("unfused", case.program), ("fused", compiled)):
            found = fuzz.run(case, program)
            for name, a in expected.items():
                np.testing.assert_allclose(
                    found[name], a, rtol=TOLERANCE, atol=TOLERANCE * peak, err_msg=f"{who} {name}"
                )


def _py_func() -> None:
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup), unique_name.guard():
        x = mg.static.data("x", [64, 3], "float64")
        x.stop_gradient = False
        out = main.global_block().create_var("out", [64, 3], "float64")
        mg.static.py_func(np.tanh, x * 2.0, out, lambda x, y, d: d * (1 - y * y))
        grads = mg.static.gradients([mg.sum(out * out)], [x])
    values = np.random.default_rng(0).normal(size=(64, 3))
    exe, y = GpuExecutor(), np.tanh(2 * values)
    for _ in range(RUNS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, grad = exe.run(main, feed={"x": values}, fetch_list=[out, *grads])
        np.testing.assert_allclose(found, y, rtol=1e-13)
        np.testing.assert_allclose(grad, 4 * y * (1 - y * y), rtol=1e-12)
