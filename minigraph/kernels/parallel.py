"""Work on an array in blocks, spread over the cores that this process may use.

NumPy releases the interpreter lock inside its loops, so threads compute at the same time while
each block is large enough. The calling thread works too; helpers take what it has not begun, on
other cores: a scheduler may leave both on one for longer than the work takes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import Lock, Thread, local

Body = Callable[[int, int], None]

SMALLEST = 32768  # elements that are worth asking for once more
PATIENCE = 2e-4  # seconds


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Caller(local):
    """A thread that asks for help, and the core it runs on."""

    def __init__(self) -> None:
        path = "/proc/thread-self/stat"  # stays that of the thread that opened it
        self.stat = open(path, "rb", buffering=0) if os.path.exists(path) else None  # noqa: SIM115

    def other_cores(self) -> set[int]:
        """The cores of this process without the caller's; none where the system does not say."""
        if self.stat is None:
            return set()
        numbers = os.pread(self.stat.fileno(), 1024, 0).rpartition(b")")[2].split()
        return os.sched_getaffinity(0) - {int(numbers[36])}  # field 39 of proc_pid_stat(5)


def for_blocks(size: int, block: int, body: Body) -> None:
    """body(start, stop) for consecutive blocks of at most `block` elements that cover range(size).

    Blocks are of one size, a multiple of 64, and as many for each core, so that all end together.
    Blocks run in any order on any thread, so `body` writes only between start and stop. After an
    exception no new block begins; it is raised here when all threads have stopped.
    """
    blocks = -(-size // block)
    threads = min(cores(), blocks)
    if threads > 1:
        blocks = -(-blocks // threads) * threads
        block = min(block, -(-size // (64 * blocks)) * 64)
    _run([(start, min(start + block, size)) for start in range(0, size, block)], threads, body)


def for_shares(size: int, body: Body) -> None:
    """Likewise for a body that is as fast on any number of elements.

    Helpers begin late and cores differ: most is dealt out first, the rest in smaller shares, so that all end together.
    More of them would cost more than they gain: each begins with some 10 us of Python.
    """
    threads = min(cores(), -(-size // SMALLEST))
    if threads <= 1:
        return body(0, size) if size else None
    large = size * 7 // (8 * threads) // 64 * 64
    small = max(SMALLEST, size // (12 * threads) // 64 * 64)
    starts = [large * i for i in range(threads)]
    starts += [*range(large * threads, size, small), size]
    _run(list(itertools.pairwise(starts)), threads, body)


def _run(blocks: Sequence[tuple[int, int]], threads: int, body: Body) -> None:
    """The blocks on so many threads, the caller's among them."""
    spans = iter(blocks)  # an iterator hands out each block once, whichever thread asks

    def work() -> None:
        try:
            for start, stop in spans:
                body(start, stop)
        except BaseException:
            for _ in spans:  # leave nothing to the other threads
                pass
            raise

    if threads <= 1:
        return work()
    # a copy of the context for each: np.errstate of the caller holds in helpers too
    tasks, others = [_Task(partial(copy_context().run, work)) for _ in range(threads - 1)], _caller.other_cores()
    for helper, task in zip(_hired(len(tasks)), tasks, strict=False):
        helper.begin(task, others)
    try:
        work()
    finally:
        failures = [task.outcome() for task in tasks]
    for failure in failures:
        if failure is not None:
            raise failure


class _Task:
    """What a helper is asked to do; nothing is left of it where the helper comes too late."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.failure = work, None
        self.taken, self.ended = Lock(), Lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as problem:
            self.failure: BaseException | None = problem

    def outcome(self) -> BaseException | None:
        """What it failed by, when it has ended; None where nobody has begun, and now nobody will."""
        if self.taken.acquire(blocking=False):
            return None
        end = time.perf_counter() + PATIENCE  # not asleep at first: to wake up takes longer than what is left, usually
        while not self.ended.acquire(blocking=time.perf_counter() > end):
            time.sleep(0)  # lets go of the interpreter lock, which helpers need to finish
        return self.failure


class _Helper(Thread):
    """A thread that sleeps until there is a task. One lock wakes it, which takes less time than a pool's queue."""

    def __init__(self) -> None:
        super().__init__(name="minigraph", daemon=True)
        self.wake, self.task, self.cores = Lock(), None, set()
        self.wake.acquire()
        self.start()

    def begin(self, task: _Task, cores: set[int]) -> None:
        """Run a task, on one of these cores if there are any."""
        self.task: _Task | None = task
        if cores and cores != self.cores and self.native_id is not None:
            os.sched_setaffinity(self.native_id, cores)
            self.cores: set[int] = cores
        self.wake.release()

    def run(self) -> None:
        while True:
            self.wake.acquire()
            self._serve()

    def _serve(self) -> None:
        task, self.task = self.task, None  # what it works on may be freed while it sleeps
        assert task is not None
        begun = task.taken.acquire(blocking=False)
        if begun:
            task.run()
        _idle.append(self)
        if begun:
            task.ended.release()


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
