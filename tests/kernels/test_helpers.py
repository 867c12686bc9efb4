"""Threads that do calls for others: each call once, in order, and Ctrl-C at any instant stops none of them for ever."""

from __future__ import annotations

import gc
import sys
import time

import pytest

from minigraph.kernels import helpers, parallel
from minigraph.kernels.helpers import Call, Helpers
from tests.support.interrupts import interrupts


def test_calls_give_values_and_errors_in_the_order_in_which_they_come() -> None:
    done, threads = [], Helpers()
    threads.at_least(1)
    calls = [Call(lambda n=n: done.append(n) or 6 // n) for n in (3, 0, 2)]
    for call in calls:
        threads.take(call)
    for call in calls:
        call.wait()
    assert done == [3, 0, 2]
    assert [call.value for call in calls] == [2, None, 3]
    assert [type(call.problem) for call in calls] == [type(None), ZeroDivisionError, type(None)]
    assert not any(call.cancel() for call in calls)


def test_a_call_that_was_cancelled_never_begins() -> None:
    done, threads = [], Helpers()
    calls = [Call(lambda n=n: done.append(n)) for n in range(3)]
    for call in calls:
        threads.take(call)
    assert calls[1].cancel() and calls[1].cancel()
    threads.at_least(1)
    calls[2].wait()
    assert done == [0, 2]


def serving() -> int:
    """How many threads of helpers there are."""
    found = 0
    for frame in sys._current_frames().values():
        while frame is not None:
            found += frame.f_code is helpers._serve.__code__
            frame = frame.f_back
    return found


def comes_to(count: int) -> bool:
    """Whether so few of them are left in the end."""
    for _ in range(1000):
        if serving() <= count:
            return True
        time.sleep(0.01)
    return False


def test_threads_end_with_their_helpers() -> None:
    before = serving()
    threads = Helpers()
    threads.at_least(3)
    threads.at_least(2)
    call = Call(int)
    threads.take(call)
    call.wait()
    assert serving() > before
    threads.end()
    assert comes_to(before)
    threads.at_least(1)  # new ones
    del threads
    gc.collect()
    assert comes_to(before)


def test_an_interrupt_leaves_helpers_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "REST", 0)
    found = list[int]()

    def shared() -> None:
        parallel._Rest.until = 0.0
        parallel.for_blocks(640, 64, lambda start, stop: found.append(start))

    for where in interrupts(shared, ("kernels/parallel", "kernels/helpers", "concurrent/futures", "threading.py")):
        found.clear()
        shared()
        assert sorted(found) == list(range(0, 640, 64)), where
