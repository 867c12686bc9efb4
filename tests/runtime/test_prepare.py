"""Executor.prepare: the plan of a run before it, so that kernels are compiled while something else is done."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
import pytest

import minigraph as mg
from minigraph import cuda, static
from minigraph.errors import FeedError, PlaceError, ProgramError
from minigraph.kernels.cuda.record.workspace import Settling
from minigraph.program import unique_name
from minigraph.runtime.executor import Executor
from minigraph.types import CPUPlace, CUDAPlace
from tests.support import gpu_stub

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Net:
    """One layer that trains, for batches of any size."""

    def __init__(self, compiled: bool, place: object) -> None:
        self.main, self.startup = static.Program(), static.Program()
        self.main.random_seed = self.startup.random_seed = 5
        with static.program_guard(self.main, self.startup), unique_name.guard():
            x = static.data("x", [None, 4])
            self.loss = mg.mean(mg.square(mg.nn.Linear(4, 2)(x)))
            mg.optimizer.SGD(0.1).minimize(self.loss)
        strategy = static.BuildStrategy.all()
        self.program = static.CompiledProgram(self.main, build_strategy=strategy) if compiled else self.main
        self.exe, self.scope = Executor(place), static.Scope()

    def trained(self, steps: int = 3) -> list[float]:
        self.exe.run(self.startup, scope=self.scope)
        return [float(self.exe.run(self.program, {"x": X}, [self.loss], scope=self.scope)[0]) for _ in range(steps)]


def made(net: Net, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the programs whose plans are made from now on."""
    names, own = list[str](), Executor._make_plan
    monkeypatch.setattr(net.exe, "_make_plan", lambda p, *rest: names.append(p.name) or own(net.exe, p, *rest))
    return names


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("feed", [{"x": [3, 4]}, {"x": (3, 4)}, {"x": X}, "variable"], ids=range(4))
def test_the_first_run_has_the_plan_that_was_prepared(compiled, feed, monkeypatch):
    wanted = Net(compiled, CPUPlace()).trained()
    net = Net(compiled, CPUPlace())
    names = made(net, monkeypatch)
    net.exe.prepare(
        net.program, {net.main.vars["x"]: [3, 4]} if feed == "variable" else feed, [net.loss], scope=net.scope
    )
    assert len(names) == 1 and not net.scope.list_names()
    assert net.trained() == wanted and len(names) == 2  # that of the startup program
    net.exe.prepare(net.program, {"x": X}, net.loss, scope=net.scope)
    assert len(names) == 2 and net.exe.run(net.program, {"x": X}, [net.loss], scope=net.scope)


def test_other_sizes_or_fetches_have_plans_of_their_own(monkeypatch):
    net = Net(True, CPUPlace())
    names = made(net, monkeypatch)
    net.exe.prepare(net.program, {"x": [2, 4]}, [net.loss], scope=net.scope)
    net.exe.prepare(net.program, {"x": [3, 4]}, scope=net.scope)
    assert net.trained(1) == Net(True, CPUPlace()).trained(1) and len(names) == 4


def test_kernels_begin_before_values_are_there(monkeypatch):
    """And the startup program, which runs meanwhile, does not wait for them: tests/kernels/test_kernel_cache.py."""
    runtime = gpu_stub.installed(monkeypatch)
    begun = list[str]()

    def compiling(settling):
        def settle(calls, note):
            done = settling.settle(calls, note)
            begun.extend(function for call in done for _, function in call.kernels())
            return done

        return Settling(settle, settling.sure)

    monkeypatch.setattr(runtime, "compiling", compiling)
    net = Net(True, CUDAPlace(0))
    net.exe.prepare(net.program, {"x": [3, 4]}, [net.loss], scope=net.scope)
    before = list(begun)
    assert before and not net.scope.list_names() and not runtime.known  # nobody has waited for a kernel
    np.testing.assert_allclose(net.trained(), Net(True, CPUPlace()).trained(), rtol=1e-5)
    plan = next(reversed(net.exe._plans.values()))
    assert len(net.exe._plans) == 2 and plan.binding.launch is not None


@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_comes_up_while_passes_work(fails: bool, monkeypatch: pytest.MonkeyPatch):
    gpu_stub.installed(monkeypatch)
    net, own, passes = Net(True, CUDAPlace(0)), cuda.runtime, static.CompiledProgram.program_for
    asked, came, raised = list[threading.Thread](), threading.Event(), list[object]()

    def runtime(place):
        asked.append(threading.current_thread())
        came.set()
        if fails:
            raise PlaceError("no power")
        return own(place)

    def program_for(*args):
        assert came.wait(60)
        return passes(*args)

    monkeypatch.setattr(cuda, "runtime", runtime)
    monkeypatch.setattr(static.CompiledProgram, "program_for", program_for)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with pytest.raises(PlaceError, match="no power") if fails else nullcontext():
        net.exe.prepare(net.program, {"x": [3, 4]}, [net.loss], scope=net.scope)
    asked[0].join()
    assert asked[0] is not threading.main_thread() and asked[-1] is threading.main_thread() and not raised


def test_what_cannot_be_prepared_is_refused():
    net = Net(True, CPUPlace())
    with pytest.raises(FeedError, match="what a run needs depends on the shape of x"):
        net.exe.prepare(net.program, fetch_list=[net.loss])
    with pytest.raises(FeedError, match="feed x must be"):
        net.exe.prepare(net.program, {"x": [3, 5]}, [net.loss])
    with static.program_guard(static.Program()), pytest.raises(ProgramError, match="default main program is empty"):
        net.exe.prepare(fetch_list=["y"])
    several = static.CompiledProgram(net.main).with_data_parallel(net.loss.name, places=[CPUPlace(), CPUPlace()])
    with pytest.raises(ProgramError, match="several places cannot be prepared"):
        net.exe.prepare(several, {"x": [3, 4]}, [net.loss])
    assert not net.exe._plans and net.trained()


def test_a_program_with_all_sizes_needs_no_feeds_to_be_prepared(monkeypatch):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        doubled = static.data("x", [3, 4]) * 2
    exe = Executor(CPUPlace())
    exe.prepare(main, fetch_list=[doubled])
    plans = list(exe._plans.values())
    assert (exe.run(main, {"x": X}, [doubled])[0] == X * 2).all() and list(exe._plans.values()) == plans
