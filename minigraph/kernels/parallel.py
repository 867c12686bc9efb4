"""Work on an array in blocks, by the calling thread and by helpers where these pay.

NumPy and machine code release the interpreter lock inside their loops. Helpers take blocks that nobody has begun, and
the caller waits for none that has not started. On a busy machine a helper may lose its core in the middle of a block,
and the caller waits for it: so each call compares the time that passed with what this thread alone would have
computed, and after a loss helpers rest for REST times as long.

Linux may wake a helper on the caller's core again and again while another one is idle: then both take turns there. A
virtual machine does, to which an idle core looks like one that its host took away. Where that shows, helpers are woken
on other cores. Helpers may run where the thread that asks them may, and no thread stays bound to a core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import numpy as np

from .cores import allowed, core_of_this_thread, cores
from .workers import Task, Workers

T = TypeVar("T")
Body = Callable[[int, int], None]
Work = Callable[[int], int]

PATIENCE = 1e-4  # seconds before the caller sleeps: a helper that runs ends its block within them, mostly
ANGLES = np.zeros(1024)  # their sines take some microseconds; the shortest sleep takes 50 on Linux
MOST = max(1, (os.cpu_count() or 1) - 1)  # helpers
REST, LONGEST_REST = 20, 10.0  # a rest, in lengths of the loss before it, so that losses are 5 % at the most; seconds


def for_blocks(size: int, block: int, body: Body) -> None:
    """body(start, stop) for consecutive blocks of at most `block` elements that cover range(size).

    Where blocks end depends on size and block only, so results have the same bits for any number of threads. Blocks
    run in any order on any thread, so `body` writes only between start and stop. After an exception no new block
    begins; it is raised here when all threads have stopped.
    """
    for_each(range(0, size, block), lambda start: body(start, min(start + block, size)))


def for_each(items: Sequence[T], body: Callable[[T], object], cost: Callable[[T], int] = lambda _: 1) -> None:
    """body(item) for all items, in any order on any thread, as `for_blocks` does it.

    cost  how much work an item is beside others, at least 1
    """
    ended, failures = [], []
    left = iter(items)

    def work(_: int) -> int:
        own = 0
        for item in left:  # an iterator hands out each item once, whichever thread asks
            try:
                if not failures:
                    body(item)
            except BaseException as problem:
                failures.append(problem)
            own += cost(item)
            ended.append(item)
        return own

    total = sum(map(cost, items))
    together(min(cores(), len(items)), work, total, lambda: total if len(ended) == len(items) else 0)
    if failures:
        raise failures.pop(0)


class _Rest:
    """Until when helpers are not asked, and whether they are woken on other cores than the caller's then."""

    until = 0.0
    aside = False


def together(threads: int, work: Work, total: int, done: Callable[[], int]) -> None:
    """work(0) here and work(1), ... on up to threads - 1 helpers at the same time, until all is done.

    work   does what nobody has begun until nothing is left, raises nothing, returns how much it did
    total  how much there is to do
    done   how much of it is done
    """
    if threads < 2 or (begin := time.perf_counter()) < _Rest.until:
        work(0)
        return
    aside, helpers, own = _Rest.aside, list[Task](), 0
    with _elsewhere() if aside else _here():
        try:
            _begin(helpers, threads - 1, work)
            start = time.thread_time()
            own = work(0)
            busy = time.thread_time() - start
        finally:
            _wait(helpers, lambda: done() == total)
    end = time.perf_counter()
    lost = end - begin - busy * total / own if own else (end - begin) * aside  # a helper had the caller's core
    if lost > 0 or not own:
        _Rest.aside = not aside  # the other way next time
    if lost > 0:
        _Rest.until = end + min(REST * lost, LONGEST_REST)


def _here() -> AbstractContextManager[None]:
    """Helpers run where this thread may, which another one's affinity may not be."""
    if (mine := allowed()) != _Where.helpers:
        _allow(mine)
    return nullcontext()


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Helpers that sleep now wake on other cores than this thread's; behind it they may be where this thread may."""
    mine, here = allowed(), core_of_this_thread()
    others = mine - {here}
    if here is None or not others:
        with _here():
            yield
        return
    try:
        _allow(others)
        yield
    finally:
        _allow(mine)


class _Where:
    """The cores on which the helpers may run that there are; a new one begins where its caller may."""

    helpers = frozenset[int]()


def _allow(cores: set[int]) -> None:
    for helper in tuple(_threads) if cores else ():
        with suppress(OSError):  # it ended, or these cores were taken from this process meanwhile
            os.sched_setaffinity(helper, cores)
    _Where.helpers = frozenset(cores)


def _begin(helpers: list[Task], count: int, work: Work) -> None:
    """Add calls of `work` by helpers, each in a copy of this context: np.errstate of the caller holds there, too."""
    threads = _helpers()
    try:
        threads.at_least(min(count, MOST))
    except RuntimeError:  # no thread can be had, or the interpreter ends: the caller does all
        return
    for k in range(1, count + 1):
        helpers.append(Task(partial(copy_context().run, partial(work, k))))
        threads.take(helpers[-1])


def _wait(helpers: list[Task], finished: Callable[[], bool]) -> None:
    """Return when all is done; a helper may then still be on its way out. Those that have not begun never will."""
    try:
        running = [helper for helper in helpers if not helper.cancel()]
        end = time.perf_counter() + PATIENCE
        while not finished() and time.perf_counter() < end:
            np.sin(ANGLES)  # without the interpreter lock, which helpers may need
        for helper in () if finished() else running:
            helper.wait()
    except BaseException:  # the user's interrupt: helpers write into arrays that the caller may use next
        for helper in helpers:
            if not helper.cancel():
                helper.wait()
        raise


_made: list[Workers] = []
_threads: list[int] = []  # the system's numbers of the helpers that have begun


def _helpers() -> Workers:
    """The helpers of this process; threads start when they are first needed."""
    if not _made:
        _made.append(Workers(lambda: _threads.append(threading.get_native_id())))
    return _made[0]


if hasattr(os, "register_at_fork"):
    # a forked child has no threads but the one that forked
    os.register_at_fork(after_in_child=lambda: (_made.clear(), _threads.clear()))
