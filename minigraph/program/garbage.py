"""Garbage collection while many objects are made that live."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FROZEN = 1000  # objects: Python 3.12 freezes some hundred of its own when it starts, freeze() all that there are
CALLS, LEAST = 32, 100_000  # of `without_collection` and objects before old ones are looked at

_switched_off: dict[object, int] = {}  # calls of `without_collection` that have switched it off -> their threads


class _Old:
    """What has come to count as old since old objects were looked at last: so many calls, so many objects.

    left   objects that were there after that
    """

    calls = made = left = 0


def _look_at_old_ones() -> None:
    """Collect all garbage where half of what is there may be such.

    Python does so by counts that `freeze` sets to zero: programs that are built and dropped would stay for ever.
    """
    if _Old.calls >= CALLS and _Old.made > max(LEAST, _Old.left):
        _Old.calls = _Old.made = 0
        gc.collect()
        _Old.left = len(gc.get_objects())


@contextmanager
def without_collection() -> Iterator[None]:
    """Graphs and plans are many objects that live: looking for garbage among them takes long.

    Afterwards they count as old, so that the next collection, of young objects, does not look at them either; what is
    dropped of them a later call finds. Where they are few, none is due, and they stay young.
    """
    enabled, me = gc.isenabled(), object()
    try:
        if enabled:
            _look_at_old_ones()
            _switched_off[me] = threading.get_ident()
            gc.disable()
        yield
    finally:  # each call is in a `try` of its own: an interrupt comes right behind one
        try:
            count = gc.get_count()[0]
            is_due = enabled and count > gc.get_threshold()[0]
            if is_due and gc.get_freeze_count() < FROZEN:  # else somebody froze objects, which would thaw
                _Old.calls, _Old.made = _Old.calls + 1, _Old.made + count
                try:
                    gc.freeze()
                finally:
                    gc.unfreeze()
        finally:
            try:
                if enabled:
                    gc.enable()
            finally:
                _switched_off.pop(me, None)


def _in_child() -> None:
    """Nobody in a forked child switches on again what another thread of its parent has switched off."""
    others = [me for me, thread in _switched_off.items() if thread != threading.get_ident()]
    if others:
        gc.enable()
    for me in others:
        del _switched_off[me]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
