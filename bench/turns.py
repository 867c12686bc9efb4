"""Who runs when: arms take turns, and the card rests before each.

Under a long load a GPU lowers its clock until it keeps its power limit, after lighter work it is faster for a while.
So that a figure tells of its arm and not of the arm before it, nothing runs for `REST` seconds before a turn; of work
that the limit slows down, products above all, the time without any rest is taken as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Figure = TypeVar("Figure")

REST = 0.03
LONG = 0.4  # seconds after which the clock has settled


def in_turns(arms: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, list[Figure]]:
    """{arm: what it returned in each round}; who begins changes from round to round."""
    found: dict[str, list[Figure]] = {name: [] for name in arms}
    order = list(arms)
    for turn in range(rounds):
        for name in order if turn % 2 else reversed(order):
            time.sleep(REST)
            found[name].append(arms[name]())
        order = [*order[1:], order[0]]
    return found


def without_rest(arms: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """{arm: the median of its turns from the time when the clock has settled, for as long again}

    Before each arm the card rests as long: under a load that follows another one its clock is lower at first.
    """
    found = {}
    for name, turn in arms.items():
        time.sleep(LONG)
        start, taken = time.perf_counter(), list[float]()
        while not taken or time.perf_counter() < start + 2 * LONG:
            begun = time.perf_counter()
            ms = turn()
            if begun >= start + LONG or not taken:
                taken.append(ms)
        found[name] = statistics.median(taken[1:] or taken)
    return found
