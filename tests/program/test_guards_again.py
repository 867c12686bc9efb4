"""A guard that is kept is entered again: after its end, inside itself, in threads and tasks that take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import ProgramError
from minigraph.program.context import _entered
from tests.program.test_threads import GUARDS, in_thread
from tests.support.interrupts import interrupts

KINDS = [kind for kind in GUARDS if kind != "unique_name"]


def guard_of(kind: str) -> tuple[Any, Callable[[], Any]]:
    make, seen = GUARDS[kind]
    return make(), seen


@pytest.mark.parametrize("kind", GUARDS)
def test_again_and_inside_itself(kind: str):
    guard, seen = guard_of(kind)
    outside, marks = seen(), _entered.get()
    for _ in range(2):
        with guard:
            within = seen()
            assert within != outside
            with guard:
                assert seen() != outside
            assert seen() == within
        assert seen() == outside and not guard._open and _entered.get() == marks


def test_names_count_from_zero_each_time():
    guard, seen = unique_name.guard(), []
    for _ in range(2):
        with guard:
            seen += [unique_name.generate("a"), unique_name.generate("a")]
    assert seen == ["a_0", "a_1"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_as_a_decorator(kind: str):
    guard, seen = guard_of(kind)
    decorated = guard(seen)
    outside = seen()
    assert decorated() == decorated() != outside == seen()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_inside_ends_it(kind: str):
    guard, seen = guard_of(kind)
    outside = seen()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), guard:
            raise ZeroDivisionError
        assert seen() == outside
    with pytest.raises(ProgramError, match="scope_guard takes a Scope"), static.scope_guard(3):  # pyright: ignore
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_in_two_threads_that_leave_in_the_order_in_which_they_came(kind: str):
    guard, seen = guard_of(kind)
    outside = seen()
    met, left = threading.Barrier(2), threading.Event()

    def later() -> tuple[Any, Any]:
        met.wait(60)  # the other one is inside
        with guard:
            met.wait(60)
            left.wait(60)
            within = seen()
        return within, seen()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(later()))
    thread.start()
    with guard:
        met.wait(60)
        met.wait(60)
    assert seen() == outside
    left.set()
    thread.join()
    [(within, after)] = found
    assert within != after == in_thread(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_in_two_tasks_that_leave_in_the_order_in_which_they_came(kind: str):
    guard, seen = guard_of(kind)
    outside = seen()

    async def inside(turns: int) -> None:
        with guard:
            within = seen()
            for _ in range(turns):
                await asyncio.sleep(0)
                assert seen() == within != outside
        assert seen() == outside

    async def both() -> None:
        await asyncio.gather(inside(2), inside(4))

    asyncio.run(both())
    assert seen() == outside and not guard._open


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_that_another_thread_closes(kind: str):
    guard, seen = guard_of(kind)
    outside = seen()

    def held(guard: AbstractContextManager[Any]) -> Iterator[None]:
        with guard:
            yield

    first = held(guard)
    next(first)
    in_thread(first.close)
    assert seen() == outside
    with guard:
        assert seen() != outside
    assert seen() == outside


@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_leave_a_kept_guard_fit_to_be_entered(kind: str):
    guard, seen = guard_of(kind)
    outside = seen()

    def entered() -> None:
        with guard:
            pass

    for where in interrupts(entered):
        if seen() != outside:  # before the first line of `__exit__`: a name keeps it entered
            assert where.endswith("__exit__, call ")
            guard.__exit__(None, None, None)
        with guard:
            assert seen() != outside, where
        assert seen() == outside, where
