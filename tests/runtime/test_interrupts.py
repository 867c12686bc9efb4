"""Ctrl-C at every instant of a run, a save, a load, a step of a scheduler: the state is old, new, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import AttrError, ProgramError
from minigraph.optimizer import lr
from minigraph.program.scope import Scope, Steps
from minigraph.runtime.checkpoint import storage
from tests.support import gpu_stub
from tests.support.checkpoints import FILES, Trained
from tests.support.interrupts import interrupts

X = np.arange(6, dtype="float32").reshape(2, 3)
NEW = 8


class Net:
    """A net in a Scope of its own, with averages of its parameters."""

    def __init__(self, place: Any = None) -> None:
        self.main, startup = static.Program("main"), static.Program("startup")
        self.main.random_seed = startup.random_seed = 1
        with static.program_guard(self.main, startup), unique_name.guard():
            drawn = mg.nn.functional.dropout(static.data("x", [2, 3]), 0.5)
            mg.optimizer.Momentum(0.1).minimize(mg.mean(static.nn.fc(drawn, 3) ** 2))
            self.average = static.ExponentialMovingAverage(0.5)
            self.average.update()
        self.scope, self.exe = Scope(), static.Executor(place)
        self.exe.run(startup, scope=self.scope)
        self.run()

    def run(self) -> None:
        self.exe.run(self.main, {"x": X}, scope=self.scope)

    def apply(self) -> None:
        with static.scope_guard(self.scope), self.average.apply():
            pass

    def state(self) -> Any:
        """All values and the counter of runs; None where values are refused."""
        try:
            state = self.main.state_dict(scope=self.scope)
        except ProgramError:
            return None
        return {name: a.tobytes() for name, a in state.items()}, self.scope.steps[self.main.origin]

    def back(self, values: dict[str, np.ndarray], runs: int) -> None:
        self.main.set_state_dict(values, self.scope)
        self.scope.steps[self.main.origin] = runs


@pytest.mark.parametrize("on_gpu", [False, True], ids=["", "GPU"])
def test_a_run(monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> None:
    if on_gpu and gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("no C++ compiler")
    if on_gpu:
        gpu_stub.installed(monkeypatch)
    net = Net(mg.CUDAPlace(0) if on_gpu else None)
    values, runs, old = net.main.state_dict(scope=net.scope), net.scope.steps[net.main.origin], net.state()
    net.run()
    new, seen = net.state(), set[bool]()
    net.back(values, runs)
    for where in interrupts(net.run):
        state = net.state()
        assert state in (old, new, None), where
        seen.add(state is None)
        net.back(values, runs)
        assert not net.scope.turn._taken.locked()
    assert net.state() == new
    assert seen == ({False} if on_gpu else {False, True})  # the stub's kernels are no part of the package


@pytest.mark.parametrize("place", [None, mg.CUDAPlace(0)], ids=["", "GPU"])
def test_an_interrupt_where_a_run_is_counted(monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    """All values are new by then: they are taken back, or nobody may take them for those of the old count."""
    if place is not None and gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("no C++ compiler")
    if place is not None:
        gpu_stub.installed(monkeypatch)
    net = Net(place)
    old, count = net.state(), Steps.__setitem__

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(Steps, "__setitem__", count)
        raise KeyboardInterrupt

    monkeypatch.setattr(Steps, "__setitem__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        net.run()
    assert net.state() in (old, None)


class Cut(Net):
    """A net that counts its runs in a state before a branch, so that it runs in two pieces."""

    def __init__(self) -> None:
        self.main, startup = static.Program("main"), static.Program("startup")
        self.main.random_seed = startup.random_seed = 1
        with static.program_guard(self.main, startup), unique_name.guard():
            x = static.data("x", [2, 3])
            count = static.create_global_var([1], 0.0, "float32", persistable=True, name="count")
            mg.increment(count)
            h = static.nn.cond(mg.mean(x) > count, lambda: mg.nn.functional.dropout(x, 0.5), lambda: x * 2.0)
            mg.optimizer.Momentum(0.1).minimize(mg.mean(static.nn.fc(h, 3) ** 2))
        self.scope, self.exe = Scope(), static.Executor()
        self.exe.run(startup, scope=self.scope)
        self.run()


def test_a_run_in_pieces() -> None:
    net = Cut()
    values, runs, old = net.main.state_dict(scope=net.scope), net.scope.steps[net.main.origin], net.state()
    net.run()
    new = net.state()
    net.back(values, runs)
    for where in interrupts(net.run, ("runtime/control", "runtime/cpu/plan.py", "weakref.py")):
        assert net.state() in (old, new, None), where
        net.back(values, runs)
    assert net.state() == new


def test_averages() -> None:
    net = Net()
    values, old = net.main.state_dict(scope=net.scope), net.state()
    for where in interrupts(net.apply):
        assert net.state() in (old, None), where
        if net.average._before:
            net.average.restore()
        assert net.state() == old, where
        net.main.set_state_dict(values, net.scope)


GUARDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "program_guard": (lambda: static.program_guard(static.Program()), static.default_main_program),
    "scope_guard": (lambda: static.scope_guard(Scope()), static.global_scope),
    "name_scope": (lambda: static.name_scope("a"), lambda: static.default_main_program().scope_name),
    "unique_name": (lambda: unique_name.guard("a"), lambda: unique_name.generate("x").startswith("a")),
}


@pytest.mark.parametrize("kind", GUARDS)
def test_a_guard(kind: str) -> None:
    guard, inside = GUARDS[kind]
    outside = inside()

    def entered() -> None:
        with guard():
            assert inside() != outside

    for where in interrupts(entered):
        assert inside() == outside, where


SCHEDULERS: dict[str, Callable[[], Any]] = {
    "warmup to a schedule": lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, 5), 2, 0.0, 0.1),
    "multiplicative": lambda: lr.MultiplicativeDecay(0.1, lambda epoch: 0.5),
    "plateau": lambda: lr.ReduceOnPlateau(0.1, patience=1),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler(name: str) -> None:
    scheduler = SCHEDULERS[name]()
    args = (1.0,) if name == "plateau" else ()
    for _ in range(4):
        scheduler.step(*args)
    old = scheduler.state_dict()
    scheduler.step(*args)
    new = scheduler.state_dict()
    assert new != old
    for call in (lambda: scheduler.step(*args), lambda: scheduler.set_state_dict(new)):
        scheduler.set_state_dict(old)
        for where in interrupts(call):
            assert scheduler.state_dict() in (old, new), where
            scheduler.set_state_dict(old)
        assert scheduler.state_dict() == new


def test_a_scheduler_whose_rate_is_none_stays() -> None:
    scheduler = lr.LambdaDecay(0.1, lambda epoch: 0.5**epoch if epoch < 3 else float("nan"))
    scheduler.step(2)
    before = scheduler.state_dict()
    with pytest.raises(AttrError, match=r"get_lr\(\) must be a number"):
        scheduler.step()
    assert scheduler.state_dict() == before


@pytest.mark.parametrize("room", ["storage", "commit"])
def test_a_save(tmp_path: Path, room: str) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 0)
    for where in interrupts(lambda: trained.save(path, NEW), (f"checkpoint/{room}", "contextlib.py")):
        assert not storage._locks, where  # a lock that was left would stop the next save for ever
        assert trained.loaded(path) in (0, NEW), where
        trained.save(path, 0)
        assert sorted(p.name for p in tmp_path.iterdir()) == FILES
    assert trained.loaded(path) == NEW


@pytest.mark.parametrize("room", ["reader", "program/scope", "training"])
def test_a_load(tmp_path: Path, room: str) -> None:
    net = Net()
    values, runs = net.main.state_dict(scope=net.scope), net.scope.steps[net.main.origin]
    with static.scope_guard(net.scope):
        static.save(net.main, str(tmp_path / "m"))
        old = net.state()
        net.run()
        new = net.state()
        now, later = net.main.state_dict(scope=net.scope), net.scope.steps[net.main.origin]
        for where in interrupts(lambda: static.load(net.main, str(tmp_path / "m")), (room,)):
            assert net.state() in (old, new, None), where
            net.back(now, later)
        assert net.state() == old
    assert runs == later - 1
    assert values.keys() == now.keys()
