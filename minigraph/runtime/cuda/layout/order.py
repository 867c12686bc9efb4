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
    return [[b for b in unit.blocks if b in sizes] for unit in units]


def greedy(
    touched: Touched, before: Sequence[set[int]], sizes: Mapping[int, int], given: Collection[int],
    kept: Collection[int],
) -> list[int]:  # fmt: skip
    """Greedy list scheduling: what frees more memory than it takes runs as soon as it can; else the order as written.

    touched  see `mattering`
    sizes    bytes of the blocks that matter
    given    those that hold something before the first unit;  kept: those that are needed after the last
    """
    after = _waiting(before, range(len(touched)))
    growth = _Growth(touched, sizes, given, kept)
    change = growth.change
    missing = [len(b) for b in before]
    done = [False] * len(touched)
    ready = [i for i, n in enumerate(missing) if n == 0]  # it ascends, so it is a heap
    urgent = [(change[i], i) for i in ready if change[i] < 0]
    heapq.heapify(urgent)
    order: list[int] = []
    while ready:
        while urgent and (done[urgent[0][1]] or change[urgent[0][1]] != urgent[0][0]):
            heapq.heappop(urgent)
        i = heapq.heappop(urgent)[1] if urgent else heapq.heappop(ready)
        if done[i]:
            continue
        done[i] = True
        order.append(i)
        for j in growth.ran(i):
            if missing[j] == 0 and not done[j] and change[j] < 0:
                heapq.heappush(urgent, (change[j], j))
        for j in after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
                if change[j] < 0:
                    heapq.heappush(urgent, (change[j], j))
    return order


class _Growth:
    """`change` says for each unit how many bytes will be live after it that are not before it, if it runs next."""

    def __init__(
        self, touched: Touched, sizes: Mapping[int, int], given: Collection[int], kept: Collection[int]
    ) -> None:  # fmt: skip
        self.touched, self.sizes, self.kept, self.live = touched, sizes, kept, {*given}
        self.touching = touching = {b: [] for b in sizes}
        for i, blocks in enumerate(touched):
            for b in blocks:
                touching[b].append(i)
        self.left = {b: len(units) for b, units in touching.items()}  # how many of these have yet to run,
        self.rest = {b: sum(units) for b, units in touching.items()}  # and the sum of their numbers
        self.change = change = [0] * len(touched)
        for b, units in touching.items():
            if b not in given:
                for i in units:
                    change[i] += sizes[b]
            if len(units) == 1 and b not in kept:
                change[units[0]] -= sizes[b]

    def ran(self, i: int) -> list[int]:
        """Unit i has run; those that are now the last one to touch one of its blocks."""
        left, rest, change, last = self.left, self.rest, self.change, []
        for b in self.touched[i]:
            if b not in self.live:
                self.live.add(b)
                for j in self.touching[b]:
                    change[j] -= self.sizes[b]
            rest[b] -= i
            left[b] -= 1
            if left[b] == 1:
                last.append(rest[b])
                if b not in self.kept:
                    change[rest[b]] -= self.sizes[b]
        return last


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
        target = min([place[j] for j in after[i]])
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
        last.update(dict.fromkeys(touched[i], at))
    for at in range(len(order) - 1, -1, -1):
        first.update(dict.fromkeys(touched[order[at]], at))
    return {b: (at, last[b]) for b, at in first.items()}
