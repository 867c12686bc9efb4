"""Pinned memory of the host that plans of one executor use in turn: of what they send, and of what they wait for.

Plans for many shapes share it, so that it is as much as the largest of them needs, to the next power of two.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

SLOTS, STAGED = 80, 1 << 20  # runs that have staging memory: as many as fit into so many bytes, at least two
SHARES = 5  # groups of a Ring: of 80 runs 64 may be on their way, and only every 16th asks the driver
LEAST = 512  # bytes of a slot
Thing = TypeVar("Thing")


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
    """Memory of one run: what it fills while those of earlier runs may still be on their way."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.address = memory, memory.ctypes.data
        self.counter = memory[:8].view(np.int64)


class Pinned:
    """Pinned memory of one executor on one GPU."""

    def __init__(self) -> None:
        self.rings: dict[Hashable, Ring[StagingSlot]] = {}
        self.held: Ring[list[Any]] | None = None
        self.received: dict[int, np.ndarray] = {}

    def slots(self, runtime: Any, what: Hashable, nbytes: int) -> Ring[StagingSlot]:
        """Slots of at least so many bytes; only what is called the same has them in common."""
        room = _room(nbytes)
        if (what, room) not in self.rings:
            count = min(SLOTS, max(2, STAGED // room))
            memory = runtime.pinned(count * room)
            slots = [StagingSlot(memory[i * room : (i + 1) * room]) for i in range(count)]
            self.rings[what, room] = Ring(slots, runtime)
        return self.rings[what, room]

    def lists(self, runtime: Any) -> Ring[list[Any]]:
        """Lists in which runs on their way hold what they read."""
        if self.held is None:
            self.held = Ring([[] for _ in range(SLOTS)], runtime)
        return self.held

    def receiving(self, runtime: Any, nbytes: int) -> np.ndarray:
        """So many bytes for a run that waits until they are there and takes them out."""
        room = _room(nbytes)
        if room not in self.received:
            self.received[room] = runtime.pinned(room)
        return self.received[room][:nbytes]


def _room(nbytes: int) -> int:
    return max(LEAST, 1 << (nbytes - 1).bit_length())
