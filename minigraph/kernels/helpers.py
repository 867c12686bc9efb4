"""Helpers: threads that do calls for another one, and are of use after Ctrl-C at any instant.

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


class Call:
    """One call, which a helper does unless it is cancelled before.

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
        self._function = bool  # what it holds may go, though a queue has this call
        return True

    def wait(self) -> None:
        """Return when it has ended; for one that is cancelled or given to nobody, never."""
        with self._running:
            pass

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


class Helpers:
    """Threads that take calls in the order in which they come; they end with this object, or with the process.

    begin   called once in each thread before its first call
    """

    def __init__(self, begin: Callable[[], object] = bool) -> None:
        self._begin, self._calls = begin, queue.SimpleQueue[Call | None]()
        self._there: list[int] = []
        weakref.finalize(self, _end, self._calls, self._there).atexit = False

    def at_least(self, count: int) -> None:
        """There are so many threads now. Errors: RuntimeError where the system gives none."""
        while len(self._there) < count:
            self._there.append(_thread.start_new_thread(_serve, (self._calls, self._begin)))

    def take(self, call: Call) -> None:
        """Do this call when a thread is free."""
        self._calls.put(call)

    def end(self) -> None:
        """The threads end when all calls are done; `at_least` begins new ones."""
        _end(self._calls, self._there)


def _end(calls: queue.SimpleQueue[Call | None], there: list[int]) -> None:
    with suppress(IndexError):
        while True:
            there.pop()
            calls.put(None)


def _serve(calls: queue.SimpleQueue[Call | None], begin: Callable[[], object]) -> None:
    begin()
    while (call := calls.get()) is not None:
        call.do()
        del call  # with what it has returned
