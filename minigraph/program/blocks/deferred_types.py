"""Types of the results of calls that wait for numbers: what is the same for all numbers that are tried is declared.

A run checks what it finds against them, so nothing is assumed in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minigraph.errors import MinigraphError, call_site
from minigraph.errors.kinds import RUN_TIME
from minigraph.opdef.inner import joined
from minigraph.program.program import Variable
from minigraph.types import FLOATS, TensorType

from .deferred import block_of

TRIED = 1, 2, 0, -1, 3, 4
FILLED = 2, 3  # sizes in the place of unknown ones, where a function needs to know them
MOST_TRIED = 8  # numbers that are tried one by one


def result_types(
    attrs: Mapping[str, Any], types: Sequence[TensorType], numbers: Sequence[Variable], note: Callable[[Any], None]
) -> list[TensorType]:  # fmt: skip
    """The types of the results that hold for all numbers: what differs between those tried is not known."""
    filled = [[t.with_shape(tuple(n if s == -1 else s for s in t.shape)) for t in types] for n in FILLED]
    problem: Exception | None = None
    for kinds in ([types], filled):
        found = []
        for own in kinds:
            for trial in _trials(numbers):
                try:
                    found.append(block_of(attrs, own, trial, note=note).output_types)
                except (MinigraphError, TypeError, ValueError) as refused:
                    problem = problem or refused
        if found:
            return _joined(attrs["function"], found)
    assert problem is not None
    raise problem


def _joined(function: str, found: Sequence[Sequence[TensorType]]) -> list[TensorType]:
    if len({tuple((t.ndim, t.dtype) for t in types) for types in found}) > 1:
        raise RUN_TIME(
            f"how many results {function} has, or of which rank, depends on a number that only a run knows",
            call=function, site=call_site(), hint="make it a number of Python",
        )  # fmt: skip
    return [joined(pair) for pair in zip(*found, strict=True)]


def _trials(numbers: Sequence[Variable]) -> Iterator[tuple[Any, ...]]:
    """Numbers to try, in the form of `numbers_of`: equal ones, orders of axes, one that differs from the others."""
    count = sum(v.type.size for v in numbers)
    lists: list[list[int]] = [[n] * count for n in TRIED]
    if count == 2:
        lists += [[n, m] for n in TRIED for m in TRIED]
    elif count <= MOST_TRIED:
        orders = list(range(count))
        lists += [[*orders[at:], *orders[:at]] for at in orders] + [orders[::-1]]
        lists += [[2 * i for i in orders], [-1 - i for i in orders]]
        lists += [[1] * at + [-1] * (count - at) for at in orders]
        lists += [[n if i == at else rest for i in orders] for at in orders for rest in (1, -1) for n in (2, 1, 0, -1)]
    for one in dict.fromkeys(map(tuple, lists)):
        rest = iter(one)
        values = [[float(next(rest)) if v.dtype in FLOATS else next(rest) for _ in range(v.type.size)] for v in numbers]
        yield tuple(tuple(own) if v.ndim else own[0] for v, own in zip(numbers, values, strict=True))
