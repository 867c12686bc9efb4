"""Threads that do calls for others: each call once, in order, and Ctrl-C at any instant stops none of them for ever."""

from __future__ import annotations

import gc

import pytest

from minigraph.kernels import parallel
from minigraph.kernels.workers import Task, Workers
from tests.support.interrupts import interrupts
from tests.support.worker_threads import are_gone, serving


def test_calls_give_values_and_errors_in_the_order_in_which_they_come() -> None:
    done, threads = [], Workers()
    threads.at_least(1)
    calls = [Task(lambda n=n: done.append(n) or 6 // n) for n in (3, 0, 2)]
    for call in calls:
        threads.take(call)
    for call in calls:
        call.wait()
    assert done == [3, 0, 2]
    assert [call.value for call in calls] == [2, None, 3]
    assert [type(call.problem) for call in calls] == [type(None), ZeroDivisionError, type(None)]
    assert not any(call.cancel() for call in calls)


def test_a_call_that_was_cancelled_never_begins() -> None:
    done, threads = [], Workers()
    calls = [Task(lambda n=n: done.append(n)) for n in range(3)]
    for call in calls:
        threads.take(call)
    assert calls[1].cancel() and calls[1].cancel()
    threads.at_least(1)
    calls[2].wait()
    assert done == [0, 2]


@pytest.mark.usefixtures("frozen")
def test_threads_end_with_their_helpers() -> None:
    before = serving()
    threads = Workers()
    threads.at_least(3)
    threads.at_least(2)
    call = Task(int)
    threads.take(call)
    call.wait()
    first = serving() - before
    assert first
    threads.end()
    assert are_gone(first)
    threads.at_least(1)  # a new one
    second = serving() - before
    del threads
    gc.collect()
    assert are_gone(second)


def test_an_interrupt_leaves_helpers_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "REST", 0)
    found = list[int]()

    def shared() -> None:
        parallel._Rest.until = 0.0
        parallel.for_blocks(640, 64, lambda start, stop: found.append(start))

    for where in interrupts(shared, ("kernels/parallel", "kernels/workers", "concurrent/futures", "threading.py")):
        found.clear()
        shared()
        assert sorted(found) == list(range(0, 640, 64)), where
