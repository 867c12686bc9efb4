"""CudaPlan: a Schedule bound to calls on a GPU, with one arena for all temporary values.

    Schedule -> a Buffer for each value -> bind functions record calls -> addresses -> bound calls

Binding needs shapes only; addresses come when the arena is allocated and the Scope's arrays are
known. A run is then: feeds into their buffers, the calls in order, fetched values out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from .errors import KernelError, MinigraphError, UninitializedError
from .kernels.cuda.binder import Binder, Copy, Device
from .kernels.cuda.buffer import Buffer
from .memory import Life, layout
from .program import Program
from .schedule import Schedule, Step
from .scope import Scope
from .types import TensorType


class BoundProgram:
    """A Schedule with Buffers and recorded calls; needs no GPU.

    outside   buffers whose memory the Scope owns, by name
    results   (buffer, name): temporary values that are copied to persistables at the end
    """

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: bool = False,
        device: Device | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.program = program
        self.schedule = Schedule(program, feeds, fetches, prune, shows_memory=_is_view)
        self.binder = Binder(device or Device(), seed=seed)
        self.outside: dict[str, Buffer] = {}
        self.results: list[tuple[Buffer, str]] = []
        self.buffers = self._make_buffers()
        for position, step in enumerate(self.schedule.steps):
            self._bind(position, step)
        for buffer, name in self.results:
            self.binder.calls.append(Copy(self.outside[name], buffer))
        self.offsets, self.arena_bytes = self._lay_out()

    def _make_buffers(self) -> list[Buffer]:
        values = self.schedule.values
        buffers = [Buffer(v.type.shape, v.type.dtype) for v in values]
        for name, index in self.schedule.persistables.items():
            self.outside[name] = buffers[index]
        writers: dict[str, list[int]] = {}
        for step in self.schedule.steps:
            for written, updated in step.updates:
                buffers[written] = buffers[updated]
            for index, name in step.stored:
                writers.setdefault(name, []).append(index)
        for name, indices in writers.items():
            if name not in self.outside and len(indices) == 1:  # written once, never read before: in its place
                self.outside[name] = buffers[indices[0]]
                continue
            own = self.outside.setdefault(name, Buffer(values[indices[-1]].type.shape, values[indices[-1]].type.dtype))
            if buffers[indices[-1]] is not own:
                self.results.append((buffers[indices[-1]], name))
        for index, value in enumerate(values):
            if value.root != index:
                buffers[index] = buffers[value.root].view(value.type.shape, value.type.dtype)
        return buffers

    def _bind(self, position: int, step: Step) -> None:
        opdef = step.op.opdef
        self.binder.begin(position, step.op.number, opdef.reference)
        ins = {s.name: self._buffer(i) for s, i in zip(opdef.inputs, step.inputs, strict=True)}
        outs = {s.name: self._buffer(i) for s, i in zip(opdef.outputs, step.outputs, strict=True)}
        try:
            opdef.gpu_bind(self.binder, ins, outs, step.op.attrs)
        except MinigraphError as error:
            raise error.at(step.op.call(), step.op.site) from None

    def _buffer(self, index: Any) -> Any:
        if isinstance(index, list):
            return [self._buffer(i) for i in index]
        if isinstance(index, TensorType):
            return Buffer(index.shape, index.dtype)
        return None if index is None else self.buffers[index]

    def _lay_out(self) -> tuple[list[tuple[Buffer, int]], int]:
        """(buffer, offset in the arena) for everything that the Scope does not own, and the arena's size."""
        owned = {id(b) for b in self.outside.values()}
        end = len(self.schedule.steps)
        kept = {id(b) for b, _ in self.results}
        blocks: list[tuple[Buffer, Life]] = [
            (b, Life(b.nbytes, -1, end)) for b in (self.binder.fault, self.binder.counter)
        ]
        for index, value in enumerate(self.schedule.values):
            buffer = self.buffers[index]
            if id(buffer) in owned or buffer.owner is not None:
                continue
            last = end if id(buffer) in kept else max(value.last_use, value.producer)
            blocks.append((buffer, Life(buffer.nbytes, value.producer, last)))
        for position, scratches in enumerate(self.binder.scratches):
            blocks += [(b, Life(b.nbytes, position, position)) for b in scratches]
        offsets, size = layout([life for _, life in blocks])
        return [(b, o) for (b, _), o in zip(blocks, offsets, strict=True)], size


class CudaPlan:
    """A BoundProgram on one GPU."""

    def __init__(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: bool,
        seed: int, runtime: Any, tf32: bool,
    ) -> None:  # fmt: skip
        self.runtime, self.tf32 = runtime, tf32
        self.bound = BoundProgram(program, feeds, fetches, prune, self.runtime.device, seed)
        self.schedule, self.program = self.bound.schedule, program
        self.arena = self._allocated(
            partial(self.runtime.allocate, self.bound.arena_bytes), "temporaries", self.bound.arena_bytes
        )
        for buffer, offset in self.bound.offsets:
            buffer.ptr = self.arena.data.ptr + offset
        self.fault = np.zeros(4, np.int64)
        self.runtime.upload(self.fault, self.bound.binder.fault)
        self.counts_runs = any("rng" in step.op.opdef.injected for step in self.schedule.steps)
        self.addresses: tuple[int, ...] | None = None
        self.calls: list[Callable[[], None]] = []

    def _allocated(self, allocate: Callable[[], Any], what: str, nbytes: int) -> Any:
        """What `allocate` returns; where memory runs out, an error with the peak and the largest values."""
        try:
            return allocate()
        except MemoryError as problem:
            largest = sorted(self.schedule.values, key=lambda v: -v.type.nbytes)[:3]
            raise KernelError(
                f"out of memory on GPU {self.runtime.device.index}: {what} needs {nbytes / 2**20:.0f} MiB, the"
                f" temporaries of this program {self.bound.arena_bytes / 2**20:.0f} MiB ({problem}); largest values: "
                + ", ".join(f"{v.name} {v.type} {v.type.nbytes / 2**20:.0f} MiB" for v in largest),
                hint="a smaller batch, or 16-bit types",
            ) from None

    def set_scalar(self, scope: Scope, name: str, value: float) -> None:
        """Fill a persistable variable with one number."""
        array = scope.arrays[name]
        if isinstance(array, np.ndarray):
            array[...] = value
        else:
            self.runtime.write(array, np.full(array.shape, value, array.dtype))

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Run all calls; without fetches this does not wait for the GPU."""
        self._connect(scope)
        for name, index in self.schedule.feeds.items():
            self.runtime.upload(feeds[name], self.bound.buffers[index])
        if self.counts_runs:
            self.runtime.upload(np.array([scope.steps[self.program.origin]]), self.bound.binder.counter)
        scope.steps[self.program.origin] += 1
        for call in self.calls:
            call()
        if not self.schedule.fetched:
            return []
        fetched = [self.bound.buffers[i] for i in self.schedule.fetched]
        self.runtime.download(self.bound.binder.fault, self.fault)
        results = [self.runtime.fetch(b, return_numpy) for b in fetched]
        self.runtime.stream.synchronize()
        self._raise_fault()
        return results

    def _connect(self, scope: Scope) -> None:
        """Give the outside buffers the addresses of the Scope's arrays; bind calls when they changed."""
        arrays = [self._from_scope(scope, name, buffer) for name, buffer in self.bound.outside.items()]
        addresses = tuple(a.data.ptr for a in arrays)
        if addresses == self.addresses:
            return
        for buffer, address in zip(self.bound.outside.values(), addresses, strict=True):
            buffer.ptr = address
        self.calls = self.runtime.runnable(self.bound.binder, self.tf32)
        self.addresses = addresses
        steps = self.schedule.steps
        self.program.notes = [(steps[i].op, text) for i, text in self.bound.binder.notes]

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
        elif isinstance(array, np.ndarray) or not self.runtime.holds(array):
            array = self._allocated(partial(self.runtime.to_device, array), name, buffer.nbytes)
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            v = self.program.vars[name]
            raise UninitializedError(f"{v} is {array.dtype}{list(array.shape)} in the scope", site=v.site)
        scope.arrays[name] = array
        return array

    def _raise_fault(self) -> None:
        """Turn what a kernel reported into an error that names its operator."""
        if not self.fault[0]:
            return
        _, step, value, row = (int(x) for x in self.fault)
        self.fault[:] = 0
        self.runtime.upload(self.fault, self.bound.binder.fault)
        op = self.schedule.steps[step].op
        raise KernelError(f"value {value} at row {row} is out of range", call=op.call(), site=op.site)


def _is_view(op_type: Any) -> bool:
    """On the GPU all values are contiguous: only a change of shape shows the same memory."""
    return getattr(op_type.gpu_bind, "__name__", "") == "view"
