"""What a signal handler or a function of py_func begins in the middle of a run, save or load of its own thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import ProgramError
from minigraph.program.scope import Scope
from minigraph.runtime.checkpoint import storage
from tests.support import gpu_stub

X = np.arange(6, dtype="float32").reshape(2, 3)
REFUSED = "this thread is in the middle of another"


class Trained:
    """A net, its Scope, its Executor and a place to save it."""

    def __init__(self, folder: Path, place: Any = None) -> None:
        self.main, startup = static.Program("main"), static.Program("startup")
        self.main.random_seed = startup.random_seed = 1
        with static.program_guard(self.main, startup), unique_name.guard():
            self.loss = mg.mean(static.nn.fc(static.data("x", [2, 3]), 3) ** 2)
            mg.optimizer.Momentum(0.1).minimize(self.loss)
            self.average = static.ExponentialMovingAverage(0.5)
            self.average.update()
        self.scope, self.exe, self.path = Scope(), static.Executor(place), folder / "m"
        self.exe.run(startup, scope=self.scope)

    def run(self) -> float:
        return float(self.exe.run(self.main, {"x": X}, [self.loss], scope=self.scope)[0])

    def inside(self, call: Callable[[], Any]) -> Any:
        with static.scope_guard(self.scope):
            return call()

    def calls(self) -> dict[str, Callable[[], Any]]:
        """What nobody may begin in the middle of a run."""
        state = self.main.state_dict(scope=self.scope)
        self.save()
        return {
            "run": self.run,
            "other scope": lambda: self.exe.run(static.Program(), scope=Scope()),
            "other executor": lambda: static.Executor().run(static.Program(), scope=self.scope),
            "state_dict": lambda: self.main.state_dict(scope=self.scope),
            "set_state_dict": lambda: self.main.set_state_dict(state, scope=self.scope),
            "save": self.save,
            "load": lambda: self.inside(lambda: static.load(self.main, str(self.path))),
            "save_vars": lambda: self.inside(lambda: static.io.save_vars(self.exe, self.path.parent, self.main)),
            "averages": lambda: self.inside(self.average._take),
        }

    def save(self) -> None:
        self.inside(lambda: static.save(self.main, str(self.path)))


CALLS = [
    "run", "other scope", "other executor", "state_dict", "set_state_dict", "save", "load", "save_vars", "averages",
]  # fmt: skip


@pytest.fixture
def handler() -> Iterator[list[Callable[[], Any]]]:
    """What the handler of SIGUSR1 calls, once each; it is raised by `signalled`."""
    waiting: list[Callable[[], Any]] = []

    def handle(*_: Any) -> None:
        while waiting:
            waiting.pop()()

    before = signal.signal(signal.SIGUSR1, handle)
    yield waiting
    signal.signal(signal.SIGUSR1, before)


def signalled(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """A signal comes with each call of this function, after it."""
    function = getattr(owner, name)

    def then_signal(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        finally:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(owner, name, then_signal)


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_in_the_middle_of_a_run_is_refused_and_the_run_goes_on(name, handler, monkeypatch, tmp_path):
    made, plain = Trained(tmp_path / "made"), Trained(tmp_path / "plain")
    call, found = made.calls()[name], []
    signalled(monkeypatch, Scope, "separate")

    def refused() -> None:
        with pytest.raises(ProgramError, match=REFUSED) as caught:
            call()
        found.append(caught.value.code)

    handler.append(refused)
    assert made.run() == plain.run()
    assert found == ["MG-PROGRAM-013"]
    assert made.run() == plain.run()
    call()  # between two runs


def test_a_handler_in_the_middle_of_a_run_on_a_gpu(handler, monkeypatch, tmp_path):
    if gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    gpu_stub.installed(monkeypatch)
    made = Trained(tmp_path, mg.CUDAPlace(0))
    signalled(monkeypatch, Scope, "separate")
    handler.append(made.save)
    with pytest.raises(ProgramError, match=REFUSED):
        made.run()
    made.save()


@pytest.mark.parametrize("name", ["run", "set_state_dict"])
@pytest.mark.parametrize("reader", ["state_dict", "save", "save_vars", "averages"])
def test_values_that_are_read_together_are_those_of_one_step(reader, name, handler, monkeypatch, tmp_path):
    made = Trained(tmp_path)
    made.run()
    calls = made.calls()
    signalled(monkeypatch, Scope, "read")
    handler.append(calls[name])
    with pytest.raises(ProgramError, match=REFUSED):
        calls[reader]()
    calls[name]()  # what was refused has left nothing behind


def test_another_executor_and_scope_run_inside_of_a_run(handler, monkeypatch, tmp_path):
    made, plain, other = (Trained(tmp_path / name) for name in ("made", "plain", "other"))
    signalled(monkeypatch, Scope, "separate")
    found: list[float] = []
    handler.append(lambda: found.append(other.run()))
    assert made.run() == plain.run() == found[0]


def test_a_handler_that_saves_in_the_middle_of_a_save_does_not_wait_for_itself(handler, monkeypatch, tmp_path):
    made = Trained(tmp_path)
    signalled(monkeypatch, storage, "write_new")
    handler.append(made.save)
    with pytest.raises(ProgramError, match=REFUSED):
        made.save()
    made.save()
    made.inside(lambda: static.load(made.main, str(made.path)))


def test_a_handler_saves_to_another_path_in_the_middle_of_a_save(handler, monkeypatch, tmp_path):
    made, other = Trained(tmp_path / "made"), Trained(tmp_path / "other")
    signalled(monkeypatch, storage, "write_new")
    handler.append(other.save)
    made.save()
    for each in (made, other):
        each.inside(lambda each=each: static.load(each.main, str(each.path)))


def test_an_interrupt_leaves_the_turn(handler, monkeypatch, tmp_path):
    made, plain = Trained(tmp_path / "made"), Trained(tmp_path / "plain")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        signalled(patched, Scope, "separate")
        handler.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.run()
    assert made.run() == plain.run()
    made.save()
