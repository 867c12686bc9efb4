"""Borders around tensors: the bind function of ops/movement/pad.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.views import section

from .creation import bind_fill
from .movement import bring

Slots = Mapping[str, Any]


def pad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = `value`, and X in its middle."""
    x, out, before = ins["X"], outs["Out"], attrs["paddings"][::2]
    bind_fill(binder, out, attrs["value"])
    if x.size:
        ends = [start + size for start, size in zip(before, x.shape, strict=True)]
        bring(binder, section(out, {"axes": range(x.ndim), "starts": before, "ends": ends, "steps": None}), x)
