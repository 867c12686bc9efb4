"""How feeds reach a CudaPlan: from the host through pinned memory, from a GPU's arrays by copies, or not at all.

Through pinned memory of ours the host need not wait for what the GPU has to do before. Where that is nothing, as after
a run whose results were fetched, the driver brings a larger array to the GPU in less time: it transfers the first
pieces while it copies the next ones (bench/results/studies/feeds.json).

An array of the GPU that comes again and again at the same place, as the buffers of a loader do, is read where it lies:
the plan has a binding for these addresses (PLACES_KEPT at the most). Others are copied into the plan's memory.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.kernels.parallel import for_blocks

from .bind import BoundProgram
from .pinned import Pinned, Ring, StagingSlot

PINNED = 64 << 20  # bytes of a feed up to which it has pinned memory of its own
SHARED, PIECE = 8 << 20, 1 << 20  # bytes of a feed from which threads copy it together, and of what one takes at a time
DIRECT = 1 << 20  # bytes from which the driver brings an array that one thread would copy, where the GPU is idle
PLACES_KEPT, PLACES_SEEN = 8, 64  # sets of addresses with a binding of their own; that are remembered
OFTEN = 3  # times that feeds lay at the same places before these get a binding

Places = tuple[int, ...]  # for each feed its address, 0 where it is copied


@dataclass(slots=True)
class Route:
    """The feeds of a binding that are copied into the plan's memory, and those that are read where they lie."""

    copied: tuple[tuple[str, Buffer], ...]
    read: tuple[str, ...]


class Feeding:
    """The feeds of a plan that are read, in the order of `targets`.

    together  staging memory for the run counter and small feeds; that of larger feeds is taken when the host
            feeds them
    held      what runs on their way read where it lies
    copied  the Places of feeds that are all copied
    """

    def __init__(self, bound: BoundProgram, runtime: Any, address: int, counts_runs: bool, pinned: Pinned) -> None:
        self.runtime, self.address, self.nbytes, self.counts_runs = runtime, address, bound.staging.sent, counts_runs
        self.pinned, self.held = pinned, pinned.lists(runtime)
        at = {id(b): offset for b, offset in bound.staging.fields}
        self.targets: dict[str, Buffer] = {}
        self.small: dict[str, tuple[int, Buffer]] = {}
        for name, index in bound.schedule.feeds.items():
            buffer = bound.buffers[index]
            if bound.schedule.values[index].last_use >= 0 and buffer.nbytes:
                self.targets[name] = buffer
                if id(buffer) in at:
                    self.small[name] = at[id(buffer)], buffer
        self.together = pinned.slots(runtime, "together", self.nbytes)
        self.large: dict[str, Ring[StagingSlot]] = {}
        self.direct = {name for name, b in self.targets.items() if DIRECT <= b.nbytes < SHARED}
        self.views: dict[tuple[StagingSlot, str], np.ndarray] = {}
        self.settle()
        self.copied: Places = (0,) * len(self.targets)
        fetched = {id(owner(bound.buffers[i])) for i in bound.schedule.fetched}
        fixed = bound.not_captured is not None  # the host reads values at addresses that are known now
        self.movable = {name: id(b) not in fetched and not fixed for name, b in self.targets.items()}
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}  # arrays by id, and where they lie
        self.seen: OrderedDict[Any, int] = OrderedDict()

    def settle(self) -> None:
        """Remember where the buffers lie in the plan's memory."""
        self.own = {name: buffer.ptr for name, buffer in self.targets.items()}

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
        taken, idle = [], bool(self.direct) and self.runtime.idle()
        for name, buffer in route.copied:
            array = feeds[name]
            if not isinstance(array, np.ndarray):
                taken.append((array, buffer))
            elif name in self.small:
                slot = slot or self.together.next()
                np.copyto(self._view(slot, name, *self.small[name]), array)
            elif buffer.nbytes > PINNED or (
                idle and name in self.direct and array.flags.c_contiguous
            ):
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
            number = list(self.targets).index(name)  # feeds of one run have slots of their own
            self.large[name] = self.pinned.slots(self.runtime, number, buffer.nbytes)
        slot = self.large[name].next()
        _copy(self._view(slot, name, 0, buffer), array)
        self.runtime.send(buffer.address, slot.address, buffer.nbytes)

    def _view(self, slot: StagingSlot, name: str, at: int, b: Buffer) -> np.ndarray:
        """The part of a slot that a feed fills, which is made once."""
        view = self.views.get((slot, name))
        if view is None:
            view = self.views[slot, name] = slot.memory[at : at + b.nbytes].view(b.dtype).reshape(b.shape)
        return view

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
