"""Ctrl-C at each instant at which Python looks for signals, one after the other.

The interpreter looks where a function of Python begins, and where one of C has returned: `sys.setprofile` is told of
both, and what it raises there is what a signal handler would raise.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

EVENTS = ("call", "c_return")
EVERYWHERE = ("/minigraph/", "weakref.py", "contextlib.py")


class _Interrupt:
    """Raises KeyboardInterrupt at one instant, counted in code whose file has a name with one of `inside`."""

    def __init__(self, number: int, inside: tuple[str, ...]) -> None:
        self.left, self.inside, self.at = number, inside, ""

    def __call__(self, frame: Any, event: str, what: Any) -> None:
        code = frame.f_code
        if self.at or event not in EVENTS or not any(part in code.co_filename for part in self.inside):
            return
        self.left -= 1
        if self.left < 0:
            self.at = f"{code.co_filename}:{frame.f_lineno} {code.co_name}, {event} {getattr(what, '__name__', '')}"
            raise KeyboardInterrupt(self.at)


def interrupts(call: Callable[[], object], inside: tuple[str, ...] = EVERYWHERE) -> Iterator[str]:
    """call() again and again, interrupted at one instant later each time; gives where, until it comes to its end."""
    for number in itertools.count():
        interrupt = _Interrupt(number, inside)
        sys.setprofile(interrupt)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        if not interrupt.at:
            return
        yield interrupt.at
