"""Names that occur once: `generate("linear")` gives linear_0, linear_1, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from .context import Guards


@dataclass
class _Names:
    """How often each name was asked for, and what stands before all of them."""

    prefix: str = ""
    # threads without a guard share it: to look up and to count are one step each, and in C
    asked: defaultdict[str, count[int]] = field(default_factory=lambda: defaultdict(count))


_everywhere = _Names()
_guards = Guards[_Names]("unique_name.guard")


def generate(key: str) -> str:
    """`key` with the number of times it was asked for before."""
    entries = _guards.entries.get()
    names = _guards.innermost(_everywhere) if entries else _everywhere
    return f"{names.prefix}{key}_{next(names.asked[key])}"


@contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Count from zero inside the block, so that a network built twice has the same names twice.

    new_generator: a prefix put before each name that is generated in the block.
    The guard holds for the thread that entered it.
    """
    with _guards.entered(_Names(new_generator or "")):
        yield
