"""Whether a GPU can be used, and why not."""

from __future__ import annotations

from .errors import PlaceError
from .types import CUDAPlace

_NOT_YET = "this version of minigraph computes on the CPU only"


def is_available() -> bool:
    """True where CUDAPlace can run programs; `why_not()` gives the reason otherwise."""
    return device_count() > 0


def why_not() -> str | None:
    """Why no GPU can be used; None where one can."""
    return _NOT_YET


def device_count() -> int:
    """Number of GPUs that CUDAPlace can use."""
    return 0


def require_available(place: CUDAPlace) -> None:
    """Raise a PlaceError with the reason unless `place` can run programs."""
    if place.device_id >= device_count():
        raise PlaceError(f"{place} cannot be used: {why_not()}", hint="use mg.CPUPlace()")
