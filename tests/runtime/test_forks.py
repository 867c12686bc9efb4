"""A child that is forked while other threads of its parent run: it goes on, or is told why not, and never waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import io, static
from minigraph.errors import ProgramError
from minigraph.program import context
from minigraph.program.scope import Scope
from tests.runtime.test_interrupts import Net, X

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # threads and fork, from Python 3.12 on
]


def in_child(call: Callable[[], Any]) -> str:
    """What call() gives in a forked child, or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = str(call())
        except BaseException as problem:
            said = f"{type(problem).__name__}: {problem}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


class Running:
    """Inside the block another thread is in the middle of a run of `net`."""

    def __init__(self, net: Net) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        main = static.Program()
        with static.program_guard(main):
            x = static.data("x", [2, 3])
            out = main.global_block().create_var(name="out", shape=[2, 3], dtype="float32")
            static.py_func(self.wait, x, out)
        self.thread = threading.Thread(target=lambda: net.exe.run(main, {"x": X}, scope=net.scope))

    def wait(self, x: np.ndarray) -> np.ndarray:
        self.begun.set()
        assert self.go_on.wait(120)
        return x

    def __enter__(self) -> None:
        self.thread.start()
        assert self.begun.wait(120)

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.thread.join()


def test_an_executor_that_another_thread_used_goes_on() -> None:
    net, scope = Net(), Scope()
    net.main.set_state_dict(net.main.state_dict(scope=net.scope), scope)
    want = in_child(lambda: net.exe.run(net.main, {"x": X}, [net.main.all_parameters()[0]], scope=scope))
    with Running(net):
        found = in_child(lambda: net.exe.run(net.main, {"x": X}, [net.main.all_parameters()[0]], scope=scope))
    assert found == want
    assert "array" in want


def test_a_scope_in_which_another_thread_ran_is_refused_until_it_is_set() -> None:
    net = Net()
    values = net.main.state_dict(scope=net.scope)

    def again() -> str:
        with pytest.raises(ProgramError, match="forked in the middle of what another thread of its parent did"):
            net.run()
        with pytest.raises(ProgramError, match=r"scope\.accept_torn\(\)"):
            net.main.state_dict(scope=net.scope)
        net.main.set_state_dict(values, net.scope)
        net.run()
        return "went on"

    with Running(net):
        assert in_child(again) == "went on"
    net.run()  # in the parent nothing has changed
    assert not net.scope.torn


def test_several_places_have_threads_of_their_own_in_a_child() -> None:
    net = Net()
    loss = next(v for op in net.main.ops for v in op.output_vars if op.type == "reduce_mean")
    places = static.CompiledProgram(net.main).with_data_parallel(loss.name, places=[mg.CPUPlace()] * 2)

    def run() -> str:
        return str(net.exe.run(places, [{"x": X}] * 2, [loss], scope=net.scope))

    run()
    assert in_child(run) == run()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_of_a_loader_is_refused_in_a_child(workers: int) -> None:
    loader = io.DataLoader(io.TensorDataset([np.arange(40.0)]), batch_size=4, num_workers=workers)
    batches = iter(loader)
    next(batches)
    assert "from which this one was forked" in in_child(lambda: next(batches))
    assert in_child(lambda: len(list(loader))) == "10"
    assert len(list(batches)) == 9


def test_what_is_gone_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # a table of this test's own: what other tests left alive in this process would count, too
    monkeypatch.setattr(context, "_renewed", {})
    monkeypatch.setattr(context, "_looked_at", [64])
    kept = [Scope() for _ in range(100)]
    for _ in range(2000):
        Scope()
    assert len(context._renewed) <= 64 + 2 * len(kept) + 3
    assert {id(who()) for who, _ in context._renewed.values()} >= set(map(id, kept))
