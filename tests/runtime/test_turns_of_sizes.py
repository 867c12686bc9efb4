"""Sizes of feeds that take turns: what a run looks at again, and what it does not."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import FeedError
from minigraph.runtime import executor
from minigraph.runtime.cuda import feed, staging
from minigraph.runtime.cuda.scope_arrays import ScopeArrays


def scaled() -> tuple[static.Program, static.Scope, object]:
    """A program that multiplies its feed by a parameter `w`, a Scope where that is 2, and what it computes."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup), mg.base.unique_name.guard():
        two = mg.nn.initializer.Constant(2.0)
        w = static.create_parameter([1, 4], "float32", name="w", default_initializer=two)
        out = static.data("x", [None, 4]) * w
    static.Executor().run(startup, scope=scope)
    return main, scope, out


def ones(rows: int) -> np.ndarray:
    return np.ones((rows, 4), np.float32)


def test_feeds_of_sizes_that_were_there_are_checked_no_more(monkeypatch):
    main, scope, out = scaled()
    exe, checked, check = static.Executor(mg.CPUPlace()), [], executor.checked_feeds
    monkeypatch.setattr(executor, "checked_feeds", lambda *given: checked.append(1) or check(*given))
    for rows in (3, 5, 3, 7, 5, 3, 7):
        (found,) = exe.run(main, {"x": ones(rows)}, [out], scope=scope)
        np.testing.assert_array_equal(found, 2 * ones(rows))
    assert len(checked) == 3
    for given in (ones(5).tolist(), np.ma.array(ones(5)).filled(1), ones(5)[::1]):  # a list is converted each time
        exe.run(main, {"x": given}, [out], scope=scope)
    assert len(checked) == 4
    with pytest.raises(FeedError, match="must be float32, is float64"):
        exe.run(main, {"x": ones(5).astype(float)}, [out], scope=scope)
    with pytest.raises(FeedError, match="masked"):
        exe.run(main, {"x": np.ma.array(ones(5))}, [out], scope=scope)
    exe.run(main, {"x": ones(5)}, [], scope=scope)  # another list of fetches
    (found,) = exe.run(main, {"x": ones(3)}, [out], scope=scope)
    assert found.shape == (3, 4)


def test_of_many_sizes_the_one_that_was_not_used_for_longest_goes(monkeypatch):
    main, scope, out = scaled()
    exe = static.Executor(mg.CPUPlace())
    monkeypatch.setattr(executor, "PLANS_KEPT", 2)

    def sizes() -> list[int]:
        return [key[-1][0][1][0] for key in exe._plans]

    for rows in (1, 2, 1):
        exe.run(main, {"x": ones(rows)}, [out], scope=scope)
    second = weakref.ref(next(plan for key, plan in exe._plans.items() if key[-1][0][1][0] == 2))
    exe.run(main, {"x": ones(3)}, [out], scope=scope)
    assert sizes() == [1, 3]
    gc.collect()
    assert second() is None, "nobody holds a plan that had to go"
    for rows in (2, 1, 3):
        (found,) = exe.run(main, {"x": ones(rows)}, [out], scope=scope)
        np.testing.assert_array_equal(found, 2 * ones(rows))


def test_plans_for_other_sizes_look_at_the_scope_once_and_again_when_it_changes(stub, monkeypatch):
    main, scope, out = scaled()
    other = scaled()[1]
    other.write("w", np.full((1, 4), 7, np.float32))
    exe, looked, look = static.Executor(mg.CUDAPlace(0)), [], ScopeArrays._from_scope
    monkeypatch.setattr(ScopeArrays, "_from_scope", lambda *given: looked.append(1) or look(*given))

    def run(rows: int, scope: static.Scope, factor: float) -> None:
        (found,) = exe.run(main, {"x": ones(rows)}, [out], scope=scope)
        np.testing.assert_array_equal(found, factor * ones(rows))

    for rows in (3, 5, 7, 3, 5):
        run(rows, scope, 2)
    assert len(looked) == 1
    scope.write("w", np.full((1, 4), 3, np.float32))
    for rows in (5, 3, 9):
        run(rows, scope, 3)
    assert len(looked) == 2
    for rows, where, factor in ((3, other, 7), (5, scope, 3), (7, other, 7), (3, scope, 3), (11, other, 7)):
        run(rows, where, factor)


@pytest.mark.parametrize("idle", [False, True])
def test_the_driver_brings_large_feeds_to_a_gpu_that_has_nothing_to_do(stub, monkeypatch, idle):
    monkeypatch.setattr(feed, "DIRECT", 64)
    monkeypatch.setattr(feed, "SHARED", 4096)
    monkeypatch.setattr(staging, "SMALL", 0)  # nothing travels with others
    monkeypatch.setattr(stub, "is_idle", idle)
    brought, upload = [], stub.upload
    monkeypatch.setattr(stub, "upload", lambda array, b: brought.append(array.shape[0]) or upload(array, b))
    main, scope, out = scaled()
    exe = static.Executor(mg.CUDAPlace(0))
    for rows in (2, 8, 400, 8):
        given = ones(rows) * rows
        (found,) = exe.run(main, {"x": given}, [out], scope=scope)
        np.testing.assert_array_equal(found, 2 * given)
        strided = np.asfortranarray(given)
        (found,) = exe.run(main, {"x": strided}, [out], scope=scope)
        np.testing.assert_array_equal(found, 2 * given)
    assert [n for n in brought if n > 1] == ([8, 8] if idle else []), "no small ones, nor what threads or NumPy copy"


def test_a_program_that_comes_again_when_no_other_plan_is_left_warns_of_no_turns(monkeypatch, recwarn):
    """Plans go all at once where memory is short; what the others have cost is then not known."""
    monkeypatch.setattr(executor, "PROGRAMS_KEPT", 1)
    monkeypatch.setattr(executor, "WARNED_AFTER", 1)
    (main, scope, out), exe = scaled(), static.Executor(mg.CPUPlace())
    for fetches in ([out], []):  # the second takes the room of the first
        exe.run(main, {"x": ones(2)}, fetches, scope=scope)
    exe._plans.clear()
    exe._latest = None
    exe.run(main, {"x": ones(2)}, [out], scope=scope)
    assert not recwarn.list
