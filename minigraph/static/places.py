"""Places, with Paddle's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from minigraph import cuda
from minigraph.errors import AttrError, require
from minigraph.program.context import reusable
from minigraph.types import CPUPlace, CUDAPlace


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """A list of CPUPlaces, one by default."""
    fits = device_count is None or (isinstance(device_count, int) and device_count > 0)
    require(fits, f"device_count must be an int > 0, is {device_count!r}", AttrError)
    return [CPUPlace() for _ in range(device_count or 1)]


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """CUDAPlaces of the given GPUs, of all by default."""
    return [CUDAPlace(i) for i in (device_ids if device_ids is not None else range(cuda.device_count()))]


@reusable
def device_guard(device: str | None = None) -> Iterator[None]:
    """`with device_guard("gpu:0"):`, which changes nothing: a program runs at the place of its Executor.

    device  "cpu", "gpu", "gpu:1" or None
    """
    fits = device is None or (isinstance(device, str) and re.fullmatch(r"|cpu|gpu(:\d+)?", device))
    require(fits, f"device must be 'cpu', 'gpu', 'gpu:<number>' or None, is {device!r}", AttrError)
    yield
