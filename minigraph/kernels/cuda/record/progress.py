"""One line on stderr about work that keeps somebody waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds


@contextmanager
def told(what: Callable[[], str]) -> Iterator[None]:
    """Say what is being done where it takes longer than PATIENCE; nothing where it does not."""
    timer = threading.Timer(PATIENCE, lambda: _say(what()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    if sys.stderr is not None:  # as in a program without a console
        sys.stderr.write(f"minigraph: {text}\n")
        sys.stderr.flush()
