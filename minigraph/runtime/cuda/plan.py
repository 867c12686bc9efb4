"""CudaPlan: a BoundProgram on one GPU.

    run 1   feeds into their buffers, the calls in order, fetched values out
    run 2   the calls are captured into a CUDA graph
    run n   feeds, one launch, fetched values; without fetches the host does not wait

Addresses are those of the plan's memory (memory.py), whose arena moves when a larger plan comes, and of the Scope's
arrays (scope_arrays.py). Where these change, calls are bound anew; the bindings of the last few sets of arrays are
kept. feed.py brings the feeds, fetch.py results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from minigraph.errors import KernelError, OutOfMemoryError
from minigraph.kernels.cuda.record.call import Segment
from minigraph.kernels.groups import present
from minigraph.program import Program
from minigraph.program.garbage import without_collection
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope
from minigraph.runtime.options import DEFAULT, RunOptions
from minigraph.runtime.profiling import Listener, TimedRun, listener, types_of
from minigraph.runtime.undo import check_whole, why
from minigraph.types import TensorType

from .bind import bind_program
from .faults import Faults
from .feed import PLACES_KEPT, Feeding, Places, Route
from .fetch import Fetching
from .inspect.profile import timed_calls
from .memory import PlanMemory, SharedMemory
from .scope_arrays import ScopeArrays

ANY_ROOM = 1 << 62  # bytes: no order of calls is looked for that needs less
SHORT = 256 << 20  # bytes of all that a short step goes through: what lies between two kernels is much of its time


class Binding:
    """The calls for one set of the Scope's arrays and places of feeds, the tables that they read, and their graph."""

    def __init__(self, steps: Sequence[Any], route: Route, tables: Sequence[Any] = ()) -> None:
        self.steps, self.route, self.tables = steps, route, tables
        self.launch: Callable[[], None] | None = None
        self.ran = False


class CudaPlan:
    """Steps and memory of `program` on one GPU for feeds of the given types.

    seconds  what it has cost the host until now: making it, as whoever makes it measures; binding and capturing calls
    """

    seconds = 0.0

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune,
        seed: int, runtime: Any, tf32: bool, options: RunOptions = DEFAULT, shared: SharedMemory | None = None,
    ) -> None:  # fmt: skip
        self.runtime, self.tf32, self.options = runtime, tf32, options
        with runtime.turn:  # autotune measures alone
            settling = runtime.compiling(runtime.settling(tf32, options.autotune))
            self.shared = shared or SharedMemory()
            self.siblings = self.shared.siblings(program, (prune, seed, options, tf32))
            self.bind_for = partial(
                bind_program, program, fetches=tuple(fetches), prune=prune, device=runtime.device, seed=seed,
                options=options, settling=settling, tf32=tf32, siblings=self.siblings,
            )  # fmt: skip
            self.bound = self.bind_for(feeds, room=self.shared.room)
            self.siblings.met(feeds)
            self.schedule, self.program = self.bound.schedule, program
            self.memory = PlanMemory(self.bound, runtime, self.shared)
            self.siblings.keep(self.schedule, self.bound.layout)  # there is room for it
            self.faults = Faults(self.bound, runtime, self.memory.staging)
            counter = self.bound.binder.counter
            counts_runs = counter in self.bound.units.blocks.values()
            address, pinned = self.memory.staging.data.ptr, self.shared.pinned
            self.feeding = Feeding(self.bound, runtime, address, counts_runs, pinned)
            self.prepare_fetches()
        self.arrays = ScopeArrays(self.bound, runtime, self.memory, self.siblings)
        self.constants_are_computed = False
        self.short = self.bound.arena_bytes + sum(b.nbytes for b in self.bound.outside.values()) <= SHORT
        self.watched: Any = None  # the set of a Scope in which the faults stand
        self.together = present().size > 1 and any(call.ordered for call in self.bound.binder.calls)
        self.stored = frozenset(name for step in self.schedule.steps for _, name in step.stored)
        self.refusal = None if options.capture else "allow_cuda_graph_capture is off"
        host = self.bound.not_captured
        if host is not None and options.capture:
            self.refusal = host[1]
            self.bound.binder.notes.append(host)
        self.bindings: dict[tuple[int, Places], Binding] = {}
        self.binding = Binding((), Route((), ()))  # that of the latest run
        self.places = {position: i for i, position in enumerate(self.bound.order)}  # of calls, in this order

    def prepare_fetches(self) -> None:
        """Ready to receive fetched values from where their buffers lie now."""
        self.fetching = Fetching(self.bound, self.runtime, self.memory, self.faults, self.shared.pinned)

    @property
    def arena(self) -> Any:
        """The memory of temporaries, which other plans use between two runs."""
        return self.memory.arena.array

    @property
    def calls(self) -> Sequence[Callable[[], None]]:
        """The bound calls in order."""
        return self.binding.steps

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Run all calls; without fetches this does not wait for the GPU."""
        if scope.torn:
            check_whole(scope, self.schedule.persistables)
        scope.separate()
        arrays, origin = self.arrays, self.program.origin
        anew = arrays.scope() is not scope or arrays.version != scope.version
        if anew:
            arrays.bring(scope)
        with self.runtime.turn:
            if self.memory.follow():
                self.bindings.clear()
                self.feeding.settle()
            if scope.waiting:
                arrays.fill(scope)
            if anew:
                self._forget(arrays.connect(scope))
            places = self.feeding.places(feeds)
            binding = self.binding = self.bindings.get((arrays.number, places)) or self._binding(places)
            runs = scope.steps.get(origin, 0)
            self.feeding.send(feeds, runs, binding.route)
            self._launch(binding, scope)
            self.feeding.end(feeds, binding.route)
            if scope.filled and not self.stored.isdisjoint(scope.filled):
                scope.filled = {name: f for name, f in scope.filled.items() if name not in self.stored}
            try:
                results = self.fetching.receive(return_numpy) if self.fetching.values else []
            except KernelError as problem:
                if not isinstance(problem, OutOfMemoryError):  # a fault: nothing is updated, it can be repeated
                    scope.steps[origin] = runs
                raise
        if self.fetching.values:
            scope.look_at_faults()
        elif self.watched is not scope.faults and self.bound.binder.wrong:
            self.watched = scope.watch(self.faults)
        return results

    def _forget(self, number: int | None) -> None:
        """Drop what is bound to a set of the Scope's arrays."""
        for key in [key for key in self.bindings if key[0] == number]:
            del self.bindings[key]

    def _launch(self, binding: Binding, scope: Scope) -> None:
        """All calls, and the run is counted; where this ends in the middle, what they write is uncertain."""
        try:
            told = listener()
            if told is not None:
                self._profiled(binding, told)
            elif binding.launch is not None:
                binding.launch()
            else:
                self._first_runs(binding)
            if self.together:
                self.runtime.handed_over()
            scope.steps[self.program.origin] += 1
        except BaseException as problem:
            scope.tear(self.stored, why(problem, self.program.name))
            raise
        for name in self.stored if scope.torn else ():
            scope.torn.pop(name, None)

    def _first_runs(self, binding: Binding) -> None:
        """The calls one by one; in the second run as a graph, where that can be."""
        if binding.ran and self.refusal is None:
            start = time.perf_counter()
            with without_collection():  # an old plan's graph cannot be given back during a capture
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

    def _profiled(self, binding: Binding, told: Listener) -> None:
        """The calls one by one, with their times; the graph stays as it is."""
        begin = time.perf_counter()
        calls = timed_calls(self.bound, binding.steps, self.runtime)
        binding.ran = True
        peaks, device = partial(self.runtime.peaks, self.tf32), f"GPU {self.runtime.device.index}"
        told(TimedRun(self.program, device, peaks, begin, types_of(self.schedule), calls))

    def _parts(self, steps: Sequence[Any]) -> list[Segment]:
        """The steps of each call in order, and the stream of the graph on which they run."""
        made: dict[int, list[Any]] = {}
        for step in steps:
            made.setdefault(step.position, []).append(step)
        return [
            Segment(made.get(position, []), stream, [self.places[w] for w in waits])
            for position, stream, waits in self.bound.streams()
        ]

    def _binding(self, places: Places) -> Binding:
        """The calls for the Scope's arrays, and for feeds that are read where they lie if they often lay there."""
        own = self.arrays.number
        key = own, places
        if key not in self.bindings and any(places):
            room = sum(number == own for number, _ in self.bindings) <= PLACES_KEPT
            if not (room and self.feeding.come_often(key)):
                key = own, self.feeding.copied
        if key not in self.bindings:
            start = time.perf_counter()
            with without_collection():
                self.bindings[key] = self.memory.allocated(partial(self._bind, key[1]), "what its kernels read")
            self.seconds += time.perf_counter() - start
        return self.bindings[key]

    def _bind(self, places: Places) -> Binding:
        compiled = self.runtime.compiled
        with self.feeding.moved(places):
            steps = self.runtime.runnable(self.bound.binder, self.tf32)
        if self.runtime.compiled > compiled and not self.options.autotune:  # which would measure
            self.runtime.compile(self.siblings.kernels_ahead(partial(self.bind_for, room=ANY_ROOM)))
        for step in steps:
            if step.position in self.bound.once and not self.constants_are_computed:
                step()
        self.constants_are_computed = True
        steps = sorted((s for s in steps if s.position in self.places), key=lambda s: self.places[s.position])
        self._tell()
        return Binding(steps, self.feeding.route(places), [t.memory for t in self.bound.binder.tables])

    def _tell(self) -> None:
        """What `explain` shows of the latest plan."""
        self.program.notes = [(self.schedule.steps[i].op, text) for i, text in self.bound.binder.notes]
