"""Garbage collection while many objects are made that live."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FROZEN = 1000  # objects: Python 3.12 freezes some hundred of its own when it starts, freeze() all that there are

_switched_off: dict[object, int] = {}  # calls of `without_collection` that have switched it off -> their threads


@contextmanager
def without_collection() -> Iterator[None]:
    """Graphs and plans are many objects that live: looking for garbage among them takes long.

    Afterwards they count as old, so that the next collection, of young objects, does not look at them either. Where
    they are few, none is due, and they stay young: what is dropped of them is found soon.
    """
    enabled, me = gc.isenabled(), object()
    try:
        if enabled:
            _switched_off[me] = threading.get_ident()
            gc.disable()
        yield
    finally:  # each call is in a `try` of its own: an interrupt comes right behind one
        try:
            is_due = enabled and gc.get_count()[0] > gc.get_threshold()[0]
            if is_due and gc.get_freeze_count() < FROZEN:  # else somebody froze objects, which would thaw
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
