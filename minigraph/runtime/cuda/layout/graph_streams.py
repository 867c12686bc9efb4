"""Streams of the captured graph: which calls of a step run beside each other, and what each has to wait for.

    order of calls, what they read and write, where their blocks lie -> waits -> a stream for each call

A call waits for those that write what it reads, read or write what it writes, or used the memory that its
blocks lie in now. A stream runs its calls one after the other and waits for single calls of the others.
Where blocks share no memory, two streams instead of one make the MLP's step 11 % faster, four are no better
(bench/results/studies/lanes.json). A stream goes on with what has the longest way to the end of the step, so
that this way changes streams as seldom as can be (bench/results/studies/mlp_step.json).
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from .order import Unit, dependencies

STREAMS = 2
NONE: Mapping[int, int] = {}


class OnStream(NamedTuple):
    """A call with its stream, and the calls of other streams that it must wait for."""

    position: int
    stream: int
    waits: list[int]


def assign_streams(
    order: Sequence[int], units: Sequence[Unit], places: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]
) -> list[OnStream]:
    """The stream of each call in order; `places` are offsets and ends of the blocks that share an arena."""
    work = {i: sum(sizes[b] for b in units[i].blocks) for i in order}
    apart = {i for i in order if units[i].apart}
    next_of = followers(order, dependencies(units), work)
    return assigned(order, waits(order, units, places), STREAMS, next_of, work, apart)


def followers(order: Sequence[int], before: Sequence[set[int]], work: Mapping[int, int]) -> dict[int, int]:
    """For each call that others need, the one of these with the longest way to the end: most work in a row."""
    way: dict[int, int] = {}  # from the beginning of a call on
    follower: dict[int, int] = {}
    for i in reversed(order):
        way[i] = work[i] + (way[follower[i]] if i in follower else 0)
        for w in before[i]:
            if w not in follower or way[i] >= way[follower[w]]:
                follower[w] = i
    return follower


def waits(order: Sequence[int], units: Sequence[Unit], places: Mapping[int, tuple[int, int]]) -> dict[int, set[int]]:
    """For each call those before it that must have ended; not those that follow from these.

    A call that is not in the order gave a constant before the first run.
    """
    before, there = dependencies(units), set(order)
    awaited = {i: before[i] & there for i in order}
    memory = _Memory()
    for i in order:
        for block in units[i].blocks & places.keys():
            awaited[i] |= memory.touch(i, block, places[block], block in units[i].writes)
        awaited[i].discard(i)
    return awaited


class _Memory:
    """Who used which bytes last.

    spans   (offset, end, block) in order of offsets, of all bytes that were used
    users   for each block its last writer and those who read it since
    """

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int]] = []
        self.users: dict[int, set[int]] = {}

    def touch(self, call: int, block: int, place: tuple[int, int], writes: bool) -> set[int]:
        """Note that a call uses a block; returns the last users of other blocks that lay there."""
        gone: set[int] = set()
        if block not in self.users:
            gone = {call for other in self._take(block, *place) for call in self.users[other]}
        self.users[block] = {call} if writes or block not in self.users else self.users[block] | {call}
        return gone

    def _take(self, block: int, start: int, end: int) -> set[int]:
        """Give these bytes to a block; the blocks that had some of them. What others keep stays theirs."""
        first = bisect.bisect_right(self.spans, (start,))
        if first and self.spans[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self.spans) and self.spans[last][0] < end:
            last += 1
        old = self.spans[first:last]
        rest = [(a, min(b, start), n) for a, b, n in old if a < start]
        rest.append((start, end, block))
        rest += [(max(a, end), b, n) for a, b, n in old if b > end]
        self.spans[first:last] = rest
        return {n for _, _, n in old}


def assigned(
    order: Sequence[int], waits: Mapping[int, set[int]], streams: int = STREAMS, followers: Mapping[int, int] = NONE,
    work: Mapping[int, int] = NONE, apart: Collection[int] = (),
) -> list[OnStream]:  # fmt: skip
    """A stream for each call: that of a call it waits for, or one that is done by then, so that it waits for no other.

    followers   the call that should follow another one on its stream
    work        of several streams a call takes that of most work
    apart       calls that have one more stream for them
    """
    tails: dict[int, int] = {}  # the last call of each stream
    at = {call: number for number, call in enumerate(order)}
    stream_of: dict[int, int] = {}
    ended: dict[int, list[int]] = {}  # when a call has ended: the number of the last one of each stream that has, too
    made, every = [], streams + bool(apart)

    def chosen(call: int) -> int:
        known = _latest([ended[w] for w in waits[call]], every)
        begun = [stream for stream in tails if stream < streams]
        ready = [stream for stream in begun if at[tails[stream]] <= known[stream]]
        own = [stream for stream in ready if followers.get(tails[stream]) == call]
        due = {stream: followers.get(tails[stream], call) for stream in ready}
        free = [stream for stream in ready if due[stream] == call or due[stream] in stream_of]
        awaited = [stream for stream in free if tails[stream] in waits[call]]
        if own or free:
            most = work if own else NONE
            return max(own or awaited or free, key=lambda stream: (most.get(tails[stream], 0), at[tails[stream]]))
        return len(begun) if len(begun) < streams else min(begun, key=lambda stream: at[tails[stream]])

    for call in order:
        stream = streams if call in apart else chosen(call)
        known = _latest([ended[tails[stream]]] if stream in tails else [], every)
        needed = []
        for w in sorted(waits[call], key=lambda w: -at[w]):
            if known[stream_of[w]] < at[w]:
                needed.append(w)
                known = _latest([known, ended[w]], every)
        known[stream] = at[call]
        ended[call], stream_of[call], tails[stream] = known, stream, call
        made.append(OnStream(call, stream, needed))
    return made


def _latest(many: Sequence[Sequence[int]], streams: int) -> list[int]:
    return [max(numbers) for numbers in zip([-1] * streams, *many, strict=True)]
