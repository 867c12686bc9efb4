"""A program that another thread is building: no part of what belongs together is cloned, compiled, run or saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.base import unique_name
from minigraph.errors import ProgramError
from minigraph.program import Program
from minigraph.program.builder import Builder, whole

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
        loss.name = "loss"
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


CHANGES: dict[str, Callable[[Program], Any]] = {
    "an operator": lambda main: mg.tanh(main.global_block().var("x")),
    "several": lambda main: nn.functional.gelu(main.global_block().var("x")) * 2.0,
    "a layer": lambda main: nn.Linear(4, 1)(main.global_block().var("x")),
    "by hand": lambda main: main.global_block().append_op("tanh", {"X": "x"}, {"Out": "x"}),
    "a variable": lambda main: main.global_block().create_var("y", [2]),
    "a parameter": lambda main: static.create_parameter([2], "float32", name="p"),
    "one that goes": lambda main: main.ops.pop(),
    "an attribute": lambda main: main.ops[0].attrs.update(trans_y=True),
    "a name": lambda main: main.global_block().rename_var("x", "z"),
    "gradients": lambda main: static.gradients(main.global_block().var("x"), main.global_block().var("x")),
    "updates": lambda main: mg.optimizer.SGD(0.1).minimize(main.global_block().var("loss")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_who_changes_a_program_beside_a_minimize_is_refused(change: str):
    """An operator got the role of the updates, so that a test program left it out."""
    main, startup = Program("main"), Program("startup")
    with half_minimized(main, startup), static.program_guard(main, Program("own")):
        before = str(main), list(main.vars), main.numbered
        with pytest.raises(ProgramError, match=IN_THE_MIDDLE):
            CHANGES[change](main)
        assert (str(main), list(main.vars), main.numbered) == before
    assert sum(op.type == "sgd" for op in main.ops) == 2
    assert [op.role for op in main.clone(for_test=True).ops] == ["forward"] * 3


def test_two_threads_with_one_startup_program_take_back_their_own_parts_only():
    startup, reached, may_go_on = Program("startup"), threading.Event(), threading.Event()

    @whole
    def refused(x: Any) -> None:
        nn.Linear(4, 3)
        reached.set()
        assert may_go_on.wait(60)
        raise ProgramError("refused")

    def build() -> None:
        with (
            static.program_guard(Program("other"), startup), unique_name.guard("other_"),
            pytest.raises(ProgramError, match="refused"),
        ):  # fmt: skip
            refused(static.data("x", [2, 4]))

    thread = threading.Thread(target=build)
    thread.start()
    assert reached.wait(60)
    with static.program_guard(Program("main"), startup):
        layer = nn.Linear(4, 5)
    with pytest.raises(ProgramError, match="in the middle of a change of program startup"):
        static.Executor().run(startup)
    may_go_on.set()
    thread.join()
    written = [name for op in startup.ops for name in op.output_arg_names]
    assert written == list(startup.vars) == [layer.weight.name, layer.bias.name]
    assert len({op.number for op in startup.ops}) == 2


class Slow(Program):
    """A program that lets other threads run while it is asked for its next number."""

    _count = 0

    @property
    def numbered(self) -> int:
        now = self._count
        time.sleep(0)
        return now

    @numbered.setter
    def numbered(self, number: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._count = number


def test_lines_in_a_shared_startup_program_are_those_of_their_thread():
    startup = Program("startup")
    with half_minimized(Program("main"), startup):  # its states are of the line of `minimize`
        first = len(startup.ops)
        with static.program_guard(Program(), startup):
            layer = nn.Linear(2, 2)
            own = startup.global_block().create_var("own", [2], "float32", persistable=True)
        parts = [*startup.ops[first:], layer.weight, own]
    lines = [part.site.text().partition(": ")[2] for part in parts]
    assert [line[:6] for line in lines] == ["layer "] * 3 + ["own = "]


def test_operators_of_several_threads_have_numbers_of_their_own():
    """The number keys the random numbers of an operator."""
    main = Slow("main")
    x = main.global_block().create_var("x", [2])

    def build() -> None:
        with static.program_guard(main):
            for _ in range(100):
                mg.tanh(x)

    threads = [threading.Thread(target=build) for _ in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(op.number for op in main.ops) == list(range(300))


def test_an_operator_whose_second_output_is_refused_leaves_no_first_one():
    block = Program("main").global_block()
    x, taken = block.create_var("x", [4]), block.create_var("k_1", [4])
    with unique_name.guard(), pytest.raises(ProgramError, match="exists already"):
        Builder(block).argsort(x, name="k")
    assert list(block.vars.values()) == [x, taken] and not block.ops


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
