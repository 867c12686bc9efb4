"""The plans that an Executor keeps: how many there are of each program stays right, whatever takes one away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from minigraph.runtime.executor import KeptPlans

KEYS = [("a", 1), ("a", 2), ("b", 1)]
CHANGES: dict[str, Callable[[KeptPlans], Any]] = {
    "pop": lambda plans: plans.pop(KEYS[0]),
    "pop of none": lambda plans: plans.pop(("c", 1), None),
    "popitem": lambda plans: plans.popitem(),
    "del": lambda plans: plans.__delitem__(KEYS[1]),
    "update": lambda plans: plans.update({("a", 3): cast(Any, 3), KEYS[0]: cast(Any, 4)}),
    "setdefault": lambda plans: [plans.setdefault(key, cast(Any, 5)) for key in (KEYS[0], ("c", 1))],
    "used": lambda plans: plans.used(KEYS[0]),
    "clear": lambda plans: plans.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_counts_are_those_of_the_plans_that_are_there(change: str):
    plans = KeptPlans()
    for number, key in enumerate(KEYS):
        plans[key] = cast(Any, number)
    CHANGES[change](plans)
    assert plans.counts == Counter(key[:-1] for key in plans)
    assert len(plans) == len(list(reversed(plans))) == len(plans.values())


def test_the_one_that_ran_last_stands_at_the_end():
    plans = KeptPlans()
    for number, key in enumerate(KEYS):
        plans[key] = cast(Any, number)
    plans.used(KEYS[0])
    assert list(plans.values()) == [1, 2, 0]
