"""What holds for a thread: guards, which hold for the code inside them, and settings.

    guard    `with program_guard(main):` is seen by the thread, or the asyncio task, that entered it
    setting  `mg.seed(1)` in the main thread is for the process, in another thread for that thread

A new thread starts with what holds for the process. In a forked child the one thread that it has goes on; what others
held is made anew.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

from minigraph.errors import ProgramError
from minigraph.errors.kinds import NESTED

T = TypeVar("T")
P = ParamSpec("P")


_mark: ContextVar[None] = ContextVar("minigraph mark")  # only a context that set it takes its tokens back


def _is_of_here(token: Token[None]) -> bool:
    """Whether the context that runs now is that in which `token` was given; a copy of it is another one."""
    try:
        _mark.reset(token)
    except ValueError:
        return False
    return True


class _Entry(Generic[T]):
    """A guard that was entered."""

    __slots__ = ("open", "value")

    def __init__(self, value: T) -> None:
        self.value, self.open = value, True


class Guards(Generic[T]):
    """Guards of one kind that are open around the code that runs now.

    Each exit takes its own guard away, wherever it stands among the open ones: guards in generators
    or tasks that take turns may close in any order. `entries` are those that were entered, for who
    asks often and mostly finds none.
    """

    def __init__(self, name: str) -> None:
        self.entries: ContextVar[tuple[_Entry[T], ...]] = ContextVar(f"minigraph {name}", default=())

    def values(self) -> tuple[T, ...]:
        """The values of all open guards, the innermost last."""
        entries = self.entries.get()
        return tuple(e.value for e in entries if e.open) if entries else ()

    def innermost(self, default: T) -> T:
        """The value of the innermost open guard; `default` outside of all."""
        entries = self.entries.get()
        if entries and entries[-1].open:
            return entries[-1].value
        return next((e.value for e in reversed(entries) if e.open), default) if entries else default

    def replace(self, value: T) -> None:
        """Another value for the innermost open guard."""
        next(e for e in reversed(self.entries.get()) if e.open).value = value

    @contextmanager
    def entered(self, value: T) -> Iterator[None]:
        """Open a guard for the block."""
        entry, token = _Entry(value), None
        try:
            token = _mark.set(None)
            self.entries.set((*self.entries.get(), entry))
            yield
        finally:
            try:
                entries = self.entries.get()
                if token is None or not _is_of_here(token):
                    entry.open = False  # it was entered elsewhere, where it ends for those who still see it
                self.entries.set(tuple(e for e in entries if e is not entry and e.open))
            except BaseException:  # an interrupt: it is over for all
                entry.open = False
                raise


_entered: ContextVar[tuple[object, ...]] = ContextVar("minigraph entered", default=())


class Reusable(ContextDecorator, Generic[T]):
    """A guard that may be entered again: after its end, inside itself, and in several threads at once.

    Ctrl-C before the first line of `__exit__` is one that no Python can catch: the guard then stays open until nobody
    has it any more, neither a name nor a traceback, or `guard.__exit__(None, None, None)` ends it.

    open  (mark, what was entered) of each that has not ended; a context has the marks of those entered in it
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._open = make, list[tuple[object, Any]]()

    def __enter__(self) -> T:
        own = object(), self._make()
        try:
            self._open.append(own)
            _entered.set((*_entered.get(), own[0]))
            return own[1].__enter__()
        except BaseException:  # an interrupt may come behind the last step
            self._end(own)
            raise

    def __exit__(self, *problem: Any) -> Any:
        if not self._open:
            raise ProgramError("this guard is not entered, or has ended", hint="with guard: enters and ends it")
        own = self._open[-1]
        try:
            here = _entered.get()
            own = [own, *[one for one in self._open if one[0] in here]][-1]
            return own[1].__exit__(*problem)
        finally:
            self._end(own)

    def _end(self, own: tuple[object, Any]) -> None:
        own[1].gen.close()
        if own in self._open:
            self._open.remove(own)
        _entered.set(tuple([mark for mark in _entered.get() if mark is not own[0]]))


def reusable(function: Callable[P, Iterator[T]]) -> Callable[P, Reusable[T]]:
    """As contextmanager; what `function` gives is made anew each time that the guard is entered."""

    make = contextmanager(function)

    @wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> Reusable[T]:
        return Reusable(partial(make, *args, **kwargs))

    return guard


class Turn:
    """One thing at a time with what a lock guards, for the thread that holds the lock, too.

    A signal handler, or a function of `py_func`, begins in the middle of what its own thread does, and would see or
    change it half done: it is refused. `with lock, turn.begin():` is left by an interrupt at any instant.
    """

    def __init__(self, of: str) -> None:
        self.of, self._taken = of, threading.Lock()

    def begin(self) -> AbstractContextManager[Any]:
        """What to enter; call it with the lock. Errors: ProgramError inside of another turn."""
        if self._taken.locked():
            raise NESTED(
                f"this thread is in the middle of another run, save or load with the same {self.of}",
                hint="a signal handler sets a flag, which the training looks at between two runs; a function of py_func"
                " takes an Executor and a Scope of its own",
            )  # fmt: skip
        return self._taken


class Setting(Generic[T]):
    """One value of the process, set by its main thread; other threads may set another one for themselves."""

    def __init__(self, name: str, value: T) -> None:
        self.everywhere = value
        self._own: ContextVar[T] = ContextVar(f"minigraph {name}")

    def get(self) -> T:
        """The value that holds here."""
        return self._own.get(self.everywhere)

    def own(self) -> T | None:
        """The value that this thread has set for itself, None where it has not."""
        return self._own.get(None)

    def set(self, value: T) -> None:
        """Set it for the process, or where this is not the main thread for this thread."""
        if threading.current_thread() is threading.main_thread():
            self.everywhere = value
        else:
            self._own.set(value)

    @contextmanager
    def used(self, value: T) -> Iterator[None]:
        """Another value for the block, and for the thread that enters it."""
        token = self._own.set(value)
        try:
            yield
        finally:
            self._own.reset(token)


# number -> (who, how); a WeakKeyDictionary runs Python where one of them goes, and an interrupt there would be lost
_renewed: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
_numbers, _looked_at = itertools.count(), [64]


def renewed_in_child(one: T, renew: Callable[[T], None]) -> None:
    """Call renew(one) in each child that is forked from now on, where `one` still lives."""
    _renewed[next(_numbers)] = weakref.ref(one), renew
    if len(_renewed) > _looked_at[0]:
        for number, (who, _) in list(_renewed.items()):
            if who() is None:
                _renewed.pop(number, None)
        _looked_at[0] = 64 + 2 * len(_renewed)


def held_elsewhere(lock: Any) -> bool:
    """Whether a thread of the parent that is not in this child held a lock."""
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def _in_child() -> None:
    for who, renew in list(_renewed.values()):
        if (one := who()) is not None:
            renew(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
