"""Memory layout: one offset for each block of bytes, so that blocks whose lives overlap do not."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 256  # bytes; what vector accesses and matrix products like


class Life(NamedTuple):
    """Bytes that are needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def layout(lives: Sequence[Life]) -> tuple[list[int], int]:
    """(offset of each block, bytes in all).

    Blocks are placed in the order of their birth, each into the smallest gap that holds it; what
    dies is joined with free neighbours.
    """
    offsets = [0] * len(lives)
    births = sorted(range(len(lives)), key=lambda i: (lives[i].first, -lives[i].nbytes))
    deaths = sorted(range(len(lives)), key=lambda i: lives[i].last)
    free = _FreeList()
    dead = 0
    for i in births:
        while lives[deaths[dead]].last < lives[i].first:
            gone = deaths[dead]
            free.release(offsets[gone], rounded(lives[gone].nbytes))
            dead += 1
        offsets[i] = free.take(rounded(lives[i].nbytes))
    return offsets, free.end


def most_live(lives: Sequence[Life]) -> int:
    """The most bytes that are needed at one time: no layout takes less."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + rounded(life.nbytes)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - rounded(life.nbytes)
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


def rounded(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _FreeList:
    """Gaps as (offset, size), ordered by offset; `end` is where unused memory begins."""

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        if size == 0:
            return 0
        fitting = [(gap, i) for i, (_, gap) in enumerate(self.gaps) if gap >= size]
        if fitting:
            gap, i = min(fitting)
            offset = self.gaps[i][0]
            self.gaps[i : i + 1] = [(offset + size, gap - size)] if gap > size else []
            return offset
        last_gap_grows = self.gaps and sum(self.gaps[-1]) == self.end
        offset = self.gaps.pop()[0] if last_gap_grows else self.end
        self.end = offset + size
        return offset

    def release(self, offset: int, size: int) -> None:
        if size == 0:
            return
        i = bisect.bisect(self.gaps, (offset,))
        if i < len(self.gaps) and self.gaps[i][0] == offset + size:
            size += self.gaps.pop(i)[1]
        if i > 0 and sum(self.gaps[i - 1]) == offset:
            i -= 1
            before = self.gaps.pop(i)
            offset, size = before[0], before[1] + size
        self.gaps.insert(i, (offset, size))
