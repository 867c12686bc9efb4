"""A program that another thread is building: no part of what belongs together is cloned, compiled, run or saved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import ProgramError
from minigraph.program import Program

IN_THE_MIDDLE = "another thread is in the middle of a change of program main"


class Waits(mg.optimizer.SGD):
    """An optimizer that stops after its first update until it may go on."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def append_update(self, *args: Any) -> None:
        super().append_update(*args)
        self.reached.set()
        assert self.may_go_on.wait(60)


@contextmanager
def half_minimized(main: Program, startup: Program) -> Iterator[None]:
    with static.program_guard(main, startup):
        loss = mg.mean(nn.Linear(4, 3)(static.data("x", [2, 4])))
    optimizer = Waits()

    def build() -> None:
        with static.program_guard(main, startup):
            optimizer.minimize(loss)

    thread = threading.Thread(target=build)
    thread.start()
    assert optimizer.reached.wait(60)
    try:
        yield
    finally:
        optimizer.may_go_on.set()
        thread.join()


READERS: dict[str, Callable[[Program, Path], Any]] = {
    "clone": lambda main, _: main.clone(),
    "clone for a test": lambda main, _: main.clone(for_test=True),
    "compiled": lambda main, _: static.CompiledProgram(main).explain(),
    "run": lambda main, _: static.Executor().run(main, {"x": [[0.0] * 4] * 2}),
    "save": lambda main, folder: static.save(main, str(folder / "net")),
    "load": lambda main, folder: static.load(main, str(folder / "net")),
}


@pytest.mark.parametrize("reader", READERS)
def test_half_of_a_minimize_is_seen_by_nobody(reader: str, tmp_path: Path):
    main, startup = Program("main"), Program("startup")
    with half_minimized(main, startup):
        assert sum(op.type == "sgd" for op in main.ops) == 1
        with pytest.raises(ProgramError, match=IN_THE_MIDDLE):
            READERS[reader](main, tmp_path)
    static.Executor().run(startup)
    READERS["save"](main, tmp_path)
    READERS[reader](main, tmp_path)
    assert sum(op.type == "sgd" for op in main.clone().ops) == 2


def test_a_variable_that_goes_while_a_clone_is_made(monkeypatch: pytest.MonkeyPatch):
    main = static.default_main_program()
    kept = mg.tanh(static.data("x", [2]))
    gone = mg.tanh(kept)
    ops, del_op = main.whole_ops, main.ops[-1]

    def then_another_thread_removes() -> Any:
        found = ops()
        del main.ops[-1]
        del main.global_block().vars[gone.name]
        return found

    assert del_op.output_arg_names == [gone.name]
    monkeypatch.setattr(main, "whole_ops", then_another_thread_removes)
    with pytest.raises(ProgramError, match="was changed by another thread while it was copied"):
        main.clone()
    monkeypatch.undo()
    assert [op.type for op in main.clone().ops] == ["tanh"]
