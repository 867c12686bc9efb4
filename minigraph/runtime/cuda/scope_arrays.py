"""ScopeArrays: the arrays of a Scope as buffers of a plan."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import OutOfMemoryError, UninitializedError
from minigraph.errors.kinds import OTHER_VALUE
from minigraph.kernels import host_memory
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.program.scope import Scope

from .bind import BoundProgram
from .memory import PlanMemory
from .sizes import Siblings
from .values import SMALL

SPARE = 256 << 20  # bytes of the host that paged states leave
SETS_KEPT = 4  # sets of addresses whose bound calls are kept
_gathered: weakref.WeakKeyDictionary[Scope, dict[str, Any]] = weakref.WeakKeyDictionary()  # memory by first member


class ScopeArrays:
    """The arrays of the Scope in which a plan ran last.

    scope, version   that Scope, and its version then
    addresses        of the arrays;  number: short for them
    siblings         plans for other sizes: one of them may know that the arrays are ready for kernels
    """

    def __init__(self, bound: BoundProgram, runtime: Any, memory: PlanMemory, siblings: Siblings) -> None:
        self.bound, self.runtime, self.memory, self.siblings = bound, runtime, memory, siblings
        self.scope: Callable[[], Scope | None] = lambda: None
        self.addresses: tuple[int, ...] = ()
        self.version = self.number = -1
        self.numbers: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self.managed, self.paged = (frozenset(map(id, own)) for own in (bound.binder.managed, bound.binder.paged))
        self.hosts: dict[tuple[tuple[int, ...], np.dtype], tuple[np.ndarray, int]] = {}

    def fill(self, scope: Scope) -> None:
        """Write what `Scope.fill` left for the stream."""
        for name, value in list(scope.waiting.items()):
            if self.runtime.holds(scope.arrays[name]):
                self._set_scalar(scope, name, value)
                del scope.waiting[name]

    def _set_scalar(self, scope: Scope, name: str, value: float) -> None:
        """Fill a persistable variable with one number; nothing to do where it has it already."""
        array = scope.arrays[name]
        array_then, value_then = scope.filled.get(name, (None, 0.0))
        if array_then is not array or value_then != value:
            if array.nbytes > SMALL:
                self.runtime.write(array, np.full(array.shape, value, array.dtype))
            else:
                host, address = self.hosts.get((array.shape, array.dtype)) or self._host(array.shape, array.dtype)
                host[...] = value
                self.runtime.send(array.data.ptr, address, host.nbytes)
            scope.filled[name] = array, value

    def _host(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
        """An array of the host with its address; it serves all that one number fills."""
        host = np.empty(shape, dtype)
        return self.hosts.setdefault((shape, dtype), (host, host.ctypes.data))

    def bring(self, scope: Scope) -> None:
        """To the host what another GPU has: before this one's turn, since nobody waits for a turn while having one."""
        if self._alike(scope) is not None:
            return
        for name in self.bound.outside:
            array = scope.arrays.get(name)
            if array is not None and not isinstance(array, np.ndarray) and not self.runtime.holds(array):
                scope.on_host(name)

    def connect(self, scope: Scope) -> int | None:
        """Give the outside buffers the addresses of the Scope's arrays: for calls that are bound, and for fetches.

        Returns the number of a set of addresses that is forgotten for it.
        """
        outside, alike = self.bound.outside, self._alike(scope)
        if alike is not None:
            arrays, addresses = [scope.arrays[name] for name in outside], alike.addresses
        else:
            self._gather(scope)
            arrays = [self._from_scope(scope, name, buffer) for name, buffer in outside.items()]
            addresses = tuple(map(self.runtime.known_by, arrays))
        for buffer, array in zip(outside.values(), arrays, strict=True):
            buffer.ptr = array.data.ptr
        self.addresses, self.siblings.connected = addresses, weakref.ref(self)
        self.number = self.numbers.setdefault(addresses, max(self.numbers.values(), default=-1) + 1)
        self.numbers.move_to_end(addresses)
        gone = self.numbers.popitem(last=False)[1] if len(self.numbers) > SETS_KEPT else None
        self.scope, self.version = weakref.ref(scope), scope.version
        return gone

    def _alike(self, scope: Scope) -> ScopeArrays | None:
        """Those of a plan that found the Scope as it is now, where this one wants nothing else of its arrays."""
        other = self.siblings.connected()
        if other is None or other.scope() is not scope or other.version != scope.version:
            return None
        own, its = self.bound.outside, other.bound.outside
        same = list(own) == list(its) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(own.values(), its.values(), strict=True)
        )
        moved = self.managed or self.paged or other.managed or other.paged
        return other if same and not moved and not any(a.outside for a in self.bound.binder.arenas) else None

    def _gather(self, scope: Scope) -> None:
        """Bring the Scope's arrays together that kernels want side by side, unless they are."""
        names = {id(b): name for name, b in self.bound.outside.items()}
        for arena in (a for a in self.bound.binder.arenas if a.outside):
            members = [names[id(b)] for b in arena.members]
            arrays = [self._from_scope(scope, name, b) for name, b in zip(members, arena.members, strict=True)]
            kept = _gathered.setdefault(scope, {})
            memory = kept.get(members[0])
            together = memory is not None and memory.nbytes >= arena.base.nbytes and all(
                not a.nbytes or a.data.ptr == memory.data.ptr + offset
                for a, offset in zip(arrays, arena.offsets, strict=True)
            )  # fmt: skip
            if not together:
                nbytes = arena.base.nbytes
                memory = self.memory.allocated(partial(self.runtime.allocate, nbytes), "an arena of parameters", nbytes)
                views = self.runtime.gather(arrays, memory, arena.offsets)
                scope.arrays.update(zip(members, views, strict=True))
                kept[members[0]] = memory
            assert memory is not None
            arena.base.ptr = memory.data.ptr

    def _from_scope(self, scope: Scope, name: str, buffer: Buffer) -> Any:
        array = scope.arrays.get(name)
        if array is None:
            v = self.bound.program.vars[name]
            if name in self.bound.schedule.persistables:
                raise UninitializedError(
                    f"{v} has no value in the scope", site=v.site,
                    hint="run the startup program first: exe.run(startup_program)",
                )  # fmt: skip
            array = self.memory.allocated(partial(self.runtime.empty, buffer.shape, buffer.dtype), name, buffer.nbytes)
            scope.take(name, array)
        elif id(buffer) in self.managed:
            array = self.memory.allocated(partial(self.runtime.managed, array), name, buffer.nbytes)
            scope.arrays[name] = array
        elif id(buffer) in self.paged:
            array = scope.arrays[name] = self._paged(array, name)
        elif not self.runtime.holds(array) or self.runtime.lies_on_host(array):
            array = self.memory.allocated(partial(self.runtime.to_device, array), name, buffer.nbytes)
            scope.arrays[name] = array
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            v = self.bound.program.vars[name]
            here = f"{array.dtype}{list(array.shape)} in the scope"
            raise OTHER_VALUE(f"{v} is {here}, and {buffer.dtype}{list(buffer.shape)} in this run", site=v.site)
        return array

    def _paged(self, array: Any, name: str) -> Any:
        """A state in pinned memory of the host; an error where that has no room.

        Pinned pages cannot be swapped out, and Linux kills a process rather than refuse them: so this looks before.
        """
        if self.runtime.lies_on_host(array):
            return array
        try:
            left = host_memory.available()
            if left is not None and array.nbytes > left - SPARE:
                raise MemoryError(f"the host has {left / 2**20:.0f} MiB left")
            return self.runtime.paged(array)
        except MemoryError as problem:
            raise OutOfMemoryError(
                f"no pinned memory of the host for {name} of {array.nbytes / 2**20:.0f} MiB; the paged states of this"
                f" program take {self.bound.paged_bytes / 2**20:.0f} MiB ({problem})",
                hint="an optimizer with fewer states, or multi_tensor_mode='auto', which keeps them on the card",
            ) from None
