"""What a decorated optimizer is told, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minigraph.errors import AttrError, require
from minigraph.errors.flags import as_flag
from minigraph.types import DType, bfloat16

from .lists import AutoMixedPrecisionLists


@dataclass
class Settings:
    """How a program is cast and its loss scaled.

    dynamic   the loss scale follows overflows
    guarded   only operators inside fp16_guard or bf16_guard get 16 bits
    """

    lists: AutoMixedPrecisionLists
    level: str
    half: DType
    init_loss_scaling: float
    dynamic: bool
    guarded: bool
    steps_and_ratios: dict[str, Any]

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, and gradients are looked at for overflow."""
        return self.level != "O0" and (self.dynamic or self.init_loss_scaling != 1)


def dynamic_scaling(dynamic: bool | None, half: DType) -> bool:
    """Whether the loss scale follows overflows: None stands for float16's need. bfloat16 has float32's range."""
    scales = True if dynamic is None else as_flag("use_dynamic_loss_scaling", dynamic)
    return scales and half != bfloat16


def check_scale(scale: Any) -> float:
    """A loss scale, which must be finite and above 0."""
    number = _number("init_loss_scaling", scale)
    require(0 < number < math.inf, f"init_loss_scaling must be > 0 and finite, is {scale!r}", AttrError)
    return number


def check_steps_and_ratios(**given: Any) -> dict[str, Any]:
    """The attributes of update_loss_scaling."""
    checked: dict[str, Any] = {}
    for name in ("incr_every_n_steps", "decr_every_n_nan_or_inf"):
        value = given[name]
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(fits, f"{name} must be an int >= 1, is {value!r}", AttrError)
        checked[name] = value
    for name, low, high in (("incr_ratio", 1, math.inf), ("decr_ratio", 0, 1)):
        checked[name] = _number(name, given[name])
        wanted = "greater than 1 and finite" if low else "in (0, 1)"
        require(low < checked[name] < high, f"{name} must be {wanted}, is {given[name]!r}", AttrError)
    return checked


def _number(name: str, value: Any) -> float:
    try:
        return math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        raise AttrError(f"{name} must be a number, is {value!r}"[:200]) from None
