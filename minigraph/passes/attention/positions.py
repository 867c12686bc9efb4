"""Masks that hide keys by position alone, and the attributes of attention that mean the same."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .found import Modifier
from .masks import Bounds

HIDES = -1e4  # a number that makes the exponential of a score 0 beside that of a visible one


class Position(NamedTuple):
    """A mask by position: a query i sees key j where bounds[0] <= j - i <= bounds[1]; else `fill` is its score."""

    bounds: Bounds
    fill: float


def hidden_by(modifier: Modifier) -> Position | None:
    """The positions that a modifier as large as the scores hides; None if what it does is no such mask."""
    steps = modifier.steps
    if steps is None or steps.constant is not None:
        return None
    hides = {steps.inside: False, steps.outside: False}
    if modifier.kind == "add":
        hides = {value: value * modifier.factor <= HIDES for value in hides}
        seen = [value for value, hidden in hides.items() if not hidden]
        if len(seen) != 1 or seen[0] != 0:
            return None
        fill = min(value * modifier.factor for value in hides)
    else:
        hides = {value: (value != 0) == modifier.negated for value in hides}
        fill = modifier.fill
    if fill > HIDES:
        return None
    seen = (form for form in steps.forms() if hides[form.outside] and not hides[form.inside])
    return next((Position(form.bounds, fill) for form in seen), None)


def attributes_of(bounds: Bounds, sizes: tuple[int, int]) -> dict[str, Any] | None:
    """causal, bottom_right and window that mean these bounds; None where nothing does."""
    low, high = bounds
    for bottom_right in (False, True)[: 1 if -1 in sizes else 2]:
        end = sizes[1] - sizes[0] if bottom_right else 0
        left, right = end - low, high - end
        if right == 0 and (left == math.inf or left >= 0):
            window = {} if left == math.inf else {"window": (int(left), 0)}
            return {"causal": True, "bottom_right": bottom_right and end != 0, **window}
        if math.isfinite(left) and math.isfinite(right) and min(left, right) >= 0:
            return {"window": (int(left), int(right)), "bottom_right": bottom_right}
    return None


def sees_a_key(bounds: Bounds, sizes: tuple[int, int]) -> bool:
    """Whether every query sees at least one key."""
    if -1 in sizes:
        return bounds[0] == -math.inf and bounds[1] >= 0
    queries, keys = sizes
    rows = (0, queries - 1) if queries else ()
    return all(max(0, i + bounds[0]) <= min(keys - 1, i + bounds[1]) for i in rows)
