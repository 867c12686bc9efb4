"""Operators that act on the host while the GPU waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .binder import Binder


def print(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """A copy of X; the reference writes X to standard output."""
    reference, number = binder.reference, binder.number
    assert reference is not None

    def show(runs: int, x: np.ndarray) -> tuple[()]:
        reference(x, **attrs, rng=(0, number, runs))
        return ()

    binder.copy(outs["Out"], ins["X"])
    binder.host([ins["X"]], show)


def check_true(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """A copy of Cond; the reference raises an error where it is False."""
    reference = binder.reference
    assert reference is not None

    def look(runs: int, cond: np.ndarray, *data: np.ndarray) -> tuple[()]:
        reference(cond, data, **attrs)
        return ()

    binder.copy(outs["Out"], ins["Cond"])
    binder.host([ins["Cond"], *(ins["Data"] or ())], look)
