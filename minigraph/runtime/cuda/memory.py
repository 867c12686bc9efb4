"""The memory of a plan: an arena of temporaries, the staging buffer, constants."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import OutOfMemoryError
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.runtime.schedule import Value

from .bind import BoundProgram
from .pinned import Pinned


class SharedMemory:
    """What plans that never run at the same time share: memory of temporaries, which goes with the last of them, and
    pinned memory of the host."""

    def __init__(self) -> None:
        self.pinned = Pinned()
        self.arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def arena(self, runtime: Any, nbytes: int) -> Any:
        """The smallest one that suffices, or a new one."""
        fitting = [a for a in self.arrays.values() if a.nbytes >= nbytes]
        if fitting:
            return min(fitting, key=lambda a: a.nbytes)
        made = self.arrays[nbytes] = runtime.allocate(nbytes)
        return made


class PlanMemory:
    """Places of all buffers but those that a Scope owns."""

    def __init__(self, bound: BoundProgram, runtime: Any, shared: SharedMemory) -> None:
        self.bound, self.runtime = bound, runtime
        size = bound.arena_bytes
        self.arena = self.allocated(partial(shared.arena, runtime, size), "temporaries", size)
        size = bound.staging.nbytes
        empty = np.zeros(size, np.uint8)  # gaps are copied, too
        self.staging = self.allocated(partial(runtime.to_device, empty), "small feeds and results", size)
        size = bound.constant_bytes
        self.constants = self.allocated(partial(runtime.allocate, size), "constants", size)
        for memory, placed in (
            (self.arena, bound.offsets), (self.staging, bound.staging.fields), (self.constants, bound.constants)
        ):  # fmt: skip
            for buffer, offset in placed:
                buffer.ptr = memory.data.ptr + offset

    def allocated(self, allocate: Callable[[], Any], what: str, nbytes: int = 0) -> Any:
        """What `allocate` returns; where memory runs out, an error with the peak and the largest values."""
        try:
            return allocate()
        except MemoryError as problem:
            blocks: dict[int, Value] = {}  # one value of each
            for buffer, value in zip(self.bound.buffers, self.bound.schedule.values, strict=True):
                blocks.setdefault(id(owner(buffer)), value)
            largest = sorted(blocks.values(), key=lambda v: -v.type.nbytes)[:3]
            size = f" of {nbytes / 2**20:.0f} MiB" if nbytes else ""
            raise OutOfMemoryError(
                f"out of memory on GPU {self.runtime.device.index}: no room for {what}{size}; the"
                f" temporaries of this program take {self.bound.arena_bytes / 2**20:.0f} MiB ({problem}); largest"
                " values: " + ", ".join(f"{v.name} {v.type} {v.type.nbytes / 2**20:.0f} MiB" for v in largest),
                hint="a smaller batch, or 16-bit types",
            ) from None
