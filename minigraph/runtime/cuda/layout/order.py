"""Order: in which order recorded calls run, and how long each block of memory is needed.

    calls -> units with what they read and write -> dependencies -> an order that needs little memory -> lives

A unit is one recorded call (all variants of a Choice together).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Unit:
    """What one recorded call reads and writes: numbers of the blocks of memory.

    barrier   it must keep its place: the host takes part, or what it touches is not known
    after     numbers of units that must have ended besides
    apart     it has a stream for units such as this
    blocks    all that it touches
    """

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    barrier: bool = False
    after: frozenset[int] = frozenset()
    apart: bool = False
    blocks: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = self.reads | self.writes


Span = tuple[int, int]
Touched = Sequence[Collection[int]]
"""For each unit, by its number, blocks that it reads or writes."""


def conflict(a: Unit, b: Unit) -> bool:
    """Whether it matters which of them runs first."""
    return a.barrier or b.barrier or not (a.writes.isdisjoint(b.blocks) and b.writes.isdisjoint(a.blocks))


def dependencies(units: Sequence[Unit]) -> list[set[int]]:
    """For each unit those that must run before it: writers of what it reads, readers of what it overwrites."""
    before: list[set[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    fence, since = -1, []
    for i, unit in enumerate(units):
        wanted = {*unit.after, fence} if fence >= 0 else {*unit.after}
        if unit.barrier:
            wanted.update(since)
            fence, since = i, []
        else:
            since.append(i)
        for b in unit.reads:
            wanted.add(writer.get(b, i))
            if b in readers:
                readers[b].append(i)
            else:
                readers[b] = [i]
        for b in unit.writes:
            wanted.add(writer.get(b, i))
            if b in readers:
                wanted.update(readers.pop(b))
            writer[b] = i
        wanted.discard(i)
        before.append(wanted)
    return before


def _waiting(before: Sequence[set[int]], order: Iterable[int]) -> list[list[int]]:
    """For each unit those of `order` that wait for it: the reverse of `dependencies`."""
    after: list[list[int]] = [[] for _ in before]
    for i in order:
        for j in before[i]:
            after[j].append(i)
    return after


def mattering(units: Sequence[Unit], sizes: Mapping[int, int]) -> Touched:
    """For each unit the blocks that it touches and that have a size here: parameters and states lie elsewhere."""
    return [[*filter(sizes.__contains__, unit.blocks)] for unit in units]


def _touching(touched: Touched, order: Iterable[int]) -> dict[int, list[int]]:
    """For each block the units that read or write it, as they stand in `order`."""
    touching: dict[int, list[int]] = {}
    for i in order:
        for b in touched[i]:
            if b in touching:
                touching[b].append(i)
            else:
                touching[b] = [i]
    return touching


def _growth(
    blocks: Iterable[int], live: set[int], accessors: Mapping[int, set[int]], sizes: Mapping[int, int],
    kept: Collection[int],
) -> int:  # fmt: skip
    """Bytes that are live after a unit that touches these blocks, and not before it."""
    change = 0
    for b in blocks:
        if b not in live:
            change += sizes[b]
        if len(accessors[b]) == 1 and b not in kept:
            change -= sizes[b]
    return change


def greedy(
    touched: Touched, before: Sequence[set[int]], sizes: Mapping[int, int], given: Collection[int],
    kept: Collection[int],
) -> list[int]:
    """Greedy list scheduling: what frees more memory than it takes runs as soon as it can; else the order as written.

    touched  see `mattering`
    sizes    bytes of the blocks that matter
    given    those that hold something before the first unit;  kept: those that are needed after the last
    """
    accessors = {b: set(own) for b, own in _touching(touched, range(len(touched))).items()}
    after = _waiting(before, range(len(touched)))
    live = set(given)
    missing = [len(b) for b in before]
    done = [False] * len(touched)
    ready = [i for i, n in enumerate(missing) if n == 0]  # it ascends, so it is a heap
    urgent: list[tuple[int, int]] = []

    def growth(i: int) -> int:
        return _growth(touched[i], live, accessors, sizes, kept)

    def look(i: int) -> None:
        if missing[i] == 0 and not done[i]:
            change = growth(i)
            if change < 0:
                heapq.heappush(urgent, (change, i))

    for i in ready:
        look(i)
    order: list[int] = []
    while ready:
        while urgent and (done[urgent[0][1]] or growth(urgent[0][1]) != urgent[0][0]):
            heapq.heappop(urgent)
        i = heapq.heappop(urgent)[1] if urgent else heapq.heappop(ready)
        if done[i]:
            continue
        done[i] = True
        order.append(i)
        live.update(touched[i])
        for b in touched[i]:
            left = accessors[b]
            left.discard(i)
            if len(left) == 1:
                look(next(iter(left)))
        for j in after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
                look(j)
    return order


def as_late_as_possible(
    order: Sequence[int], units: Sequence[Unit], needed: Mapping[int, Span], touched: Touched,
    before: Sequence[set[int]], sizes: Mapping[int, int], kept: Collection[int],
) -> list[int]:  # fmt: skip
    """Scheduling as late as possible: what takes memory and frees none runs just before the first that waits for it.

    needed   what `lives` says of this order
    """
    place = [0] * len(units)
    for at, i in enumerate(order):
        place[i] = at
    after, end = _waiting(before, order), len(units)
    last = {b: end if b in kept else to if to > at else -1 for b, (at, to) in needed.items()}
    for at in range(len(order) - 1, -1, -1):
        i = order[at]
        if units[i].barrier or not after[i]:
            continue
        target = min(map(place.__getitem__, after[i]))
        takes = frees = False
        for b in touched[i]:
            if needed[b][0] == at:
                takes = takes or sizes[b] > 0
            elif last[b] < target:
                frees = True
                break
        if takes and not frees:
            place[i] = target
    return sorted(order, key=place.__getitem__)  # what has one place stands in the order that was given


def most_needed(
    needed: Mapping[int, Span], end: int, sizes: Mapping[int, int], given: Collection[int], kept: Collection[int]
) -> int:  # fmt: skip
    """The most bytes that are needed at one time in an order of `end` units; `needed` is what `lives` says of it."""
    change = [0] * (end + 2)
    for b, (first, last) in needed.items():
        change[0 if b in given else first] += sizes[b]
        change[end + 1 if b in kept else last + 1] -= sizes[b]
    return max(itertools.accumulate(change))


def lives(order: Sequence[int], touched: Touched) -> dict[int, Span]:
    """For each block the first and the last place in the order at which it is touched."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, i in enumerate(order):
        for b in touched[i]:
            if b not in first:
                first[b] = at
            last[b] = at
    return {b: (at, last[b]) for b, at in first.items()}
