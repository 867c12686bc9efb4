"""The device side: memory, compiled modules, and bound calls made runnable. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublasLt as lt

from ...errors import PlaceError
from .binder import Binder, Call, Copy, Device, Fill, Gemm, Launch
from .buffer import Buffer
from .compile import compile_source
from .lt import LtPlan, Unsupported

DEVICE_TO_DEVICE = 3  # cudaMemcpyKind
STATIC_SHARED = 48 * 1024  # more must be asked for


class Runtime:
    """One GPU: its stream, its cuBLASLt handle, its loaded modules.

    tf32   whether float32 products may round their operands to TF32
    """

    def __init__(self, index: int) -> None:
        with cupy.cuda.Device(index):
            major, minor = divmod(int(cupy.cuda.Device(index).compute_capability), 10)
            arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
            count = cupy.cuda.runtime.getDeviceProperties(index)["multiProcessorCount"]
            self.device = Device(arch, count, index)
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.handle = lt.create()
        self._functions: dict[tuple[str, str], Any] = {}

    def allocate(self, nbytes: int) -> cupy.ndarray:
        """Bytes of device memory, aligned to 512."""
        with cupy.cuda.Device(self.device.index), self.stream:
            return cupy.empty(max(nbytes, 1), cupy.uint8)

    def runnable(self, binder: Binder, tf32: bool) -> list[Callable[[], None]]:
        """The binder's calls as functions without arguments; all addresses are known by now."""
        steps: list[Callable[[], None]] = []
        for call in binder.calls:
            steps += self._runnable(call, tf32)
        return steps

    def _runnable(self, call: Call, tf32: bool) -> list[Callable[[], None]]:
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
        assert isinstance(call, Gemm)
        try:
            return [partial(LtPlan(self.handle, call, tf32).run, stream)]
        except Unsupported as why:
            if not call.fallback:
                raise PlaceError(f"cuBLASLt cannot compute this product: {why}") from None
            return [step for other in call.fallback for step in self._runnable(other, tf32)]

    def _function(self, call: Launch) -> Any:
        key = call.source, call.function
        if key not in self._functions:
            cubin = compile_source(call.source, self.device.arch)
            function = cupy.RawModule(path=str(cubin.path)).get_function(call.function)
            if call.shared > STATIC_SHARED:
                function.max_dynamic_shared_size_bytes = call.shared
            self._functions[key] = function
        return self._functions[key]

    def as_cupy(self, memory: cupy.ndarray, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """An array that shows `memory` from byte `offset` on."""
        return cupy.ndarray(shape, dtype, memptr=memory.data + offset)


@cache
def runtime(index: int) -> Runtime:
    """The Runtime of GPU `index`, made once per process."""
    return Runtime(index)
