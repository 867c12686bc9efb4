"""Work of threads ahead of who asks for it: samples that are read, batches that are put together.

NumPy and files release Python's lock, so that threads are of use; an error in one is raised where its result is asked
for. A generator that is left before its end stops its threads. What they call sees the guards and settings of who
iterates. A thread that waits holds none of that: a guard holds a program, which may hold the loader.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.kernels.workers import Task, Workers

END = object()


def check_process(own: int) -> None:
    """Refuse to wait in a forked child for the threads of its parent, the process `own`."""
    if os.getpid() != own:
        raise ProgramError(f"the threads of this iterator are in process {own}, from which this one was forked",
                           hint="begin another one here: iter(loader)")  # fmt: skip


def copied(batch: Any) -> Any:
    """A batch with arrays of its own: who made it may fill the same ones anew while it waits."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if type(batch) is dict:
        return {key: copied(part) for key, part in batch.items()}
    return type(batch)(map(copied, batch)) if type(batch) in (list, tuple) else batch


def mapped(
    function: Callable[[Any], Any], values: Iterable[Any], threads: int, ahead: int,
    begin: Callable[[], None] | None = None, timeout: float | None = None,
) -> Iterator[Any]:  # fmt: skip
    """function(value) of each, in order, computed by `threads` threads up to `ahead` values ahead.

    begin    called once in each thread before its first value
    timeout  seconds after which a result that is not there is a TimeoutError; None waits
    """
    workers, waiting, here, own = Workers(), deque[Task](), threading.local(), os.getpid()
    around = copy_context()

    def one(value: Any) -> Any:
        if not hasattr(here, "context"):
            context = around.copy()
            if begin is not None:
                context.run(begin)
            here.context = context
        return here.context.run(function, value)

    def first() -> Any:
        check_process(own)
        if not waiting[0].wait(timeout):
            raise TimeoutError
        task = waiting.popleft()
        if task.problem is not None:
            raise task.problem
        return task.value

    try:
        workers.at_least(threads)
        for value in values:
            waiting.append(Task(partial(one, value)))
            workers.take(waiting[-1])
            if len(waiting) >= max(ahead, 1):
                yield first()
        while waiting:
            yield first()
    finally:
        for task in waiting:
            task.cancel()
        workers.end()  # a thread that hangs does not hold up who leaves


class _Ahead:
    """Values that are read one by one, inside the guards of who made this."""

    def __init__(self, source: Callable[[], Iterable[Any]]) -> None:
        self._source, self._context = source, copy_context()
        self._values: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next value, END behind the last one."""
        return self._context.run(self._next)

    def _next(self) -> Any:
        if self._values is None:
            self._values = iter(self._source())
        return next(self._values, END)


def prefetched(source: Callable[[], Iterable[Any]], ahead: int) -> Iterator[Any]:
    """The values of source(), which a thread reads up to `ahead` of them before they are asked for."""
    ready, room, left = queue.SimpleQueue[Any](), queue.SimpleQueue[None](), list[bool]()
    workers, own, reading = Workers(), os.getpid(), _Ahead(source)
    wanted = weakref.ref(reading)  # it goes with this generator

    def put(item: Any) -> bool:
        """Whether anybody still wants it, once there is room."""
        room.get()
        if not left:
            ready.put(item)
        return not left

    def read() -> None:
        value = None
        try:
            while value is not END and (now := wanted()) is not None:
                value = now.next()
                del now
                if not put((value, None)):
                    return
        except BaseException as problem:
            now = None
            put((END, problem))

    try:
        for _ in range(ahead):
            room.put(None)
        workers.at_least(1)
        workers.take(Task(read))
        while True:
            check_process(own)
            value, problem = ready.get()
            room.put(None)
            if problem is not None:
                raise problem
            if value is END:
                return
            yield value
    finally:
        try:
            left.append(True)
        finally:
            room.put(None)
            workers.end()
