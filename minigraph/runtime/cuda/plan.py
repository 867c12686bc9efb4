"""CudaPlan: a BoundProgram on one GPU.

    run 1   feeds into their buffers, the calls in order, fetched values out
    run 2   the calls are captured into a CUDA graph
    run n   feeds, one launch, fetched values; without fetches the host does not wait

Addresses are those of the arena, the mailbox and the Scope's arrays. Where the Scope's arrays change,
calls are bound anew; the bindings of the last few sets of arrays are kept. feed.py brings the feeds.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import KernelError, OutOfMemoryError, UninitializedError
from minigraph.kernels.cuda.record.buffer import Buffer, owner
from minigraph.kernels.cuda.record.call import Segment
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope
from minigraph.runtime.options import DEFAULT, RunOptions
from minigraph.runtime.schedule import Value
from minigraph.runtime.undo import check_whole, why
from minigraph.types import TensorType

from .bind import SMALL, BoundProgram
from .bind_checked import program_class
from .feed import PLACES_KEPT, Feeding, Places, Route

BINDINGS_KEPT = 4
SHORT = 256 << 20  # bytes of all that a short step goes through: what lies between two kernels is much of its time
_gathered: weakref.WeakKeyDictionary[Scope, dict[str, Any]] = weakref.WeakKeyDictionary()  # memory by first member


class Arenas:
    """Memory of temporaries, shared by plans that never run at the same time; it goes with the last of them."""

    def __init__(self) -> None:
        self.arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def take(self, runtime: Any, nbytes: int) -> Any:
        """The smallest one that suffices, or a new one."""
        fitting = [a for a in self.arrays.values() if a.nbytes >= nbytes]
        if fitting:
            return min(fitting, key=lambda a: a.nbytes)
        made = self.arrays[nbytes] = runtime.allocate(nbytes)
        return made


class Binding:
    """The calls for one set of the Scope's arrays and places of feeds, the tables that they read, and their graph."""

    def __init__(self, steps: Sequence[Any], route: Route, tables: Sequence[Any] = ()) -> None:
        self.steps, self.route, self.tables = steps, route, tables
        self.launch: Callable[[], None] | None = None
        self.ran = False


class Faults:
    """The first value that a kernel of a plan could not take since somebody looked.

    After runs without fetches nobody has: the Scope that they changed keeps this, not the plan, until somebody does.
    """

    def __init__(self, bound: BoundProgram, runtime: Any, memory: Any) -> None:
        """`memory` holds the record."""
        self.runtime, self.memory = runtime, memory
        self.record, self.wrong, self.schedule = bound.binder.fault, bound.binder.wrong, bound.schedule
        self.checks = bound.checks
        self.clear()

    def clear(self) -> None:
        """There is none."""
        self.runtime.upload(np.zeros(self.record.shape, self.record.dtype), self.record)

    def check(self) -> None:
        """Wait for all runs so far; an error where one had a fault."""
        with self.runtime.turn:
            found = self.runtime.fetch(self.record, as_numpy=True)
            self.runtime.stream.synchronize()
            self.judge(found, "a run before this call had it; runs without fetches do not wait for the GPU")

    def judge(self, record: np.ndarray, hint: str | None = None) -> None:
        """Turn what a kernel reported into an error that names its operator, the first one of the program."""
        refused = self.checks.refused(record) if self.checks is not None else None
        if self.checks is not None and refused is not None and not (record[0] and record[1] <= refused):
            self.clear()
            raise self.checks.error(record, hint)
        if record[0]:
            number, value, row = (int(x) for x in record[1:4])
            self.clear()
            step = self.schedule.steps[number]
            raise KernelError(
                f"value {value} at row {row} is {self.wrong[number]}", call=self.schedule.call(step), site=step.op.site,
                hint=hint,
            )  # fmt: skip


class CudaPlan:
    """Steps and memory of `program` on one GPU for feeds of the given types.

    seconds  what it has cost the host until now: making it, as whoever makes it measures; binding and capturing calls
    """

    seconds = 0.0

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune,
        seed: int, runtime: Any, tf32: bool, options: RunOptions = DEFAULT, arenas: Arenas | None = None,
    ) -> None:  # fmt: skip
        self.runtime, self.tf32, self.options = runtime, tf32, options
        with runtime.turn:  # autotune measures alone
            settling = runtime.settling(tf32, options.autotune)
            kind = program_class(options)
            self.bound = kind(program, feeds, fetches, prune, runtime.device, seed, options, settling, tf32)
            self.schedule, self.program = self.bound.schedule, program
            self._take_memory(arenas or Arenas())
            self.faults = Faults(self.bound, runtime, self.mailbox)
            counter = self.bound.binder.counter
            self.counts_runs = any(b is counter for call in self.bound.binder.calls for b in call.buffers())
            self.feeding = Feeding(self.bound, runtime, self.mailbox.data.ptr, self.counts_runs)
            self._prepare_fetches()
        self.constants_are_computed = False
        self.short = self.bound.arena_bytes + sum(b.nbytes for b in self.bound.outside.values()) <= SHORT
        self.watched: Any = None  # the set of a Scope in which the faults stand
        self.stored = frozenset(name for step in self.schedule.steps for _, name in step.stored)
        self.paged = frozenset(id(b) for b in self.bound.binder.paged)
        self.refusal = None if options.capture else "allow_cuda_graph_capture is off"
        host = self.bound.not_captured()
        if host is not None and options.capture:
            self.refusal = host[1]
            self.bound.binder.notes.append(host)
        self.bindings: dict[tuple[int, Places], Binding] = {}
        self.binding = Binding((), Route((), ()))  # that of the latest run
        self.turn = {position: i for i, position in enumerate(self.bound.order)}
        self.numbers: OrderedDict[tuple[int, ...], int] = OrderedDict()  # short names for addresses of outside buffers
        self.number = -1  # that of the latest run
        self.bound_to: Callable[[], Scope | None] = lambda: None  # the Scope whose arrays these are
        self.bound_version = -1  # and its version
        self.hosts: dict[tuple[tuple[int, ...], np.dtype], tuple[np.ndarray, int]] = {}

    def _take_memory(self, arenas: Arenas) -> None:
        """Places of all buffers but those outside."""
        runtime, size = self.runtime, self.bound.arena_bytes
        self.arena = self._allocated(partial(arenas.take, runtime, size), "temporaries", size)
        size = self.bound.mailbox_bytes
        empty = np.zeros(size, np.uint8)  # gaps are copied, too
        self.mailbox = self._allocated(partial(runtime.to_device, empty), "small feeds and results", size)
        size = self.bound.constant_bytes
        self.constants = self._allocated(partial(runtime.allocate, size), "constants", size)
        for memory, placed in (
            (self.arena, self.bound.offsets), (self.mailbox, self.bound.letters),
            (self.constants, self.bound.constants),
        ):  # fmt: skip
            for buffer, offset in placed:
                buffer.ptr = memory.data.ptr + offset

    def _prepare_fetches(self) -> None:
        """Pinned memory for the outbox: the fault record and the small fetched values."""
        letters, start = self.bound.letters, self.bound.inbox_bytes
        self.outbox = self.runtime.pinned(self.bound.mailbox_bytes - start)
        fault = self.bound.binder.fault.nbytes
        places = self.outbox.ctypes.data, self.mailbox.data.ptr + start
        self.outbox_copy, self.fault_copy = (*places, self.outbox.nbytes), (*places, fault)
        self.reported = self.outbox[:fault].view(np.int64)
        at = {id(b): offset - start for b, offset in letters if offset >= start}
        self.fetched: list[tuple[Buffer, np.ndarray | None]] = []
        for index in self.schedule.fetched:
            b = self.bound.buffers[index]
            place = at.get(id(b))
            seen = None if place is None else self.outbox[place : place + b.nbytes].view(b.dtype).reshape(b.shape)
            self.fetched.append((b, seen))

    def _allocated(self, allocate: Callable[[], Any], what: str, nbytes: int = 0) -> Any:
        """What `allocate` returns; where memory runs out, an error with the peak and the largest values."""
        try:
            return allocate()
        except MemoryError as problem:
            blocks: dict[int, Value] = {}  # one value of each
            for buffer, value in zip(self.bound.buffers, self.schedule.values, strict=True):
                blocks.setdefault(id(owner(buffer)), value)
            largest = sorted(blocks.values(), key=lambda v: -v.type.nbytes)[:3]
            size = f" of {nbytes / 2**20:.0f} MiB" if nbytes else ""
            raise OutOfMemoryError(
                f"out of memory on GPU {self.runtime.device.index}: no room for {what}{size}; the"
                f" temporaries of this program take {self.bound.arena_bytes / 2**20:.0f} MiB ({problem}); largest"
                " values: " + ", ".join(f"{v.name} {v.type} {v.type.nbytes / 2**20:.0f} MiB" for v in largest),
                hint="a smaller batch, or 16-bit types",
            ) from None

    @property
    def calls(self) -> Sequence[Callable[[], None]]:
        """The bound calls in order."""
        return self.binding.steps

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

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Run all calls; without fetches this does not wait for the GPU."""
        if scope.torn:
            check_whole(scope, self.schedule.persistables)
        scope.separate()
        anew = self.bound_to() is not scope or self.bound_version != scope.version
        if anew:
            self._bring(scope)
        with self.runtime.turn:
            if scope.waiting:
                self._fill(scope)
            if anew:
                self._connect(scope)
            places = self.feeding.places(feeds)
            binding = self.binding = self.bindings.get((self.number, places)) or self._binding(places)
            self.feeding.send(feeds, scope.steps[self.program.origin], binding.route)
            self._launch(binding, scope)
            self.feeding.end(feeds, binding.route)
            if scope.filled and not self.stored.isdisjoint(scope.filled):
                scope.filled = {name: f for name, f in scope.filled.items() if name not in self.stored}
            results = self._receive(return_numpy) if self.fetched else []
        if self.fetched:
            scope.look_at_faults()
        elif self.watched is not scope.faults and self.bound.binder.wrong:
            self.watched = scope.watch(self.faults)
        scope.steps[self.program.origin] += 1  # here, so that a run that failed can be repeated with the same numbers
        return results

    def _launch(self, binding: Binding, scope: Scope) -> None:
        """All calls; where they end in the middle, what they write into the Scope is uncertain."""
        try:
            if binding.launch is not None:
                binding.launch()
            else:
                self._first_runs(binding)
        except BaseException as problem:
            scope.tear(self.stored, why(problem, self.program.name))
            raise
        for name in self.stored if scope.torn else ():
            scope.torn.pop(name, None)

    def _fill(self, scope: Scope) -> None:
        """Write what `Scope.fill` left for the stream."""
        for name, value in list(scope.waiting.items()):
            if self.runtime.holds(scope.arrays[name]):
                self._set_scalar(scope, name, value)
                del scope.waiting[name]

    def _first_runs(self, binding: Binding) -> None:
        """The calls one by one; in the second run as a graph, where that can be."""
        if binding.ran and self.refusal is None:
            start = time.perf_counter()
            made = self.runtime.captured(self._parts(binding.steps), loosened=self.short)
            self.seconds += time.perf_counter() - start
            if not isinstance(made, str):
                binding.launch = made
                return made()
            self.refusal = f"no CUDA graph of this program: {made}"
            self.bound.binder.notes.append((0, self.refusal))
            self._tell()
        for step in binding.steps:
            step()
        binding.ran = True

    def _parts(self, steps: Sequence[Any]) -> list[Segment]:
        """The steps of each call in order, and the lane of the graph on which they run."""
        made: dict[int, list[Any]] = {}
        for step in steps:
            made.setdefault(step.position, []).append(step)
        return [Segment(made.get(t.position, []), t.lane, [self.turn[w] for w in t.waits]) for t in self.bound.turns()]

    def _receive(self, return_numpy: bool) -> list[Any]:
        """The fetched values, once the GPU has computed them."""
        self.runtime.receive(*(self.outbox_copy if return_numpy else self.fault_copy))
        found = [
            None if return_numpy and seen is not None
            else self._allocated(partial(self.runtime.fetch, b, return_numpy), "a fetched value", b.nbytes)
            for b, seen in self.fetched
        ]
        self.runtime.stream.synchronize()
        self.faults.judge(self.reported)
        return [
            seen.copy() if f is None and seen is not None else f
            for f, (_, seen) in zip(found, self.fetched, strict=True)
        ]

    def _bring(self, scope: Scope) -> None:
        """To the host what another GPU has: before this one's turn, since nobody waits for a turn while having one."""
        for name in self.bound.outside:
            array = scope.arrays.get(name)
            if array is not None and not isinstance(array, np.ndarray) and not self.runtime.holds(array):
                scope.on_host(name)

    def _connect(self, scope: Scope) -> None:
        """Give the outside buffers the addresses of the Scope's arrays: for calls that are bound, and for fetches."""
        self._gather(scope)
        arrays = [self._from_scope(scope, name, buffer) for name, buffer in self.bound.outside.items()]
        for buffer, array in zip(self.bound.outside.values(), arrays, strict=True):
            buffer.ptr = array.data.ptr
        addresses = tuple(a.data.ptr for a in arrays)
        self.number = self.numbers.setdefault(addresses, max(self.numbers.values(), default=-1) + 1)
        self.numbers.move_to_end(addresses)
        if len(self.numbers) > BINDINGS_KEPT:
            _, gone = self.numbers.popitem(last=False)
            for key in [key for key in self.bindings if key[0] == gone]:
                del self.bindings[key]
        self.bound_to, self.bound_version = weakref.ref(scope), scope.version

    def _binding(self, places: Places) -> Binding:
        """The calls for the Scope's arrays, and for feeds that are read where they lie if they often lay there."""
        key = self.number, places
        if key not in self.bindings and any(places):
            room = sum(number == self.number for number, _ in self.bindings) <= PLACES_KEPT
            if not (room and self.feeding.come_often(key)):
                key = self.number, self.feeding.copied
        if key not in self.bindings:
            start = time.perf_counter()
            self.bindings[key] = self._allocated(partial(self._bind, key[1]), "what its kernels read")
            self.seconds += time.perf_counter() - start
        return self.bindings[key]

    def _bind(self, places: Places) -> Binding:
        with self.feeding.moved(places):
            steps = self.runtime.runnable(self.bound.binder, self.tf32)
        for step in steps:
            if step.position in self.bound.once and not self.constants_are_computed:
                step()
        self.constants_are_computed = True
        steps = sorted((s for s in steps if s.position in self.turn), key=lambda s: self.turn[s.position])
        self._tell()
        return Binding(steps, self.feeding.route(places), [t.memory for t in self.bound.binder.tables])

    def _tell(self) -> None:
        """What `explain` shows of the latest plan."""
        self.program.notes = [(self.schedule.steps[i].op, text) for i, text in self.bound.binder.notes]

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
                memory = self._allocated(partial(self.runtime.allocate, nbytes), "an arena of parameters", nbytes)
                views = self.runtime.gather(arrays, memory, arena.offsets)
                scope.arrays.update(zip(members, views, strict=True))
                kept[members[0]] = memory
            assert memory is not None
            arena.base.ptr = memory.data.ptr

    def _from_scope(self, scope: Scope, name: str, buffer: Buffer) -> Any:
        array = scope.arrays.get(name)
        if array is None:
            v = self.program.vars[name]
            if name in self.schedule.persistables:
                raise UninitializedError(
                    f"{v} has no value in the scope", site=v.site,
                    hint="run the startup program first: exe.run(startup_program)",
                )  # fmt: skip
            array = self._allocated(partial(self.runtime.empty, buffer.shape, buffer.dtype), name, buffer.nbytes)
            scope.take(name, array)
        elif id(buffer) in self.paged:
            array = self._allocated(partial(self.runtime.managed, array), name, buffer.nbytes)
            scope.arrays[name] = array
        elif not self.runtime.holds(array):
            array = self._allocated(partial(self.runtime.to_device, array), name, buffer.nbytes)
            scope.arrays[name] = array
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            v = self.program.vars[name]
            here = f"{array.dtype}{list(array.shape)} in the scope"
            raise UninitializedError(f"{v} is {here}, and {buffer.dtype}{list(buffer.shape)} in this run", site=v.site)
        return array
