"""Names that occur once: `generate("linear")` gives linear_0, linear_1, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from minigraph.errors import ProgramError, require

from .context import Guards, reusable


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


def switch(new_generator: _Names | None = None, new_para_name_checker: Any = None) -> tuple[_Names, Any]:
    """Count from zero from now on, or go on with what an earlier `switch` returned; returns what counted before.

    new_generator          what `switch` returned, or its first part
    new_para_name_checker  Paddle's second part, says nothing here
    """
    global _everywhere
    before = _guards.innermost(_everywhere)
    names = new_generator[0] if isinstance(new_generator, tuple) else new_generator or _Names()
    require(isinstance(names, _Names), f"switch takes what switch returned, not {new_generator!r}", ProgramError)
    if before is _everywhere:
        _everywhere = names
    else:
        _guards.replace(names)
    return before, new_para_name_checker


@reusable
def guard(new_generator: str | None = None) -> Iterator[None]:
    """Count from zero inside the block, so that a network built twice has the same names twice.

    new_generator: a prefix put before each name that is generated in the block.
    The guard holds for the thread that entered it.
    """
    with _guards.entered(_Names(new_generator or "")):
        yield
