"""Names that occur once: `generate("linear")` gives linear_0, linear_1, ..."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_counters: Counter[str] = Counter()
_prefix = ""


def generate(key: str) -> str:
    """`key` with the number of times it was asked for before."""
    number = _counters[key]
    _counters[key] += 1
    return f"{_prefix}{key}_{number}"


@contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Count from zero inside the block, so that a network built twice has the same names twice.

    new_generator: a prefix put before each name that is generated in the block.
    """
    global _counters, _prefix
    saved = _counters, _prefix
    _counters, _prefix = Counter(), new_generator or ""
    try:
        yield
    finally:
        _counters, _prefix = saved
