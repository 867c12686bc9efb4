"""The device side: memory, compiled modules, and bound calls made runnable. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublasLt as lt

from ...errors import PlaceError
from .binder import Binder, Call, Choice, Copy, Device, Fill, Gemm, HostCall, Launch
from .buffer import Buffer
from .compile import compile_source
from .lt import LtPlan, Unsupported

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind
PROBED_ROWS = 1024
STATIC_SHARED = 48 * 1024  # more must be asked for


class Runtime:
    """One GPU: its stream, its cuBLASLt handle, its loaded modules.

    tf32   whether float32 products may round their operands to TF32
    """

    def __init__(self, index: int) -> None:
        with cupy.cuda.Device(index):
            major, minor = divmod(int(cupy.cuda.Device(index).compute_capability), 10)
            arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
            facts = cupy.cuda.runtime.getDeviceProperties(index)
            self.device = Device(arch, facts["multiProcessorCount"], index, facts["sharedMemPerBlockOptin"])
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.handle = lt.create()
        self._functions: dict[tuple[str, str], Any] = {}

    def allocate(self, nbytes: int) -> cupy.ndarray:
        """Bytes of device memory, aligned to 512."""
        return self.empty((max(nbytes, 1),), np.dtype("uint8"))

    def runnable(self, binder: Binder, tf32: bool) -> list[Callable[[], None]]:
        """The binder's calls as functions without arguments; all addresses are known by now."""
        steps: list[Callable[[], None]] = []
        for call in binder.calls:
            if isinstance(call, HostCall):
                steps.append(partial(self._call_host, call, binder.counter))
                continue
            try:
                steps += self._runnable(call, tf32, binder)
            except Unsupported as why:
                raise PlaceError(f"cuBLASLt cannot compute this product: {why}") from None
        return steps

    def _call_host(self, call: HostCall, counter: Buffer) -> None:
        arrays = [self.fetch(b, as_numpy=True) for b in (counter, *call.inputs)]
        self.stream.synchronize()
        call.function(int(arrays[0][0]), *arrays[1:])

    def _runnable(self, call: Call, tf32: bool, binder: Binder) -> list[Callable[[], None]]:
        stream = self.stream.ptr
        if isinstance(call, Launch):
            args = tuple(a.address if isinstance(a, Buffer) else a for a in call.args)
            function = self._function(call)
            return [partial(function, call.grid, call.block, args, shared_mem=call.shared, stream=self.stream)]
        if isinstance(call, Copy):
            to, source, nbytes = call.destination.address, call.source.address, call.destination.nbytes
            copy = cupy.cuda.runtime.memcpyAsync
            return [partial(copy, to, source, nbytes, DEVICE_TO_DEVICE, stream)]
        if isinstance(call, Fill):
            fill = cupy.cuda.runtime.memsetAsync
            return [partial(fill, call.destination.address, call.value, call.destination.nbytes, stream)]
        if isinstance(call, Choice):
            return self._chosen(call, tf32, binder)
        assert isinstance(call, Gemm)
        plan = LtPlan(self.handle, call, tf32)
        if call.epilogue == "RELU_BIAS":
            self._choose_what_keeps_nan(plan)
        return [partial(plan.run, stream)]

    def _chosen(self, choice: Choice, tf32: bool, binder: Binder) -> list[Callable[[], None]]:
        """The first variant whose products cuBLASLt has."""
        missing: Unsupported | None = None
        for name, calls in choice.variants.items():
            try:
                steps = [step for call in calls for step in self._runnable(call, tf32, binder)]
            except Unsupported as why:
                missing = missing or why
                continue
            note = choice.step, f"{name}: {missing}"
            binder.notes += [note] if missing and note not in binder.notes else []
            return steps
        raise missing or Unsupported("no way to compute this is known")

    def _choose_what_keeps_nan(self, plan: LtPlan) -> None:
        """Some 16-bit algorithms compute relu(NaN) = 0. Try them with a bias of NaN, take the first that does not."""
        call = plan.call
        bias = self.to_device(np.full(call.n, np.nan, call.c.dtype))
        out = self.empty((call.m, call.n), call.c.dtype)
        rows = min(call.m, PROBED_ROWS)
        shown = Buffer((rows, call.n), call.c.dtype, out.data.ptr)
        for candidate in plan.candidates:
            plan.probe(candidate, bias.data.ptr, out.data.ptr, self.stream.ptr)
            found = self.fetch(shown, as_numpy=True)
            self.stream.synchronize()
            if np.isnan(found).all():
                return plan.choose(candidate)
        raise Unsupported("every algorithm turns NaN into 0")

    def _function(self, call: Launch) -> Any:
        key = call.source, call.function
        if key not in self._functions:
            cubin = compile_source(call.source, self.device.arch)
            function = cupy.RawModule(path=str(cubin.path)).get_function(call.function)
            if call.shared > STATIC_SHARED:
                function.max_dynamic_shared_size_bytes = call.shared
            self._functions[key] = function
        return self._functions[key]

    # arrays in and out

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """An array of this GPU with undefined content; MemoryError where there is no room."""
        with cupy.cuda.Device(self.device.index), self.stream:
            try:
                return cupy.ndarray(shape, dtype)
            except cupy.cuda.memory.OutOfMemoryError as problem:
                raise MemoryError(str(problem)) from None

    def to_device(self, array: Any) -> cupy.ndarray:
        """A copy on this GPU."""
        host = array if isinstance(array, np.ndarray) else cupy.asnumpy(array)
        copy = self.empty(host.shape, host.dtype)
        self._copy_in(np.ascontiguousarray(host), copy.data.ptr)
        self.stream.synchronize()
        return copy

    def write(self, array: cupy.ndarray, host: np.ndarray) -> None:
        """Put a host array's values into an array of this GPU, in the order of the stream."""
        self._copy_in(np.ascontiguousarray(host), array.data.ptr)

    def holds(self, array: Any) -> bool:
        """Whether this is an array of this GPU."""
        return isinstance(array, cupy.ndarray) and array.device.id == self.device.index

    def upload(self, array: Any, buffer: Buffer) -> None:
        """A fed array into its buffer; arrays of a GPU do not pass through the host."""
        if isinstance(array, np.ndarray):
            return self._copy_in(np.ascontiguousarray(array), buffer.address)
        source = cupy.ascontiguousarray(array)
        cupy.cuda.get_current_stream().synchronize()  # whoever made it may still be writing
        runtime_ = cupy.cuda.runtime
        runtime_.memcpyAsync(buffer.address, source.data.ptr, buffer.nbytes, DEVICE_TO_DEVICE, self.stream.ptr)
        self.stream.synchronize()  # `source` may be freed when this returns

    def _copy_in(self, host: np.ndarray, address: int) -> None:
        if host.nbytes:  # the copy from pageable memory is staged before this returns
            cupy.cuda.runtime.memcpyAsync(address, host.ctypes.data, host.nbytes, HOST_TO_DEVICE, self.stream.ptr)

    def download(self, buffer: Buffer, host: np.ndarray) -> None:
        """A buffer's bytes into a host array; complete after the stream is synchronised."""
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                host.ctypes.data, buffer.address, buffer.nbytes, DEVICE_TO_HOST, self.stream.ptr
            )

    def fetch(self, buffer: Buffer, as_numpy: bool) -> Any:
        """A copy of a buffer: a NumPy array, or one of this GPU."""
        if as_numpy:
            host = np.empty(buffer.shape, buffer.dtype)
            self.download(buffer, host)
            return host
        copy = self.empty(buffer.shape, buffer.dtype)
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                copy.data.ptr, buffer.address, buffer.nbytes, DEVICE_TO_DEVICE, self.stream.ptr
            )
        return copy


@cache
def runtime(index: int) -> Runtime:
    """The Runtime of GPU `index`, made once per process."""
    return Runtime(index)
