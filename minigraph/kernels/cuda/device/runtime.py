"""The device side: memory, compiled modules, and bound calls made runnable. Needs a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublasLt as lt

from minigraph.errors import PlaceError
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Call, RunnableCall, Segment, Unsupported
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.kernels.cuda.record.compile import compile_all, compile_source
from minigraph.kernels.cuda.record.workspace import Algorithm, Note, Settling, settled, settling

from .autotune import Tuner, lies_as_assumed, question, unplaced
from .cublaslt import LtPlan
from .graph import CapturedGraph, CaptureError
from .lab import Lab
from .launcher import Launcher
from .streams import StreamTurn

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind
PROBED_ROWS = 1024
STATIC_SHARED = 40 * 1024  # more must be asked for, what a kernel declares included


class Runtime:
    """One GPU: its cuBLASLt handle, its loaded modules.

    turn     `with runtime.turn:` around whatever gives work to the GPU, see streams.py
    target   the stream of calls that are made now
    """

    def __init__(self, index: int) -> None:
        with cupy.cuda.Device(index):
            major, minor = divmod(int(cupy.cuda.Device(index).compute_capability), 10)
            arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
            facts = cupy.cuda.runtime.getDeviceProperties(index)
            arguments = 32764 if cupy.cuda.runtime.driverGetVersion() >= 12010 else 4096
            self.device = Device(
                arch, facts["multiProcessorCount"], index, facts["sharedMemPerBlockOptin"], arguments
            )
            self.lanes = [cupy.cuda.Stream(non_blocking=True)]
            self.handle = lt.create()
        self.turn = StreamTurn(index)
        self.target = self.turn.target
        self._functions: dict[tuple[str, str], Any] = {}
        self._waiting: set[int] = set()  # kernels that wait for those before them

    @property
    def stream(self) -> Any:
        """The stream to which work goes now."""
        return self.turn.stream

    def allocate(self, nbytes: int) -> cupy.ndarray:
        """Bytes of device memory, aligned to 512."""
        return self.empty((max(nbytes, 1),), np.dtype("uint8"))

    def settling(self, tf32: bool, autotune: bool = False) -> Settling:
        """What chooses variants, algorithms and workspaces of recorded calls, see workspace.py."""
        tuner = Tuner(Lab(self, tf32)) if autotune else None
        known: dict[Any, Algorithm | None] = {}

        def chosen(call: Gemm) -> Algorithm | None:
            key = question(call)
            if key not in known:
                try:
                    twin = unplaced(call)
                    plan = LtPlan(self.handle, twin, tf32, tuner.algorithm(twin) if tuner else None)
                    found = Algorithm(plan.needed, plan.algorithm)
                    if call.epilogue == "RELU_BIAS" and not plan.accepted:  # the first that keeps a NaN will run
                        found = Algorithm(max(plan.needs.values()), plan.algorithm, tuple(plan.candidates))
                    known[key] = found
                except Unsupported:
                    known[key] = None
            return known[key]

        def settle(calls: Sequence[Call], note: Note) -> list[Call]:
            found = settled(calls, chosen, every=autotune)
            if tuner is None:
                return found
            decide = partial(tuner.decided, note=note)
            return settled([one for call in found for one in call.decided(decide)], chosen, every=True)

        return Settling(settle) if autotune else settling(chosen)._replace(settle=settle)

    def runnable(self, binder: Binder, tf32: bool, autotune: bool = False) -> list[RunnableCall]:
        """The binder's calls as functions without arguments; all addresses are known by now.

        autotune   choose products by their times, see autotune.py
        """
        binder.write_tables(self)
        recorded = list(binder.running())
        kernels = [kernel for _, call in recorded for kernel in call.kernels() if kernel not in self._functions]
        if len(kernels) > 1:
            compile_all([source for source, _ in kernels], self.device.arch)
        launcher = Launcher(self, tf32, binder.counter, Tuner(Lab(self, tf32)) if autotune else None)
        made: list[RunnableCall] = []
        for position, call in recorded:
            try:
                runnable = call.runnable(launcher)
            except Unsupported as why:
                raise PlaceError(f"cuBLASLt cannot compute this product: {why}") from None
            for one in runnable:
                one.position = position
            made += runnable
        binder.notes += [note for note in dict.fromkeys(launcher.notes) if note not in binder.notes]
        return made

    def product(self, call: Gemm, tf32: bool, tuner: Tuner | None = None) -> LtPlan:
        """The plan of a product; Unsupported where cuBLASLt has no algorithm for it."""
        tuned = tuner.algorithm(call) if tuner else None
        fitted = call.algorithm if lies_as_assumed(call) else None
        plan = LtPlan(self.handle, call, tf32, tuned or fitted)
        if call.epilogue == "RELU_BIAS" and not (tuned and plan.accepted):
            plan = self._one_that_keeps_nan(plan, tf32)
        return plan

    def _one_that_keeps_nan(self, plan: LtPlan, tf32: bool) -> LtPlan:
        """The first candidate that keeps a NaN: some 16-bit algorithms compute relu(NaN) = 0."""
        others = plan.call.others if plan.accepted else ()
        for one in (plan, *(LtPlan(self.handle, plan.call, tf32, form) for form in others)):
            for candidate in one.candidates:
                one.choose(candidate)
                if self.keeps_nan(one):
                    return one
        raise Unsupported("every algorithm turns NaN into 0")

    def keeps_nan(self, plan: LtPlan) -> bool:
        """Whether a product with a bias of NaN is NaN, tried on memory of its own."""
        call = plan.call
        bias = self.to_device(np.full(call.n, np.nan, call.c.dtype))
        out = self.empty((call.m, call.n), call.c.dtype)
        plan.probe(bias.data.ptr, out.data.ptr, self.stream.ptr)
        found = self.fetch(Buffer((min(call.m, PROBED_ROWS), call.n), call.c.dtype, out.data.ptr), as_numpy=True)
        self.stream.synchronize()
        return bool(np.isnan(found).all())

    def function(self, source: str, name: str, shared: int = 0, together: bool = False) -> Any:
        """A kernel of a source, compiled and loaded once; it may have `shared` bytes of shared memory."""
        key = source, name
        if key not in self._functions:
            cubin = compile_source(source, self.device.arch)
            module = cupy.RawModule(path=str(cubin.path), enable_cooperative_groups=together)
            function = self._functions[key] = module.get_function(name)
            self._waiting |= {function.kernel.ptr} if cubin.waits_first and not together else set()
        function = self._functions[key]
        if shared > max(STATIC_SHARED, function.max_dynamic_shared_size_bytes):  # a longer row may need more
            function.max_dynamic_shared_size_bytes = shared
        return function

    def captured(self, parts: Sequence[Segment], loosened: bool = False) -> Callable[[], None] | str:
        """A function that launches the graph of these parts, or why there is none; programmatic_launch.py: loosened."""
        while len(self.lanes) <= max((part.lane for part in parts), default=0):
            self.lanes.append(cupy.cuda.Stream(non_blocking=True))
        try:
            return CapturedGraph(parts, self.target, self.lanes, self.function, self._waiting if loosened else ())
        except CaptureError as why:
            return str(why)

    # arrays in and out

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """An array of this GPU with undefined content; MemoryError where there is no room."""
        with cupy.cuda.Device(self.device.index), self.turn.own:
            made = _array(shape, dtype)
        if isinstance(made.data.mem, cupy.cuda.memory.MemoryAsync):  # freed in the order of that stream alone
            self.turn.stay()
        return made

    def to_device(self, array: Any) -> cupy.ndarray:
        """A copy on this GPU."""
        host = array if isinstance(array, np.ndarray) else cupy.asnumpy(array)
        copy = self.empty(host.shape, host.dtype)
        self._copy_in(np.ascontiguousarray(host), copy.data.ptr)
        self.stream.synchronize()
        return copy

    def managed(self, array: Any) -> cupy.ndarray:
        """The array in memory that the driver pages, itself if it lies there; MemoryError beyond what is free."""
        if self.holds(array) and isinstance(array.data.mem, cupy.cuda.memory.ManagedMemory):
            return array
        free, _ = cupy.cuda.runtime.memGetInfo()
        if array.nbytes > free:  # more than is free would be paged in every step, or hang
            raise MemoryError(f"{array.nbytes} bytes of managed memory are wanted, {free} are free")
        with cupy.cuda.Device(self.device.index):
            copy = cupy.ndarray(array.shape, array.dtype, cupy.cuda.malloc_managed(max(array.nbytes, 1)))
        source = array if self.holds(array) else self.to_device(array)
        self.gather([source], copy, [0])
        return copy

    def gather(
        self, arrays: Sequence[cupy.ndarray], memory: cupy.ndarray, offsets: Sequence[int]
    ) -> list[cupy.ndarray]:
        """Copies of arrays of this GPU at these places of `memory`, with zeros between them."""
        copy, views = cupy.cuda.runtime.memcpyAsync, []
        cupy.cuda.runtime.memsetAsync(memory.data.ptr, 0, memory.nbytes, self.stream.ptr)
        for array, offset in zip(arrays, offsets, strict=True):
            views.append(cupy.ndarray(array.shape, array.dtype, memory.data + offset))
            if array.nbytes:
                copy(views[-1].data.ptr, array.data.ptr, array.nbytes, DEVICE_TO_DEVICE, self.stream.ptr)
        self.stream.synchronize()  # before somebody frees the originals
        return views

    def write(self, array: cupy.ndarray, host: np.ndarray) -> None:
        """Put a host array's values into an array of this GPU, in the order of the stream."""
        self._copy_in(np.ascontiguousarray(host), array.data.ptr)

    def holds(self, array: Any) -> bool:
        """Whether this is an array of this GPU as kernels want it: rows one after the other, on a multiple of 16."""
        if not isinstance(array, cupy.ndarray):
            return False
        memory = array.data
        return memory.device_id == self.device.index and memory.ptr % 16 == 0 and array.flags.c_contiguous

    def upload(self, array: np.ndarray, buffer: Buffer) -> None:
        """A host array into a buffer."""
        self._copy_in(np.ascontiguousarray(array), buffer.address)

    def _copy_in(self, host: np.ndarray, address: int) -> None:
        if host.nbytes:  # the copy from pageable memory is staged before this returns
            self.send(address, host.ctypes.data, host.nbytes)

    def send(self, address: int, host: int, nbytes: int) -> None:
        """Bytes of the host, given by their address, to the GPU; from pinned memory this does not wait, others are
        staged before it returns."""
        cupy.cuda.runtime.memcpyAsync(address, host, nbytes, HOST_TO_DEVICE, self.stream.ptr)

    def receive(self, host: int, address: int, nbytes: int) -> None:
        """Bytes of the GPU to the host; there after the stream is synchronised."""
        cupy.cuda.runtime.memcpyAsync(host, address, nbytes, DEVICE_TO_HOST, self.stream.ptr)

    def lies_at(self, array: Any) -> int:
        """The address of an array that kernels can read as it is; 0 of others."""
        return array.data.ptr if self.holds(array) else 0

    def take(self, arrays: Sequence[tuple[Any, Buffer]]) -> None:
        """Arrays of a GPU into buffers."""
        sources = [cupy.ascontiguousarray(a) for a, _ in arrays]
        self.turn.join()
        for source, (_, buffer) in zip(sources, arrays, strict=True):
            cupy.cuda.runtime.memcpyAsync(
                buffer.address, source.data.ptr, buffer.nbytes, DEVICE_TO_DEVICE, self.stream.ptr
            )

    def pinned(self, nbytes: int) -> np.ndarray:
        """Bytes of the host that the GPU reads and writes without a copy in between."""
        return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def event(self) -> Any:
        """Something with record(stream) and synchronize()."""
        return cupy.cuda.Event(disable_timing=True)

    def download(self, buffer: Buffer, host: np.ndarray) -> None:
        """A buffer's bytes into a host array; complete after the stream is synchronised."""
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                host.ctypes.data, buffer.address, buffer.nbytes, DEVICE_TO_HOST, self.stream.ptr
            )

    def fetch(self, buffer: Buffer, as_numpy: bool) -> Any:
        """A copy of a buffer: a NumPy array, or one of this GPU, in memory that the caller's stream may use again."""
        if as_numpy:
            host = np.empty(buffer.shape, buffer.dtype)
            self.download(buffer, host)
            return host
        with cupy.cuda.Device(self.device.index):
            copy = _array(buffer.shape, buffer.dtype)
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                copy.data.ptr, buffer.address, buffer.nbytes, DEVICE_TO_DEVICE, self.stream.ptr
            )
        return copy


def _array(shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
    """An array with undefined content of the current device and stream; MemoryError where there is no room."""
    try:
        return cupy.ndarray(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError as problem:
        raise MemoryError(str(problem)) from None


_one_makes = threading.Lock()
_runtimes: dict[int, Runtime] = {}


def runtime(index: int) -> Runtime:
    """The Runtime of GPU `index`, made once per process."""
    with _one_makes:
        if index not in _runtimes:
            _runtimes[index] = Runtime(index)
        return _runtimes[index]
