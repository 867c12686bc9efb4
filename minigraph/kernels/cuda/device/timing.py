"""Times of calls on a GPU, one after the other, by events between them. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import cupy
import numpy as np

CHUNK = 128  # calls that wait for the GPU at the same time: a stream takes about a thousand launches
CYCLES = 60_000  # of the GPU, more than the host needs for a call and an event
SPIN = 'extern "C" __global__ void spin(long long n) { for (long long s = clock64(); clock64() - s < n;); }'


def times(calls: Sequence[Callable[[], None]], names: Sequence[str], runtime: Any) -> list[float]:
    """Seconds that each call takes, with an event behind it, about a microsecond.

    A kernel that does nothing keeps the GPU until the host has handed over the calls of a chunk. Else a short call
    would last as long as the host takes for the next one. NVTX ranges have the names.
    """
    spin, target = runtime.modules.function(SPIN, "spin"), runtime.target
    seconds: list[float] = []
    for first in range(0, len(calls), CHUNK):
        part = calls[first : first + CHUNK]
        events = [cupy.cuda.Event() for _ in range(len(part) + 1)]
        spin((1,), (1,), (np.int64(CYCLES * len(part)),), stream=target)
        cupy.cuda.runtime.eventRecord(events[0].ptr, target.ptr)
        for call, name, event in zip(part, names[first:], events[1:], strict=False):
            _range(name)
            try:
                call()
            finally:
                _range(None)
            cupy.cuda.runtime.eventRecord(event.ptr, target.ptr)
        events[-1].synchronize()
        seconds += [float(cupy.cuda.get_elapsed_time(a, b)) / 1e3 for a, b in pairwise(events)]
    return seconds


def _range(name: str | None) -> None:
    """Begin an NVTX range, or end one; nothing where CuPy was built without NVTX."""
    with suppress(ImportError, AttributeError, RuntimeError):
        nvtx = cupy.cuda.nvtx
        if name is None:
            nvtx.RangePop()
        else:
            nvtx.RangePush(name)
