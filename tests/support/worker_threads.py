"""The threads of kernels/workers.py, which no list of Python's knows, but for helpers of kernels: they stay."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType

from minigraph.kernels import parallel, workers


def serving() -> set[int]:
    """The threads that do tasks, or wait for one, but for helpers of kernels."""
    found, helpers = set[int](), [made._tasks for made in parallel._made]
    for thread, frame in sys._current_frames().items():
        outer: FrameType | None = frame
        while outer is not None:
            serves = outer.f_code is workers._serve.__code__
            if serves and not any(outer.f_locals["tasks"] is own for own in helpers):
                found.add(thread)
            outer = outer.f_back
    return found


def are_gone(threads: set[int], first: Callable[[], object] = bool) -> bool:
    """Whether none of these is left in the end.

    first   is done before each look: gc.collect where cycles hold them, in which a thread may still be busy
    """
    for _ in range(3000):
        first()
        if not threads & serving():
            return True
        time.sleep(0.01)
    return False
