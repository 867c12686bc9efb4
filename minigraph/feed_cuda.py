"""How feeds reach a CudaPlan: from the host through pinned memory, from a GPU's arrays by copies, or not at all.

An array of the GPU that comes again and again at the same place, as the buffers of a loader do, is read where it lies:
the plan has a binding for these addresses (PLACES_KEPT at the most). Others are copied into the plan's memory.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .bound import BoundProgram
from .kernels.cuda.buffer import Buffer
from .order import owner

PINNED = 64 << 20  # bytes of a feed up to which it has pinned memory of its own
SLOTS, STAGED = 64, 1 << 20  # runs that may be on their way: as many as fit into so many bytes, at least two
PLACES_KEPT, PLACES_SEEN = 8, 64  # sets of addresses with a binding of their own; that are remembered
OFTEN = 3  # times that feeds lay at the same places before these get a binding
HELD = SLOTS  # runs on their way that read feeds where they lie; what they keep alive are arrays of few places

Places = tuple[int, ...]  # for each feed its address, 0 where it is copied


class Slot:
    """Staging memory of one run: what it fills while those of earlier runs may still be on their way."""

    def __init__(self, memory: np.ndarray, sent: Any, feeds: Mapping[str, tuple[int, Buffer]]) -> None:
        self.address, self.sent = memory.ctypes.data, sent
        self.counter = memory[:8].view(np.int64)
        self.feeds = {
            name: memory[at : at + b.nbytes].view(b.dtype).reshape(b.shape) for name, (at, b) in feeds.items()
        }


def _next(slots: deque[Slot]) -> Slot:
    """The slot that was filled longest ago, once the copy from it has ended."""
    slots.rotate(-1)
    slots[0].sent.synchronize()
    return slots[0]


class Feeding:
    """The feeds of a plan that are read, in the order of `targets`.

    inbox   staging memory of the mailbox: the run counter and small feeds; that of larger feeds is made when the host
            feeds them
    copied  the Places of feeds that are all copied
    """

    def __init__(self, bound: BoundProgram, runtime: Any, mailbox: int, counts_runs: bool) -> None:
        self.runtime, self.mailbox, self.nbytes, self.counts_runs = runtime, mailbox, bound.inbox_bytes, counts_runs
        at = {id(b): offset for b, offset in bound.letters}
        self.targets: dict[str, Buffer] = {}
        letters: dict[str, tuple[int, Buffer]] = {}
        for name, index in bound.schedule.feeds.items():
            buffer = bound.buffers[index]
            if bound.schedule.values[index].last_use >= 0 and buffer.nbytes:
                self.targets[name] = buffer
                if id(buffer) in at:
                    letters[name] = at[id(buffer)], buffer
        self.inbox = self._slots(self.nbytes, letters) if letters or counts_runs else deque()
        self.letters, self.large = letters.keys(), dict[str, deque[Slot]]()
        self.own = {name: buffer.ptr for name, buffer in self.targets.items()}  # addresses in the plan's memory
        self.copied: Places = (0,) * len(self.targets)
        fetched = {id(owner(bound.buffers[i])) for i in bound.schedule.fetched}
        fixed = bound.not_captured() is not None  # the host reads values at addresses that are known now
        self.movable = {name for name, b in self.targets.items() if id(b) not in fetched and not fixed}
        self.seen: OrderedDict[Any, int] = OrderedDict()
        self.held: deque[tuple[Any, list[Any]]] = deque((runtime.event(), []) for _ in range(HELD))

    def _slots(self, nbytes: int, feeds: Mapping[str, tuple[int, Buffer]]) -> deque[Slot]:
        count = min(SLOTS, max(2, STAGED // nbytes))
        memory = self.runtime.pinned(count * nbytes)
        parts = [memory[i * nbytes : (i + 1) * nbytes] for i in range(count)]
        return deque(Slot(part, self.runtime.event(), feeds) for part in parts)

    def places(self, feeds: Mapping[str, Any]) -> Places:
        """Where these feeds could be read without a copy."""
        return tuple([
            0 if isinstance(feeds[name], np.ndarray) or name not in self.movable else self.runtime.lies_at(feeds[name])
            for name in self.targets
        ])  # fmt: skip

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

    def send(self, feeds: Mapping[str, Any], runs: int, places: Places) -> None:
        """Feeds and the run counter to the GPU, in the order of the stream; `end` must follow the calls."""
        slot = _next(self.inbox) if self.counts_runs else None
        taken = []
        for (name, buffer), place in zip(self.targets.items(), places, strict=True):
            array = feeds[name]
            if place:
                continue
            if not isinstance(array, np.ndarray):
                taken.append((array, buffer))
            elif name in self.letters:
                slot = slot or _next(self.inbox)
                np.copyto(slot.feeds[name], array)
            elif buffer.nbytes > PINNED:
                self.runtime.upload(array, buffer)
            else:
                if name not in self.large:
                    self.large[name] = self._slots(buffer.nbytes, {name: (0, buffer)})
                self._send_large(_next(self.large[name]), name, array, buffer)
        if slot is not None:
            slot.counter[0] = runs
            self.runtime.send(self.mailbox, slot.address, self.nbytes)
            slot.sent.record(self.runtime.stream)
        if taken or any(places):
            self.runtime.take(taken, stay=any(places))

    def _send_large(self, slot: Slot, name: str, array: np.ndarray, buffer: Buffer) -> None:
        np.copyto(slot.feeds[name], array)
        self.runtime.send(buffer.address, slot.address, buffer.nbytes)
        slot.sent.record(self.runtime.stream)

    def end(self, feeds: Mapping[str, Any], places: Places) -> None:
        """The calls have been given to the stream: nobody overwrites what they read before they have."""
        if any(places):
            self.runtime.leave()
            self.held.rotate(-1)
            done, arrays = self.held[0]
            done.synchronize()
            arrays[:] = [feeds[name] for name, place in zip(self.targets, places, strict=True) if place]
            done.record(self.runtime.stream)
