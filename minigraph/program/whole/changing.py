"""A program that one thread is building, as others see it: all that belongs together or none of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from minigraph.errors import ProgramError


class Changing:
    """Base of a Program, of its changes that are made whole or not at all."""

    name: str
    ops: Any
    version = 0
    updated = False  # whether an optimizer has built updates
    _changed_by = 0  # the thread that is in the middle of one

    @contextmanager
    def being_changed(self) -> Iterator[None]:
        """What changes inside belongs together: until its end other threads are refused by `check_whole`."""
        outermost = not self._changed_by
        try:
            self._changed_by = self._changed_by or get_ident()
            yield
        finally:
            if outermost:
                self._changed_by = 0

    def check_whole(self) -> None:
        """Refuse to read a program of which another thread has built a part, such as half of its updates."""
        if self._changed_by not in (0, get_ident()):
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
