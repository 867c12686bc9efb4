"""Two grades of sweeps: `make test` runs what stands for all, `make kernels` the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def graded(values: Iterable[Any], now: Callable[..., object]) -> list[Any]:
    """`values` for parametrize; those of which `now` is not true wait for `make kernels`.

    A tuple is taken for the values of several parameters; a single parameter that is a tuple stands in a tuple.
    """
    cases = [v if isinstance(v, tuple) else (v,) for v in values]
    return [pytest.param(*case, marks=() if now(*case) else pytest.mark.sweep) for case in cases]
