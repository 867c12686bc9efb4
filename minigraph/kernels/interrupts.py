"""Ctrl-C that waits: for what an interrupt in the middle would leave broken for the rest of the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred() -> Iterator[None]:
    """An interrupt inside the block comes at its end; in other threads than the main one there are none."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came = list[tuple[Any, ...]]()
    try:
        signal.signal(signal.SIGINT, lambda *what: came.append(what))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])
