"""The memory of a plan: an arena of temporaries, the staging buffer, constants."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from minigraph.errors import OutOfMemoryError
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.kernels.one_piece import rounded
from minigraph.program import Program
from minigraph.runtime.schedule import Value

from .bind import BoundProgram
from .pinned import Pinned
from .sizes import Siblings


class SharedArena:
    """Memory of temporaries for plans that never run at the same time.

    array   None until a plan wants it;  made: how often it was made
    """

    def __init__(self) -> None:
        self.array: Any = None
        self.made = 0

    def reach(self, runtime: Any, nbytes: int) -> Any:
        """The array, of at least so many bytes; a larger one where that takes it, once the old one is given back."""
        if self.array is None or self.array.nbytes < nbytes:
            if self.array is not None:
                runtime.stream.synchronize()  # runs on their way still use it
                self.array = None
                runtime.give_back()
            self.array = runtime.allocate(nbytes)
            self.made += 1
        return self.array


class SharedMemory:
    """What the plans of one executor share: an arena, which goes with the last of them, pinned memory of the host, and
    what those of one program know of each other."""

    def __init__(self) -> None:
        self.pinned = Pinned()
        self._siblings: WeakKeyDictionary[Program, tuple[Any, Siblings]] = WeakKeyDictionary()
        self._arena: Callable[[], SharedArena | None] = lambda: None

    def siblings(self, program: Program, facts: Any) -> Siblings:
        """What plans of this version of a program, with these facts, know until now."""
        facts = program.version, facts
        known = self._siblings.get(program)
        if known is None or known[0] != facts:
            known = self._siblings[program] = facts, Siblings()
        return known[1]

    @property
    def room(self) -> int:
        """Bytes that the arena has now."""
        arena = self._arena()
        return 0 if arena is None or arena.array is None else arena.array.nbytes

    def arena(self) -> SharedArena:
        """That of the plans there are."""
        arena = self._arena()
        if arena is None:
            arena = SharedArena()
            self._arena = weakref.ref(arena)
        return arena


class PlanMemory:
    """Places of all buffers but those that a Scope owns."""

    def __init__(self, bound: BoundProgram, runtime: Any, shared: SharedMemory) -> None:
        self.bound, self.runtime, self.arena, self.made = bound, runtime, shared.arena(), 0
        self.follow()
        own = rounded(bound.staging.nbytes)
        size = own + bound.constant_bytes
        self.staging = self.allocated(partial(runtime.zeros, size), "small feeds and results, and constants", size)
        start = self.staging.data.ptr  # the constants lie behind it
        for first, placed in ((start, bound.staging.fields), (start + own, bound.constants)):
            for buffer, offset in placed:
                buffer.ptr = first + offset

    def follow(self) -> bool:
        """Let temporaries lie where the arena lies now; whether that is elsewhere than before."""
        arena, size = self.arena, self.bound.arena_bytes
        if self.made == arena.made and arena.array is not None:
            return False
        memory = self.allocated(partial(arena.reach, self.runtime, size), "temporaries", size)
        self.made = arena.made
        for buffer, offset in self.bound.offsets:
            buffer.ptr = memory.data.ptr + offset
        return True

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
