"""Lists of places, with Paddle's names."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph import cuda
from minigraph.errors import AttrError, require
from minigraph.types import CPUPlace, CUDAPlace


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """A list of CPUPlaces, one by default."""
    fits = device_count is None or (isinstance(device_count, int) and device_count > 0)
    require(fits, f"device_count must be an int > 0, is {device_count!r}", AttrError)
    return [CPUPlace() for _ in range(device_count or 1)]


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """CUDAPlaces of the given GPUs, of all by default."""
    return [CUDAPlace(i) for i in (device_ids if device_ids is not None else range(cuda.device_count()))]
