"""What is built without a collection counts as old where it is much, and stays young where it is little."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

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


def test_no_interrupt_leaves_it_off():
    def work():
        with without_collection():
            made[:] = [[] for _ in range(1000)]

    made, instants = list[list[int]](), 0
    for where in interrupts(work, ("program/garbage.py", "contextlib.py")):
        assert gc.isenabled(), where
        instants += 1
    assert instants > 10 and gc.isenabled()
