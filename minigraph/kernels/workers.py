"""Workers: threads that do tasks for another one, and are of use after Ctrl-C at any instant.

The executor and the conditions of the standard library take locks inside functions of Python. An interrupt between
such a lock and the block that would free it leaves it taken, and who comes next waits for ever. Here a lock is taken by
`with` alone, and who decides something does it by one call of C.
"""

from __future__ import annotations

import _thread
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Task:
    """One call, which a worker does unless it is cancelled before.

    value, problem   what it has returned, what it has raised
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.value: Any = None
        self.problem: BaseException | None = None
        self._function: Callable[[], Any] = function
        self._fate, self._running = dict[str, str](), threading.Lock()
        self._running.acquire()

    def cancel(self) -> bool:
        """Whether it has not begun, and now never will; it may be asked again."""
        if self._fate.setdefault("is", "cancelled") != "cancelled":
            return False
        self._function = bool  # what it holds may go, though a queue has this task
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it has ended, or after so many seconds: whether it has. One that is cancelled never ends."""
        if timeout is None:
            with self._running:
                return True
        ended = self._running.acquire(timeout=timeout)  # who is interrupted here does not ask again
        if ended:
            self._running.release()
        return ended

    def do(self) -> None:
        """Do it here and now."""
        if self._fate.setdefault("is", "begun") != "begun":
            return
        try:
            self.value = self._function()
        except BaseException as problem:
            self.problem = problem
        finally:
            self._function = bool  # what it held may go
            self._running.release()


class Workers:
    """Threads that do tasks in the order in which they come; they end with this object, or with the process.

    begin   called once in each thread before its first task
    """

    def __init__(self, begin: Callable[[], object] = bool) -> None:
        self._begin, self._tasks = begin, queue.SimpleQueue[Task | None]()
        self._there: list[int] = []
        self._last: weakref.finalize[Any, Any] | None = None

    def at_least(self, count: int) -> None:
        """There are so many threads now. Errors: RuntimeError where the system gives none."""
        if self._last is None:
            self._last = weakref.finalize(self, _end, self._tasks, self._there)
            self._last.atexit = False
        while len(self._there) < count:
            self._there.append(_thread.start_new_thread(_serve, (self._tasks, self._begin)))

    def take(self, task: Task) -> None:
        """Do it when a thread is free."""
        self._tasks.put(task)

    def end(self) -> None:
        """The threads end when all tasks are done; `at_least` begins new ones."""
        last, self._last = self._last, None
        if last is not None:
            last()


def _end(tasks: queue.SimpleQueue[Task | None], there: list[int]) -> None:
    with suppress(IndexError):
        while True:
            there.pop()
            tasks.put(None)


def _serve(tasks: queue.SimpleQueue[Task | None], begin: Callable[[], object]) -> None:
    begin()
    while (task := tasks.get()) is not None:
        task.do()
        del task  # with what it has returned
