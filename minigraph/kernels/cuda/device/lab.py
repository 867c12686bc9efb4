"""Lab: where autotune measures. Scratch memory with random numbers, CUDA graphs of calls, and events. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublasLt as lt

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Call, Run, RunnableCall, Segment, Unsupported
from minigraph.kernels.cuda.record.moved import constants, owners
from minigraph.types import FLOATS

from .launcher import Launcher
from .memory import DEVICE_TO_DEVICE

ALIGNED = 256  # bytes
PERIOD = 65521  # random numbers, repeated: a prime, so that rows differ
MILLISECONDS, MOST = 0.2, 16  # one replay of a trial's graph takes about so long, with at most so many repeats


class Lab:
    """Measures on the GPU of a Runtime."""

    def __init__(self, runtime: Any, tf32: bool) -> None:
        self.runtime, self.tf32 = runtime, tf32

    @property
    def facts(self) -> Mapping[str, Any]:
        """The GPU, its driver, cuBLASLt's version, and whether it may round to TF32."""
        device = self.runtime.device
        name = cupy.cuda.runtime.getDeviceProperties(device.index)["name"].decode()
        return {"gpu": [name, device.arch, device.multiprocessors], "driver": cupy.cuda.runtime.driverGetVersion(),
                "cublasLt": lt.get_version(), "tf32": self.tf32}  # fmt: skip

    @contextmanager
    def twins(self, calls: Sequence[Call]) -> Iterator[list[Any]]:
        """The calls on memory of their own that holds random numbers and lies like theirs."""
        for constant in constants(calls):
            constant.table.write(self.runtime)
        roots = owners(calls)
        sizes = [-(-r.nbytes // ALIGNED) * ALIGNED + ALIGNED for r in roots]
        memory = self.runtime.allocate(sum(sizes) + ALIGNED)
        at = -(-memory.data.ptr // ALIGNED) * ALIGNED
        places: dict[int, Buffer] = {}
        for root, size in zip(roots, sizes, strict=True):
            places[id(root)] = Buffer(root.shape, root.dtype, at + root.address % ALIGNED, root.alignment)
            self._fill(places[id(root)])
            at += size
        yield [call.moved(places) for call in calls]
        self.runtime.stream.synchronize()
        del memory  # a program that runs later must not look larger for it
        cupy.get_default_memory_pool().free_all_blocks()

    def _fill(self, buffer: Buffer) -> None:
        """The same random numbers at every call; bytes of masks and workspaces are random bits."""
        rng, count = np.random.default_rng(1), min(buffer.size, PERIOD)
        if buffer.dtype in FLOATS:
            block = rng.normal(size=count).astype(buffer.dtype)
        else:
            block = rng.integers(0, 100, count).astype(buffer.dtype)
        done = block.nbytes
        self.runtime.upload(block, Buffer((count,), buffer.dtype, buffer.address))
        while done < buffer.nbytes:
            more = min(done, buffer.nbytes - done)
            place = buffer.address + done
            cupy.cuda.runtime.memcpyAsync(place, buffer.address, more, DEVICE_TO_DEVICE, self.runtime.stream.ptr)
            done += more

    def trial(self, work: Sequence[Run]) -> Callable[[], float]:
        """The work in a CUDA graph, as often as makes a time that can be measured."""
        def run() -> None:
            for one in work:
                one()

        run()  # loads modules, and fails here rather than in a capture
        once = self._milliseconds(run)
        repeats = int(min(max(MILLISECONDS / max(once, 1e-4), 1), MOST))
        launch = self.runtime.captured([Segment([run] * repeats)])
        if isinstance(launch, str):
            raise Unsupported(launch)
        launch()
        return lambda: self._milliseconds(launch) / repeats

    def _milliseconds(self, launch: Callable[[], Any]) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.runtime.stream)
        launch()
        end.record(self.runtime.stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))

    def runnable(self, calls: Sequence[Call]) -> list[RunnableCall]:
        """The calls made runnable; Unsupported where cuBLASLt lacks one of them."""
        launcher = Launcher(self.runtime, self.tf32)
        return [one for call in calls for one in call.runnable(launcher)]
