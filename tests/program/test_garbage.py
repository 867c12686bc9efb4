"""What is built without a collection counts as old where it is much, and stays young where it is little."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import minigraph as mg
from minigraph import static
from minigraph.program import garbage
from minigraph.program.garbage import without_collection
from tests.support.interrupts import interrupts


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """As in a process in which nobody froze anything, with Python's own threshold."""
    frozen, threshold = gc.get_freeze_count(), gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)
    if frozen:
        gc.freeze()


def generation(found: object) -> int:
    return next(n for n in range(3) if any(o is found for o in gc.get_objects(generation=n)))


@pytest.mark.parametrize(("count", "old"), [(10_000, True), (10, False)])
def test_only_many_objects_count_as_old(count: int, old: bool) -> None:
    gc.collect(0)
    with without_collection():
        assert not gc.isenabled()
        made = [[] for _ in range(count)]
    assert gc.isenabled()
    assert (generation(made[0]) == 2) == old


@pytest.mark.parametrize(("frozen", "old"), [(375, True), (50_000, False)])
def test_what_python_3_12_freezes_itself_does_not_matter(monkeypatch, frozen: int, old: bool) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    gc.collect(0)
    with without_collection():
        made = [[] for _ in range(10_000)]
    assert (generation(made[0]) == 2) == old


class Dropped:
    """Part of a cycle."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has few objects."""
    gc.collect()
    monkeypatch.setattr(gc, "get_objects", list[object])
    monkeypatch.setattr(garbage, "LEAST", 10_000)
    for name in ("calls", "made", "left"):
        monkeypatch.setattr(garbage._Old, name, 0)


@pytest.mark.usefixtures("alone")
def test_what_is_dropped_is_found_by_later_calls() -> None:
    alive: list[weakref.ref[Dropped]] = []
    for call in range(150):
        with without_collection():
            made: Any = [[] for _ in range(2000)]
            made[0] = Dropped()
            made[0].all = made  # a cycle
        alive = [ref for ref in (*alive, weakref.ref(made[0])) if ref() is not None]
        assert len(alive) < 2 * garbage.CALLS, call


@pytest.mark.usefixtures("alone")
def test_programs_that_are_dropped_go() -> None:
    alive: list[weakref.ref[static.Program]] = []
    for _ in range(100):
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup):
            hidden = static.data("x", [2, 3])
            for _ in range(6):
                hidden = mg.tanh(static.nn.fc(hidden, 3))
            mg.optimizer.AdamW(0.1).minimize(mg.mean(hidden))
        compiled = static.CompiledProgram(main, static.BuildStrategy.all()).program_for([])
        alive = [ref for ref in (*alive, weakref.ref(main), weakref.ref(compiled)) if ref() is not None]
        assert len(alive) < 4 * garbage.CALLS


@pytest.mark.usefixtures("alone")
def test_few_large_programs_wait_for_no_collection() -> None:
    full, made = gc.get_stats()[2]["collections"], []
    for _ in range(garbage.CALLS):
        with without_collection():
            made.append([[] for _ in range(20_000)])
    assert gc.get_stats()[2]["collections"] == full


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with without_collection():
        made = [[] for _ in range(10_000)]
    assert gc.get_freeze_count() >= before - 100 > 0  # some of them died
    gc.unfreeze()
    assert generation(made[0]) < 2


def test_a_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_interrupt_leaves_it_on() -> None:
    frozen = gc.get_freeze_count()

    def built() -> None:
        with without_collection():
            [[] for _ in range(2000)]

    for where in interrupts(built, ("garbage.py", "contextlib.py")):
        assert gc.isenabled(), where
        assert gc.get_freeze_count() <= frozen, where


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads and fork, from Python 3.12 on
def test_a_child_that_is_forked_while_another_thread_builds_collects() -> None:
    inside, leave = threading.Event(), threading.Event()

    def build() -> None:
        with without_collection():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=build)
    thread.start()
    inside.wait(120)
    child = os.fork()
    if not child:
        os._exit(not gc.isenabled())
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
