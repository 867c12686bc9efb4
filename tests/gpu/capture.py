"""GPU checks of captured steps: bit-equal to eager ones, feeds of the host and of the GPU, scopes in turns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.errors import KernelError
from minigraph.kernels.cuda.device import fills
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Segment
from minigraph.kernels.cuda.record.calls import Fill
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import uint8
from tests.gpu.check import Check, GpuExecutor, each
from tests.support.random_programs import random_program

ROWS, COLUMNS = 4, 8
PROGRAMS, CHUNK = 60, 20
RUNS = 4
STEPS_IN_A_ROW = 300


class Case:
    """A program with two products in its gradient, random numbers, a state and a rate."""

    def __init__(self, shows: bool = False, drops: bool = True) -> None:
        self.program = Program()
        self.program.random_seed = 5
        block = self.program.global_block()
        self.x = block.create_var("x", [-1, COLUMNS], "float32", is_data=True)
        self.ids = block.create_var("ids", [-1], "int64", is_data=True)
        self.w = block.create_var("w", [COLUMNS, COLUMNS], "float32", persistable=True)
        self.rate = block.create_var("rate", [1], "float32", persistable=True)
        g = Builder(block)
        rows = g.embedding(self.ids, self.w)
        h = g.elementwise_add(g.matmul(self.x, self.w), rows)
        h = g.print(h) if shows else h
        h = g.dropout(h, p=0.25, needs=["Mask"])[0] if drops else h
        self.x_grad, w_grad = g.matmul_grad(self.x, self.w, g.tanh(h), needs=["X_grad", "Y_grad"])
        g.elementwise_sub(self.w, g.elementwise_mul(w_grad, self.rate), out={"Out": self.w})
        self.total = g.reduce_sum(self.x_grad)

    def scope(self) -> Scope:
        scope = Scope()
        scope.write("w", np.random.default_rng(1).normal(size=(COLUMNS, COLUMNS)).astype("float32"))
        scope.write("rate", np.full(1, 0.1, "float32"))
        return scope

    def feed(self, seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, rows])
        x = rng.normal(size=(rows, COLUMNS)).astype("float32")
        return {"x": x, "ids": rng.integers(0, COLUMNS, rows)}

    def compiled(self, **flags: bool) -> Any:
        return mg.static.CompiledProgram(self.program, build_strategy=mg.static.BuildStrategy(**flags))


def trace(case: Case, program: Any, exe: Executor, scope: Scope, runs: int) -> list[list[Any]]:
    """What is fetched in each run."""
    return [exe.run(program, case.feed(i), [case.total, case.x_grad], scope=scope) for i in range(runs)]


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether all arrays are equal, bit by bit."""
    return all(x.tobytes() == y.tobytes() for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True))



def checks() -> Iterator[Check]:
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"capture/{first:03}", partial(_random_programs, first), product=True)
    for run in CASES:
        yield Check(f"capture/{run.__name__}", run, product=True)


def _random_programs(first: int) -> None:
    each((f"seed {seed}", partial(_random_program, seed)) for seed in range(first, first + CHUNK))


def _random_program(seed: int) -> None:
    """Captured runs and eager ones give the same bits, also where memory is shared less; half with all passes."""
    case = random_program(seed)
    make = mg.static.BuildStrategy.all if seed % 2 else mg.static.BuildStrategy
    memory = ("enable_inplace", "memory_optimize")[seed // 2 % 2]
    found = []
    for flags in ({}, {"allow_cuda_graph_capture": False}, {memory: False}):
        strategy = make(**flags)
        program = mg.static.CompiledProgram(case.program, build_strategy=strategy)
        scope, exe = Scope(), GpuExecutor()
        for name, array in case.values.items():
            scope.write(name, array.copy())
        values = [exe.run(program, case.feeds, case.fetches, scope=scope) for _ in range(RUNS)]
        found.append([*values, [scope.read(n) for n in sorted(scope.list_names())]])
    for other in found[1:]:
        assert same(found[0], other)


def small_fills_of_a_graph_are_kernels() -> None:
    """Bytes set in a graph, one fill after the other and beside each other; large ones are left to the driver."""
    driver, runtime = importlib.import_module("cuda.bindings.driver"), mg.cuda.runtime(mg.CUDAPlace(0))
    launcher = importlib.import_module("minigraph.kernels.cuda.device.launcher").Launcher(runtime, False)
    sizes, values = (1, 100, 256, 257, fills.SMALL, fills.SMALL + 1, 1 << 20), (0, 7, 255)
    memory = [runtime.allocate(n + 1) for n in sizes]
    for value in values:
        steps = [Fill(Buffer((n,), uint8, m.data.ptr), value).runnable(launcher)
                 for n, m in zip(sizes, memory, strict=True)]  # fmt: skip
        waits = [(), (), (0, 1), (2,), (2,), (), (3, 5)]
        launch = runtime.captured([Segment(own, i % 2, w) for i, (own, w) in enumerate(zip(steps, waits, strict=True))])
        for array in memory:
            array.fill(99)
        importlib.import_module("cupy").cuda.Device().synchronize()
        launch()
        runtime.stream.synchronize()
        for n, array in zip(sizes, memory, strict=True):
            assert bool((array[:n] == value).all()) and int(array[n]) == 99, (n, value)
        _, nodes, count = driver.cuGraphGetNodes(driver.CUgraph(launch.graph.graph), len(sizes))
        kinds = [driver.cuGraphNodeGetType(node)[1].name for node in nodes[:count]]
        assert count == len(sizes) and sum(kind.endswith("MEMSET") for kind in kinds) == 2, kinds


def captured_equals_eager() -> None:
    case, values = Case(), []
    for flags in ({}, {"allow_cuda_graph_capture": False}, {"enable_inplace": False}, {"memory_optimize": False}):
        scope = case.scope()
        values.append([*trace(case, case.compiled(**flags), GpuExecutor(), scope, 6), [scope.read("w")]])
    for other in values[1:]:
        assert same(values[0], other)


def feeds_of_the_gpu_equal_feeds_of_the_host() -> None:
    """CuPy arrays, written and overwritten on the caller's stream around the runs."""
    cupy = importlib.import_module("cupy")
    case, exe, scope = Case(), Executor(mg.CUDAPlace(0)), Case().scope()
    expected = trace(case, case.program, Executor(mg.CUDAPlace(0)), Case().scope(), RUNS * 4)
    shown = {name: cupy.zeros_like(cupy.asarray(x)) for name, x in case.feed(0).items()}
    found = []
    for i in range(RUNS * 4):
        for name, x in case.feed(i).items():
            shown[name][...] = cupy.asarray(x)
        values = exe.run(case.program, shown, [case.total, case.x_grad], scope=scope, return_numpy=False)
        for a in shown.values():
            a.fill(7)  # the run has taken them
        found.append([v.get() for v in values])
    assert same(found, expected)


def many_runs_in_flight_see_their_own_feeds() -> None:
    """Runs without a wait in between, feeds of 1 MiB that are overwritten as soon as run returns."""
    program = Program()
    block = program.global_block()
    g = Builder(block)
    x = block.create_var("x", [-1, 512], "float32", is_data=True)
    total = block.create_var("total", [1], "float64", persistable=True)
    summed = g.reshape(g.cast(g.reduce_sum(x), dtype="float64"), shape=[1])
    g.elementwise_add(total, summed, out={"Out": total})
    exe, scope = Executor(mg.CUDAPlace(0)), Scope()
    scope.write("total", np.zeros(1))
    host = np.empty((512, 512), np.float32)
    for i in range(STEPS_IN_A_ROW):
        host.fill(i % 7)
        exe.run(program, {"x": host}, scope=scope)
    expected = float(sum(i % 7 for i in range(STEPS_IN_A_ROW)) * host.size)
    assert scope.read("total")[0] == expected, (scope.read("total"), expected)


def scopes_take_turns() -> None:
    case, exe, scopes = Case(), GpuExecutor(), [Case().scope() for _ in range(3)]
    alone = trace(case, case.program, GpuExecutor(), Case().scope(), RUNS)
    turns: list[list[Any]] = [[] for _ in scopes]
    for i in range(RUNS):
        for scope, found in zip(scopes, turns, strict=True):
            found.append(exe.run(case.program, case.feed(i), [case.total, case.x_grad], scope=scope))
    for found in turns:
        assert same(found, alone)


def rates_change_between_launches() -> None:
    case, exe, scope = Case(), GpuExecutor(), Case().scope()
    twin, cpu = Case().scope(), Executor()
    rates = [0.5, 0.25, 0.25, 0.125, 0.5, 0.0]
    case.program.lr_schedulers.append((case.rate, lambda: rates[0]))
    for i in range(6):
        for e, s in ((exe, scope), (cpu, twin)):
            e.run(case.program, case.feed(i), scope=s)
        found, expected = scope.read("w"), twin.read("w")
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-5), (i, np.abs(found - expected).max())
        rates.append(rates.pop(0))
    exe.run(case.program, case.feed(0), scope=scope)


def a_fault_is_reported_and_the_next_run_is_right() -> None:
    case, exe, scope = Case(), GpuExecutor(), Case().scope()
    bad = case.feed(1)
    bad["ids"][2] = -COLUMNS - 1
    trace(case, case.program, exe, scope, 3)
    for _ in range(2):
        message = "nothing was reported"
        try:
            exe.run(case.program, bad, [case.total], scope=scope)
        except KernelError as error:
            message = str(error)
        assert "row 2" in message, message
        trace(case, case.program, exe, scope, 2)


def arrays_of_other_frameworks_are_fed() -> None:
    """PyTorch tensors on the GPU, where PyTorch is installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return
    case = Case()
    expected = trace(case, case.program, GpuExecutor(), Case().scope(), RUNS)
    exe, scope, found = GpuExecutor(), Case().scope(), []
    for i in range(RUNS):
        feed = {name: torch.tensor(x, device="cuda") for name, x in case.feed(i).items()}
        found.append(exe.run(case.program, feed, [case.total, case.x_grad], scope=scope))
    assert same(found, expected)


CASES = [
    captured_equals_eager, feeds_of_the_gpu_equal_feeds_of_the_host, many_runs_in_flight_see_their_own_feeds,
    scopes_take_turns, rates_change_between_launches, a_fault_is_reported_and_the_next_run_is_right,
    arrays_of_other_frameworks_are_fed, small_fills_of_a_graph_are_kernels,
]  # fmt: skip
