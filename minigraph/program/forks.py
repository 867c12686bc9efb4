"""What a forked child finds: no thread of its parent but the one that forked, and so nobody who frees their locks."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Renewed(Protocol):
    """What makes itself usable again in a forked child."""

    def in_child(self) -> None:
        """Take what threads held that are not there."""


_known: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed_in_child(one: Renewed) -> None:
    """Call `one.in_child()` in each child that is forked from now on."""
    _known.add(one)


def held_elsewhere(lock: Any) -> bool:
    """Whether another thread held a lock when this process was forked."""
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def _in_child() -> None:
    for one in tuple(_known):
        one.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
