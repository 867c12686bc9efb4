"""The devices: which Backend runs the programs of a place. A new device is one more row."""

from __future__ import annotations

from typing import Any

from minigraph.errors import ProgramError, require
from minigraph.program.context import Setting
from minigraph.types import CPUPlace, CUDAPlace

from .backend import Backend
from .cpu.backend import CPUBackend
from .cuda.backend import CUDABackend

BACKENDS: dict[type, type[Backend]] = {CPUPlace: CPUBackend, CUDAPlace: CUDABackend}
PLANS_FOR = CUDAPlace(0)  # whose memory is told for None
RUNS_AT = Setting[Any]("device", CPUPlace())  # where programs run for None: what set_device set


def kind_of(place: Any) -> type:
    """The class of a place, for which programs are compiled; a ProgramError for what is none."""
    require(type(place) in BACKENDS, f"a place is CPUPlace() or CUDAPlace(n), not {place!r}", ProgramError)
    return type(place)


def backend_of(place: Any) -> Backend:
    """A new Backend for a place."""
    return BACKENDS[kind_of(place)](place)
