"""Objects that live: after they were made they count as old, unless somebody keeps others from the collector."""

from __future__ import annotations

import gc

import pytest

from minigraph.program import garbage


def made() -> list[list[int]]:
    with garbage.without_collection():
        return [[i] for i in range(100)]


def is_young(one: object) -> bool:
    return any(other is one for generation in (0, 1) for other in gc.get_objects(generation))


@pytest.mark.parametrize(("frozen", "young"), [(0, False), (375, False), (50_000, True)])
def test_what_was_made_is_old_where_nobody_froze_more_than_the_interpreter(monkeypatch, frozen, young):
    """Python 3.12 freezes some hundred objects of its own before anybody can."""
    thawed, thaw = [], gc.unfreeze
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "unfreeze", lambda: thawed.append(1) or thaw())
    kept = made()
    assert is_young(kept[50]) == young and bool(thawed) != young
    assert gc.isenabled()
