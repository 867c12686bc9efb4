"""Joins: which recorded calls become one launch, and whether they may.

    forward, kernel on rows, input gradient of a narrow layer -> one launch, in the place of the kernel on rows

A call may move over others if none of them touches what it writes or writes what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minigraph.kernels.cuda.fused.joined_head import head, heads, single
from minigraph.kernels.cuda.record.call import Call
from minigraph.kernels.cuda.record.calls import Launch

from .layout.order import Unit, conflict


@dataclass
class Joins:
    """Launches by position; `taken`: positions of calls that one of these does as well, each with its position."""

    launches: dict[int, Launch] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)


def joins(calls: Sequence[Call], triples: Sequence[tuple[int, int, int]], units: list[Unit]) -> Joins:
    """What of `triples`, which `candidates` found, becomes one launch; `units` become those of what then runs."""
    joined = Joins()
    named = frozenset[int]().union(*(unit.after for unit in units))  # others have to wait for these besides
    for first, at, last in triples:
        made = None
        placed = units[first].after or units[last].after or {first, last} & named
        if not placed and _movable(units, first, at) and _movable(units, last, at):
            made = head(*(single(calls[i]) for i in (first, at, last)))
        if made is not None:
            joined.launches[at] = made
            for i in (first, last):
                joined.taken[i] = at
                _unite(units, i, at)
    return joined


def candidates(calls: Sequence[Call], once: frozenset[int]) -> list[tuple[int, int, int]]:
    """Positions of three calls that may fit together; `once` are those that do not belong to a run."""
    return [triple for triple in heads(calls) if once.isdisjoint(triple)]


def _unite(units: list[Unit], i: int, at: int) -> None:
    """What unit i did, unit `at` does."""
    one, other = units[at], units[i]
    units[at] = Unit(one.reads | other.reads, one.writes | other.writes, after=one.after)
    units[i] = Unit()


def _movable(units: Sequence[Unit], i: int, at: int) -> bool:
    """Whether unit i may run in the place of unit `at`, which is there as well."""
    return not any(conflict(units[i], units[j]) for j in range(min(i, at) + 1, max(i, at)))
