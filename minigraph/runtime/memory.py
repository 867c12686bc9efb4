"""Memory layout: one offset for each block of bytes, so that blocks whose lives overlap do not."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.kernels.one_piece import rounded

SMALL, ALL_SMALL = 64 << 10, 256 << 10  # bytes of a block, and of all of them, that need not share memory
LARGE_SHARE, TURNS = 64, 64  # of the bytes that are needed a large block has at least one; orders of them are tried
FEW, MANY = 512, 2048  # blocks up to which every way to place them is tried; that are placed one among all others


class Life(NamedTuple):
    """Bytes that are needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def layout(lives: Sequence[Life], room: int = 0) -> tuple[list[int], int]:
    """(offset of each block, bytes in all): the best of a few ways to place them.

    Blocks are placed in the order of their birth; where that takes more than is ever live at once, and more than the
    `room` that is there anyway, also those of the fullest step first, or the large ones, which leaves fewer gaps.
    """
    offsets, size = by_birth(lives)
    most, at = peak(lives)
    enough = max(room, most)

    def of_peak(life: Life) -> tuple[int, ...]:
        """The blocks of the fullest step first: of these what lives longest from then on lies lowest."""
        return life.first <= at <= life.last, life.last, life.nbytes

    for key in (of_peak, _bytes, _bytes_times_steps, _steps) if len(lives) <= FEW else (_bytes,):
        if size <= enough:
            break
        other, other_size = by_importance(lives, key) if len(lives) <= MANY else large_first(lives, size)
        if other_size < size:
            offsets, size = other, other_size
    if size > enough + enough // LARGE_SHARE and len(lives) <= FEW:
        other, other_size = rearranged(lives, enough)
        if other_size < size:
            offsets, size = other, other_size
    return offsets, size


def _bytes(life: Life) -> tuple[int, ...]:
    return life.nbytes, life.last - life.first


def _bytes_times_steps(life: Life) -> tuple[int, ...]:
    return (life.nbytes * (life.last - life.first + 1),)


def _steps(life: Life) -> tuple[int, ...]:
    return life.last - life.first, life.nbytes


def by_importance(lives: Sequence[Life], key: Callable[[Life], tuple[int, ...]]) -> tuple[list[int], int]:
    """Blocks with the largest keys first, each at the lowest offset that is free during its life."""
    return in_order(lives, sorted(range(len(lives)), key=[key(life) for life in lives].__getitem__, reverse=True))


def rearranged(lives: Sequence[Life], enough: int) -> tuple[list[int], int]:
    """The large blocks in the best of a few orders, then the others, each at the lowest offset that is free.

    After each try the block that lies on top, and so is in the way, comes first. Of more than TURNS large ones none is
    moved.
    """
    large = [i for i, life in enumerate(lives) if rounded(life.nbytes) * LARGE_SHARE >= enough]
    best, size = list[int](), 0
    for key in (_bytes, _bytes_times_steps, _steps) if 1 < len(large) <= TURNS else ():
        order, seen = sorted(large, key=lambda i: key(lives[i]), reverse=True), set[tuple[int, ...]]()
        while len(seen) < TURNS and tuple(order) not in seen and (not best or size > enough):
            seen.add(tuple(order))
            offsets, end = in_order([lives[i] for i in order], range(len(order)))
            if not best or end < size:
                best, size = [*order], end
            top = max(range(len(order)), key=lambda k: offsets[k] + rounded(lives[order[k]].nbytes))
            order.insert(0, order.pop(top))
    return in_order(lives, [*best, *sorted({*range(len(lives))} - {*best}, key=lambda i: -lives[i].nbytes)])


def in_order(lives: Sequence[Life], order: Sequence[int]) -> tuple[list[int], int]:
    """Blocks in this order, each at the lowest offset that is free during its life."""
    order = [i for i in order if lives[i].nbytes]
    offsets, end = [0] * len(lives), 0
    placed, begins = np.empty((4, len(order)), np.int64), list[int]()  # of the blocks that have a place, by offset
    for count, i in enumerate(order):
        nbytes, first, last = lives[i]
        nbytes, (born, dies, starts, ends) = rounded(nbytes), placed[:, :count]
        beside = (born <= last) & (dies >= first)
        at = _lowest_gap(starts[beside], ends[beside], nbytes)
        offsets[i], end = at, max(end, at + nbytes)
        here = bisect.bisect_right(begins, at)
        begins.insert(here, at)
        placed[:, here + 1 : count + 1] = placed[:, here:count]
        placed[:, here] = first, last, at, at + nbytes
    return offsets, end


def _lowest_gap(starts: np.ndarray, ends: np.ndarray, nbytes: int) -> int:
    """The lowest offset at which so many bytes overlap none of the ranges, whose starts ascend."""
    if len(starts) == 0 or starts[0] >= nbytes:
        return 0
    free_from = np.maximum.accumulate(ends)
    fits = starts[1:] - free_from[:-1] >= nbytes
    first = int(fits.argmax()) if len(fits) else 0
    return int(free_from[first if len(fits) and fits[first] else -1])


def large_first(lives: Sequence[Life], known: int | None = None) -> tuple[list[int], int]:
    """The MANY largest blocks by importance, the others behind them by birth.

    known   bytes that another way takes: where this one cannot take less, it gives no offsets, and bytes that it needs
    """
    order = sorted(range(len(lives)), key=[_bytes(life) for life in lives].__getitem__, reverse=True)
    large, small = [lives[i] for i in order[:MANY]], [lives[i] for i in order[MANY:]]
    least = most_live(small)
    if known is not None and (bytes_needed := most_live(large) + least) >= known:
        return [], bytes_needed
    first, end = by_importance(large, _bytes)
    if known is not None and end + least >= known:
        return [], end + least
    rest, size = by_birth(small)
    offsets = [0] * len(lives)
    for i, offset in zip(order, [*first, *[end + one for one in rest]], strict=True):
        offsets[i] = offset
    return offsets, end + size


def by_birth(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Blocks in the order of their birth, each in the smallest gap that holds it; what dies joins free neighbours."""
    offsets, sizes = [0] * len(lives), list(map(rounded, [nbytes for nbytes, _, _ in lives]))
    firsts, lasts = [first for _, first, _ in lives], [last for _, _, last in lives]
    births = sorted(range(len(lives)), key=[-nbytes for nbytes, _, _ in lives].__getitem__)  # the large ones first
    births.sort(key=firsts.__getitem__)
    deaths = sorted(range(len(lives)), key=lasts.__getitem__)
    free = _FreeList()
    take, dead = free.take, 0
    for i in births:
        first = firsts[i]
        while lasts[gone := deaths[dead]] < first:
            free.release(offsets[gone], sizes[gone])
            dead += 1
        offsets[i] = take(sizes[i])
    return offsets, free.end


def apart(lives: Sequence[Life]) -> list[Life]:
    """The same with small blocks that live all the time: calls that only share their memory need not wait."""
    small = [life for life in lives if life.nbytes <= SMALL]
    if sum(rounded(life.nbytes) for life in small) > ALL_SMALL:
        return list(lives)
    first, last = min((a.first for a in lives), default=0), max((a.last for a in lives), default=0)
    return [Life(life.nbytes, first, last) if life.nbytes <= SMALL else life for life in lives]


def most_live(lives: Sequence[Life]) -> int:
    """The most bytes that are needed at one time: no layout takes less."""
    return peak(lives)[0]


def peak(lives: Sequence[Life]) -> tuple[int, int]:
    """(the most bytes that are needed at one time, the first step at which they are); step -1 where nothing lives."""
    changes: dict[int, int] = {}
    for nbytes, first, last in lives:
        size = rounded(nbytes)
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    live, most, at = 0, 0, min(changes, default=-1)
    for step in sorted(changes):
        live += changes[step]
        if live > most:
            most, at = live, step
    return most, at


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


def named(names: Sequence[str]) -> str:
    """Names of values that lie in one block, the inner ones of many left out."""
    own = list(dict.fromkeys(names))
    return ", ".join(own if len(own) < 4 else [own[0], f"{len(own) - 2} others", own[-1]])
