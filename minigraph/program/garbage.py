"""Garbage collection while many objects are made that live."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FROZEN = 1000  # objects: Python 3.12 freezes some hundred of its own when it starts, freeze() all that there are


@contextmanager
def without_collection() -> Iterator[None]:
    """Graphs and plans are many objects that live: looking for garbage among them takes long.

    Afterwards they count as old, so that the next collection, of young objects, does not look at them either. Where
    they are few, none is due, and they stay young: what is dropped of them is found soon.
    """
    enabled = gc.isenabled()
    try:  # around all, so that no interrupt leaves it off
        gc.disable()
        yield
    finally:
        if enabled:
            try:
                is_due = gc.get_count()[0] > gc.get_threshold()[0]
                if is_due and gc.get_freeze_count() < FROZEN:  # else somebody froze objects, which would thaw
                    gc.freeze()
                    gc.unfreeze()
            finally:
                gc.enable()
