"""Devices by Paddle's names: which one an Executor takes by default, and what this machine has."""

from __future__ import annotations

import re

from minigraph import cuda
from minigraph.errors import AttrError, require
from minigraph.runtime.devices import RUNS_AT
from minigraph.types import CPUPlace, CUDAPlace


def set_device(device: str) -> CPUPlace | CUDAPlace:
    """Let `Executor()` run at "cpu", "gpu" (the first one) or "gpu:<number>" from now on; returns the place.

    The main thread sets it for the process, another thread for itself.
    Errors: AttrError for another name, PlaceError where there is no such GPU.
    """
    match = re.fullmatch(r"cpu|gpu(?::(\d+))?", device) if isinstance(device, str) else None
    require(match, f"device must be 'cpu', 'gpu' or 'gpu:<number>', is {device!r}", AttrError)
    if device == "cpu":
        place = CPUPlace()
    else:
        place = CUDAPlace(int(device.partition(":")[2] or 0))
        cuda.require_available(place)
    RUNS_AT.set(place)
    return place


def get_device() -> str:
    """Where `Executor()` runs: "cpu" or "gpu:0"."""
    place = RUNS_AT.get()
    return f"gpu:{place.device_id}" if isinstance(place, CUDAPlace) else "cpu"


def is_compiled_with_cuda() -> bool:
    """Whether CUDAPlace can run programs here."""
    return cuda.is_available()


def _no() -> bool:
    """False: minigraph runs on CPUs and NVIDIA GPUs."""
    return False


is_compiled_with_cinn = is_compiled_with_distribute = is_compiled_with_ipu = is_compiled_with_rocm = _no
is_compiled_with_xpu = _no


def is_compiled_with_custom_device(device_type: str) -> bool:
    """False for all: there are no devices of others."""
    require(isinstance(device_type, str), f"device_type must be a str, is {device_type!r}", AttrError)
    return False


def get_cudnn_version() -> None:
    """None: cuDNN is not used."""


def get_all_device_type() -> list[str]:
    """The kinds of device that can run programs here."""
    return ["cpu", "gpu"] if cuda.is_available() else ["cpu"]


def get_available_device() -> list[str]:
    """All devices that can run programs here, by name."""
    return ["cpu", *(f"gpu:{i}" for i in range(cuda.device_count()))]


def get_all_custom_device_type() -> list[str]:
    """None: there are no devices of others."""
    return []


get_available_custom_device = get_all_custom_device_type
