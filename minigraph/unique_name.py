"""Names that occur once: `generate("linear")` gives linear_0, linear_1, ..."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .context import Guards


@dataclass
class _Names:
    """How often each name was asked for, and what stands before all of them."""

    prefix: str = ""
    asked: Counter[str] = field(default_factory=Counter)


_everywhere = _Names()
_guards = Guards[_Names]("unique_name.guard")
_lock = threading.Lock()  # threads without a guard share one count


def generate(key: str) -> str:
    """`key` with the number of times it was asked for before."""
    names = _guards.innermost(_everywhere)
    with _lock:
        number = names.asked[key]
        names.asked[key] += 1
    return f"{names.prefix}{key}_{number}"


@contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Count from zero inside the block, so that a network built twice has the same names twice.

    new_generator: a prefix put before each name that is generated in the block.
    The guard holds for the thread that entered it.
    """
    with _guards.entered(_Names(new_generator or "")):
        yield
