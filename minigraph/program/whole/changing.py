"""A program that one thread is building, as others see it: all that belongs together or none of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, get_ident, local
from typing import Any

from minigraph.errors import CallSite, ProgramError

ONE_CHANGE = RLock()  # held while one operator or variable comes or goes, and by who forks

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=ONE_CHANGE.acquire, after_in_parent=ONE_CHANGE.release, after_in_child=ONE_CHANGE.release
    )


class Emission(local):
    """What holds for operators that are appended now; each thread has its own, since several may fill one program.

    role, differentiated   their role and forward link
    site                   where they come from, if not from the user's current line
    """

    role = "forward"
    differentiated: Any = None
    site: CallSite | None = None


class Changing:
    """Base of a Program, of its changes that are made whole or not at all."""

    name: str
    ops: Any
    vars: Any
    numbered: Any
    lr_schedulers: list[Any]
    version = 0
    updated = False  # whether an optimizer has built updates
    _changed_by = 0  # the thread that is in the middle of one

    def __init__(self) -> None:
        self._added: dict[int, list[Any]] = {}  # by threads in the middle of `undone_on_error`
        self.emission = Emission()

    @contextmanager
    def emitting(self, role: str, *, forward: Any = None, site: CallSite | None = None) -> Iterator[None]:
        """Operators that this thread appends inside have this role, forward link and (if given) user's line."""
        now = self.emission
        saved = now.role, now.differentiated, now.site
        now.role, now.differentiated, now.site = role, forward, site or now.site
        try:
            yield
        finally:
            now.role, now.differentiated, now.site = saved

    @contextmanager
    def being_changed(self) -> Iterator[None]:
        """What changes inside belongs together: until its end other threads neither read nor change the program."""
        me = get_ident()
        outermost = self._changed_by != me
        try:
            with ONE_CHANGE:
                self.check_whole()
                self._changed_by = me
            yield
        finally:
            if outermost and self._changed_by == me:
                self._changed_by = 0

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """What this thread adds inside goes where something is refused; other threads may add to the program, too.

        It is for startup programs: several threads that build programs may have one.
        """
        me = get_ident()
        outermost = me not in self._added
        added = self._added.setdefault(me, [])
        first, numbered = len(added), self.numbered
        try:
            yield
        except BaseException:
            self._take_out(added[first:], numbered)
            del added[first:]
            raise
        finally:
            if outermost:
                self._added.pop(me, None)

    def _take_out(self, added: list[Any], numbered: int) -> None:
        """Remove operators and variables; as many as `numbered` were there before the first of them."""
        gone = {id(part) for part in added}
        with ONE_CHANGE:
            ops = [op for op in self.ops if id(op) in gone]
            list.__setitem__(self.ops, slice(None), [op for op in self.ops if id(op) not in gone])
            for name in [name for name, v in self.vars.items() if id(v) in gone]:
                dict.pop(self.vars, name)
            if self._changed_by == get_ident() or self.numbered - numbered == len(ops):  # nobody else has added some
                self.numbered = numbered
            self.lr_schedulers = [(v, s) for v, s in self.lr_schedulers if v.name in self.vars]
            self.version += 1

    def check_whole(self) -> None:
        """Refuse to read a program of which another thread has built a part, such as half of its updates."""
        self.check_free()
        if self._added and any(added and by != get_ident() for by, added in list(self._added.items())):
            self._refuse()

    def check_free(self) -> None:
        """Refuse to change a program while another thread is in the middle of a change. Ask under ONE_CHANGE."""
        if self._changed_by not in (0, get_ident()):
            self._refuse()

    def adding(self, *parts: Any) -> None:
        """Operators or variables come now, under ONE_CHANGE; as `check_free`."""
        if self._changed_by not in (0, me := get_ident()):
            self._refuse()
        self.version += 1
        self._added.get(me, []).extend(parts)

    def _refuse(self) -> None:
        raise ProgramError(f"another thread is in the middle of a change of program {self.name}",
                           hint="build in one thread, and let others have the program after that")  # fmt: skip

    def whole_ops(self) -> list[Any]:
        """The operators at one instant at which no other thread was in the middle of a change."""
        while True:
            version = self.version
            self.check_whole()
            ops = list(self.ops)
            if version == self.version:
                return ops
