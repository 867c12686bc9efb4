"""How feeds reach a CudaPlan: from the host through pinned memory, from a GPU's arrays by copies, or not at all.

An array of the GPU that comes again and again at the same place, as the buffers of a loader do, is read where it lies:
the plan has a binding for these addresses (PLACES_KEPT at the most). Others are copied into the plan's memory.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.kernels.parallel import for_blocks

from .bind import BoundProgram

PINNED = 64 << 20  # bytes of a feed up to which it has pinned memory of its own
SHARED, PIECE = 8 << 20, 1 << 20  # bytes of a feed from which threads copy it together, and of what one takes at a time
SLOTS, STAGED = 80, 1 << 20  # runs that have staging memory: as many as fit into so many bytes, at least two
SHARES = 5  # groups of a Ring: of 80 runs 64 may be on their way, and only every 16th asks the driver
PLACES_KEPT, PLACES_SEEN = 8, 64  # sets of addresses with a binding of their own; that are remembered
OFTEN = 3  # times that feeds lay at the same places before these get a binding
HELD = SLOTS  # runs on their way that read feeds where they lie; what they keep alive are arrays of few places

Places = tuple[int, ...]  # for each feed its address, 0 where it is copied
Thing = TypeVar("Thing")


@dataclass(slots=True)
class Route:
    """The feeds of a binding that are copied into the plan's memory, and those that are read where they lie."""

    copied: tuple[tuple[str, Buffer], ...]
    read: tuple[str, ...]


class Ring(Generic[Thing]):
    """Things that runs use in turn; one comes again when the GPU has done what it was used for.

    They lie in SHARES groups, where there are enough. An event comes after the uses of a group, and whoever needs its
    first thing again waits for that: all groups but one may be on their way.
    """

    def __init__(self, things: Sequence[Thing], runtime: Any) -> None:
        self.size = max(1, len(things) // SHARES)
        self.things = things[: len(things) // self.size * self.size]
        self.events = [runtime.event() for _ in range(len(self.things) // self.size)]
        self.runtime, self.at = runtime, -1

    def next(self) -> Thing:
        """The thing that was used longest ago; what the GPU does with those before has been given to the stream."""
        at = self.at = (self.at + 1) % len(self.things)
        if at % self.size == 0:
            group = at // self.size
            self.events[group - 1].record(self.runtime.stream)
            self.events[group].synchronize()
        return self.things[at]


class StagingSlot:
    """Staging memory of one run: what it fills while those of earlier runs may still be on their way."""

    def __init__(self, memory: np.ndarray, feeds: Mapping[str, tuple[int, Buffer]]) -> None:
        self.address = memory.ctypes.data
        self.counter = memory[:8].view(np.int64)
        self.feeds = {
            name: memory[at : at + b.nbytes].view(b.dtype).reshape(b.shape) for name, (at, b) in feeds.items()
        }


class Feeding:
    """The feeds of a plan that are read, in the order of `targets`.

    together  staging memory for the run counter and small feeds; that of larger feeds is made when the host
            feeds them
    copied  the Places of feeds that are all copied
    """

    def __init__(self, bound: BoundProgram, runtime: Any, address: int, counts_runs: bool) -> None:
        self.runtime, self.address, self.nbytes, self.counts_runs = runtime, address, bound.staging.sent, counts_runs
        at = {id(b): offset for b, offset in bound.staging.fields}
        self.targets: dict[str, Buffer] = {}
        small: dict[str, tuple[int, Buffer]] = {}
        for name, index in bound.schedule.feeds.items():
            buffer = bound.buffers[index]
            if bound.schedule.values[index].last_use >= 0 and buffer.nbytes:
                self.targets[name] = buffer
                if id(buffer) in at:
                    small[name] = at[id(buffer)], buffer
        self.together = self._slots(self.nbytes, small)
        self.small, self.large = small.keys(), dict[str, Ring[StagingSlot]]()
        self.own = {name: buffer.ptr for name, buffer in self.targets.items()}  # addresses in the plan's memory
        self.copied: Places = (0,) * len(self.targets)
        fetched = {id(owner(bound.buffers[i])) for i in bound.schedule.fetched}
        fixed = bound.not_captured() is not None  # the host reads values at addresses that are known now
        self.movable = {name: id(b) not in fetched and not fixed for name, b in self.targets.items()}
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}  # arrays by id, and where they lie
        self.seen: OrderedDict[Any, int] = OrderedDict()
        self.held: Ring[list[Any]] = Ring([[] for _ in range(HELD)], runtime)

    def _slots(self, nbytes: int, feeds: Mapping[str, tuple[int, Buffer]]) -> Ring[StagingSlot]:
        count = min(SLOTS, max(2, STAGED // nbytes))
        memory = self.runtime.pinned(count * nbytes)
        return Ring([StagingSlot(memory[i * nbytes : (i + 1) * nbytes], feeds) for i in range(count)], self.runtime)

    def places(self, feeds: Mapping[str, Any]) -> Places:
        """Where these feeds could be read without a copy."""
        offsets, known = [], self.known
        for name, movable in self.movable.items():
            array = feeds[name]
            if not movable or type(array) is np.ndarray:
                offsets.append(0)
                continue
            place = known.get(id(array))
            if place is None or place[0]() is not array:
                place = self._look(array)
            offsets.append(place[1])
        return tuple(offsets)

    def _look(self, array: Any) -> tuple[weakref.ref[Any], int]:
        """Where an array lies, which it does as long as it lives."""
        if len(self.known) >= PLACES_SEEN:
            self.known.clear()
        entry = self.known[id(array)] = weakref.ref(array), self.runtime.lies_at(array)
        return entry

    def route(self, places: Places) -> Route:
        """How feeds reach calls that are bound for these places."""
        pairs = list(zip(self.targets.items(), places, strict=True))
        return Route(tuple(own for own, place in pairs if not place), tuple(own[0] for own, place in pairs if place))

    def come_often(self, key: Any) -> bool:
        """Whether this was asked for the same key a few times lately."""
        count = self.seen.pop(key, 0) + 1
        self.seen[key] = count
        if len(self.seen) > PLACES_SEEN:
            self.seen.popitem(last=False)
        return count >= OFTEN

    @contextmanager
    def moved(self, places: Places) -> Iterator[None]:
        """The buffers have these addresses for calls that are bound meanwhile; what is copied goes to their own."""
        for buffer, place in zip(self.targets.values(), places, strict=True):
            buffer.ptr = place or buffer.ptr
        try:
            yield
        finally:
            for name, buffer in self.targets.items():
                buffer.ptr = self.own[name]

    def send(self, feeds: Mapping[str, Any], runs: int, route: Route) -> None:
        """Feeds and the run counter to the GPU, in the order of the stream; `end` must follow the calls."""
        slot = self.together.next() if self.counts_runs else None
        taken = []
        for name, buffer in route.copied:
            array = feeds[name]
            if not isinstance(array, np.ndarray):
                taken.append((array, buffer))
            elif name in self.small:
                slot = slot or self.together.next()
                np.copyto(slot.feeds[name], array)
            elif buffer.nbytes > PINNED:
                self.runtime.upload(array, buffer)
            else:
                self._send_large(name, array, buffer)
        if slot is not None:
            slot.counter[0] = runs
            self.runtime.send(self.address, slot.address, self.nbytes)
        if taken:
            self.runtime.take(taken)

    def _send_large(self, name: str, array: np.ndarray, buffer: Buffer) -> None:
        if name not in self.large:
            self.large[name] = self._slots(buffer.nbytes, {name: (0, buffer)})
        slot = self.large[name].next()
        _copy(slot.feeds[name], array)
        self.runtime.send(buffer.address, slot.address, buffer.nbytes)

    def end(self, feeds: Mapping[str, Any], route: Route) -> None:
        """The calls have been given to the stream: what they read lives until they have."""
        if route.read:
            self.held.next()[:] = [feeds[name] for name in route.read]


def _copy(to: np.ndarray, array: np.ndarray) -> None:
    """The array's elements into staging memory; one thread alone does not keep up with the bus."""
    if array.nbytes < SHARED or not array.flags.c_contiguous:
        np.copyto(to, array)
        return
    target, source = to.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)
    for_blocks(source.size, PIECE, lambda start, stop: np.copyto(target[start:stop], source[start:stop]))
