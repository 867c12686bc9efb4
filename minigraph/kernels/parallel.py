"""Work on an array in blocks, spread over the cores that this process may use.

NumPy releases the interpreter lock inside its loops, so threads compute at the same time while
each block is large enough. The calling thread works too; helpers take what it has not begun, on
other cores: a scheduler may leave both on one for longer than the work takes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Lock, Thread, local

import numpy as np

Body = Callable[[int, int], None]
Work = Callable[[int], bool]
Task = tuple[Work, int, Lock]

PATIENCE = 2e-4  # seconds
bell = np.zeros(1, np.int64)  # another number when there are tasks: helpers in machine code may look on for a while


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Caller(local):
    """A thread that asks for help, and the core it runs on."""

    def __init__(self) -> None:
        path = "/proc/thread-self/stat"  # stays that of the thread that opened it
        self.stat = _Readable(path) if os.path.exists(path) else None

    def other_cores(self) -> set[int]:
        """The cores of this process without the caller's; none where the system does not say."""
        if self.stat is None:
            return set()
        numbers = os.pread(self.stat.number, 1024, 0).rpartition(b")")[2].split()
        return os.sched_getaffinity(0) - {int(numbers[36])}  # field 39 of proc_pid_stat(5)


class _Readable:
    """An open file, closed with the thread that has it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.number)


def for_blocks(size: int, block: int, body: Body) -> None:
    """body(start, stop) for consecutive blocks of at most `block` elements that cover range(size).

    Blocks are of one size, a multiple of 64, and as many for each core, so that all end together.
    Blocks run in any order on any thread, so `body` writes only between start and stop. After an
    exception no new block begins; it is raised here when all threads have stopped.
    """
    count = -(-size // block)
    threads = min(cores(), count)
    if threads > 1:
        count = -(-count // threads) * threads
        block = min(block, -(-size // (64 * count)) * 64)
    starts = range(0, size, block)
    left, done, failures = iter(starts), itertools.count(1), []

    def work(_: int) -> bool:
        last = False
        for start in left:  # an iterator hands out each block once, whichever thread asks
            try:
                if not failures:
                    body(start, min(start + block, size))
            except BaseException as problem:
                failures.append(problem)
            last = next(done) == len(starts)
        return last

    if threads > 1:
        # a copy of the context for each: np.errstate of the caller holds in helpers too
        contexts = [copy_context() for _ in range(threads)]
        bell[0] += 1
        together(threads, lambda k: contexts[k].run(work, k))
    else:
        work(0)
    if failures:
        raise failures.pop(0)


def together(threads: int, work: Work) -> None:
    """work(0) here and work(1), work(2), ... on helpers; where none is free or one comes late, the others do its part.

    work(k)  takes what is left to do until nothing is, raises nothing, and returns whether all is known to be done.
             Of the helpers' calls one returns True, unless the caller's does.
    """
    ended = Lock()
    ended.acquire()
    helpers = _hired(threads - 1)
    for k, helper in enumerate(helpers, 1):
        helper.begin((work, k, ended))
    try:
        if not work(0):
            end = time.perf_counter() + PATIENCE  # not asleep at first: to wake up takes longer than what is left
            while not ended.acquire(blocking=time.perf_counter() > end):
                time.sleep(0)  # lets go of the interpreter lock, which helpers need to finish
    finally:
        for helper in helpers:
            if helper.tasks:  # not even begun: it may wait for the core that the caller has
                helper.move(_caller.other_cores())
        _idle.extend(reversed(helpers))  # each does the same part next time: its core's cache may hold it


class _Helper(Thread):
    """A thread that sleeps until there is a task. One lock wakes it, which takes less time than a pool's queue."""

    def __init__(self) -> None:
        super().__init__(name="minigraph", daemon=True)
        self.tasks: deque[Task] = deque()
        self.wake = Lock()
        self.wake.acquire()
        self.start()
        self.move(_caller.other_cores())

    def begin(self, task: Task) -> None:
        """Run a task, after what it has not begun yet."""
        self.tasks.append(task)
        with suppress(RuntimeError):  # it is awake, and looks for more before it sleeps
            self.wake.release()

    def move(self, cores: set[int]) -> None:
        """Run on one of these cores, if there are any."""
        if cores and self.native_id is not None:
            os.sched_setaffinity(self.native_id, cores)

    def run(self) -> None:
        while True:
            self.wake.acquire()
            while self.tasks:
                work, k, ended = self.tasks.popleft()
                if work(k):
                    ended.release()
                del work, ended  # nothing is kept of what it worked on


_caller = _Caller()
_idle: list[_Helper] = []
_helpers: list[_Helper] = []


def _hired(wanted: int) -> list[_Helper]:
    """So many helpers, or fewer where others have them: as many as there are cores are made in all."""
    found = []
    while len(found) < wanted:
        try:
            found.append(_idle.pop())
        except IndexError:
            if len(_helpers) >= cores():
                break
            _helpers.append(_Helper())
            found.append(_helpers[-1])
    return found


def _forget() -> None:
    global _caller
    _idle.clear()
    _helpers.clear()
    _caller = _Caller()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a forked child has its parent's lists, but not the threads
