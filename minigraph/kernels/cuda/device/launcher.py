"""Launcher: what recorded calls are bound with on a GPU. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Grid, Run, Segment
from minigraph.kernels.cuda.record.calls import Gemm

from .lanes import run_in_lanes
from .memory import ANY
from .nccl import communicator


class Launcher:
    """The Primitives of record/call.py for the calls of one plan: what it makes hands work to the runtime's target.

    counter  how often the program ran, on the device
    notes    what a report should say of the calls, with the numbers of their operators
    """

    def __init__(self, runtime: Any, tf32: bool, counter: Buffer | None = None) -> None:
        self.runtime, self.tf32, self.counter = runtime, tf32, counter
        self.target = runtime.target
        self.notes: list[tuple[int, str]] = []

    def kernel(
        self, source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0,
        together: bool = False,
    ) -> Run:  # fmt: skip
        """A kernel, compiled and loaded."""
        loaded = self.runtime.modules.function(source, function, shared, together)
        return partial(loaded, grid, block, args, shared_mem=shared, stream=self.target)

    def copy(self, destination: int, source: int, nbytes: int) -> Run:
        """Bytes from one address to another; either may be one of pinned memory of the host."""
        copy, target = cupy.cuda.runtime.memcpyAsync, self.target
        return lambda: copy(destination, source, nbytes, ANY, target.ptr)

    def fill(self, destination: int, value: int, nbytes: int) -> Run:
        """Bytes at an address set to one value."""
        fill, target = cupy.cuda.runtime.memsetAsync, self.target
        return lambda: fill(destination, value, nbytes, target.ptr)

    def product(self, call: Gemm) -> Run:
        """A product by cuBLASLt."""
        plan, target = self.runtime.products.plan(call, self.tf32), self.target
        return lambda: plan.run(target.ptr)

    def host(
        self, function: Callable[..., Sequence[np.ndarray]], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> Run:  # fmt: skip
        """A function of the host, once the GPU has computed what it is given; the GPU goes on with its results."""
        assert self.counter is not None
        return partial(self._call_host, function, [self.counter, *inputs], outputs)

    def _call_host(
        self, function: Callable[..., Sequence[np.ndarray]], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> None:  # fmt: skip
        runs, *arrays = [self.runtime.fetch(b, as_numpy=True) for b in inputs]
        self.runtime.stream.synchronize()
        for array, buffer in zip(function(int(runs[0]), *arrays), outputs, strict=True):
            assert array.dtype == buffer.dtype, f"{array.dtype} for {buffer}"
            self.runtime.upload(array, buffer)

    def beside(self, parts: Sequence[Segment]) -> Run:
        """Bound calls on several lanes."""
        return partial(run_in_lanes, parts, self.target, self.runtime.sides(max(part.lane for part in parts)))

    def collective(
        self, kind: str, destination: int, source: int, sizes: tuple[int, int], dtype: Any, root: int
    ) -> Run:  # fmt: skip
        """What the ranks' GPUs do together, by NCCL."""
        ranks, target = communicator(self.runtime.device.index), self.target
        given = ranks.arguments(kind, destination, source, sizes, dtype, root)
        return lambda: ranks.run(kind, given, target.ptr)

    def together(self, collectives: Sequence[Run]) -> Run:
        """Collectives in one group of NCCL."""
        return partial(communicator(self.runtime.device.index).together, collectives)

    def wanted(self, names: Sequence[str]) -> Sequence[str]:
        """The variants as they were recorded, best first."""
        return names
