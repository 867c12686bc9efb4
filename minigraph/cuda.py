"""The GPU seen from above: whether one can be used, and why not; precision; arrays of other libraries.

CuPy and nvmath-python are imported when a CUDAPlace is first used, never before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from .errors import AttrError, PlaceError, ProgramError, require
from .program.context import Setting
from .types import CPUPlace, CUDAPlace

OLDEST = 80  # compute capability, times ten
DLPACK_CUDA = 2  # kDLCUDA

_precision = Setting("float32 matmul precision", "highest")


@cache
def why_not() -> str | None:
    """Why no GPU can be used here; None where one can."""
    for package, needed in (("cupy", "cupy-cuda13x"), ("nvmath.bindings.cublasLt", "nvmath-python")):
        try:
            importlib.import_module(package)
        except Exception as problem:  # ImportError, or what a broken installation raises
            return f"{package} cannot be imported ({problem}); pip install 'minigraph[cuda13]' or {needed}"
    try:
        count = importlib.import_module("cupy").cuda.runtime.getDeviceCount()
    except Exception as problem:  # CUDARuntimeError: no driver, no device
        return f"CUDA finds no usable GPU: {problem}"
    reasons = [reason for index in range(count) if (reason := _unfit(index))]
    return "CUDA finds no GPU" if not count else reasons[0] if len(reasons) == count else None


def _unfit(index: int) -> str | None:
    """Why kernels cannot run on GPU `index`; None where they can."""
    capability = int(importlib.import_module("cupy").cuda.Device(index).compute_capability)
    if capability >= OLDEST:
        return None
    has, needs = (f"{n // 10}.{n % 10}" for n in (capability, OLDEST))
    return f"GPU {index} has compute capability {has}, bfloat16 and asynchronous copies need {needs}"


def is_available() -> bool:
    """True where CUDAPlace can run programs; `why_not()` gives the reason otherwise."""
    return why_not() is None


def device_count() -> int:
    """Number of GPUs that CUDAPlace can use."""
    return importlib.import_module("cupy").cuda.runtime.getDeviceCount() if is_available() else 0


def require_available(place: CUDAPlace) -> None:
    """Raise a PlaceError with the reason unless `place` can run programs."""
    reason = why_not()
    if reason is None and place.device_id >= device_count():
        reason = f"there are {device_count()} GPUs, counted from 0"
    _require_none(place, reason)


def require_ranks(places: Sequence[Any]) -> None:
    """Raise unless a rank can run at each of `places`: on CPUs, or on GPUs that are there, each once."""
    kinds = {type(place) for place in places}
    require(kinds <= {CPUPlace, CUDAPlace}, f"places holds {places!r}", ProgramError, "static.cpu_places(n), or "
            "static.cuda_places()")  # fmt: skip
    require(len(kinds) < 2, "places holds CPUs and GPUs", ProgramError, "all ranks run on devices of one kind")
    if kinds == {CUDAPlace} and len(places) > 1:
        numbers = [place.device_id for place in places]
        twice = next((n for n in numbers if numbers.count(n) > 1), None)
        require(twice is None, f"places holds GPU {twice} twice: two ranks on one GPU wait for each other", PlaceError)
        known = device_count()
        require(max(numbers) < known, f"places holds GPU {max(numbers)}, there are {known}", PlaceError)


def _require_none(place: CUDAPlace, reason: str | None) -> None:
    if reason is not None:
        raise PlaceError(f"{place} cannot be used: {reason}", hint="use mg.CPUPlace()")


def runtime(place: CUDAPlace) -> Any:
    """The Runtime of a GPU, see kernels/cuda/device/runtime.py."""
    require_available(place)
    _require_none(place, _unfit(place.device_id))
    return importlib.import_module("minigraph.kernels.cuda.device.runtime").runtime(place.device_id)


def device_array(value: Any) -> Any:
    """A CuPy array of `value` without a copy through the host; None where it lives on the host.

    Raises what its library or CuPy says where it cannot be shared.
    """
    cupy = importlib.import_module("cupy")
    if isinstance(value, cupy.ndarray):
        return value
    place = getattr(value, "__dlpack_device__", None)
    return cupy.from_dlpack(value) if place is not None and place()[0] == DLPACK_CUDA else None


def set_float32_matmul_precision(precision: str) -> None:
    """How float32 matrix products round on a GPU.

    "highest"  true float32 (the default)
    "high"     operands rounded to TF32 (10 bits of mantissa), sums in float32
    The main thread sets it for the process, another thread for itself.
    """
    require(precision in ("highest", "high"), f"precision {precision!r} is not highest or high", AttrError)
    _precision.set(precision)


def get_float32_matmul_precision() -> str:
    """The precision of float32 matrix products on a GPU."""
    return _precision.get()


def allows_tf32() -> bool:
    """Whether float32 products of this thread may be computed as TF32: mg.set_float32_matmul_precision("high")."""
    return _precision.get() == "high"
