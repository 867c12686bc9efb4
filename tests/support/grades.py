"""Two grades of sweeps: `make test` runs what stands for all, `make kernels` the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import pytest


def graded(values: Iterable[Any], now: Callable[..., object]) -> list[Any]:
    """`values` for parametrize; those of which `now` is not true wait for `make kernels`.

    A tuple is taken for the values of several parameters; a single parameter that is a tuple stands in a tuple.
    """
    cases = [v if isinstance(v, tuple) else (v,) for v in values]
    return [pytest.param(*case, marks=() if now(*case) else pytest.mark.sweep) for case in cases]


def checkered(*axes: Iterable[Any]) -> list[Any]:
    """The product of the axes for parametrize: of two neighbours along an axis one runs now, as on a chessboard."""
    cases = []
    for case in product(*map(enumerate, axes)):
        places, values = zip(*case, strict=True)
        cases.append(pytest.param(*values, marks=pytest.mark.sweep if sum(places) % 2 else ()))
    return cases


def shortened(checks: Mapping[str, Callable[..., object]], fewer: Mapping[str, Any]) -> list[Any]:
    """The checks for parametrize; those in `fewer` run now with what it gives them, and whole for `make kernels`."""
    cases = []
    for name, run in checks.items():
        if name in fewer:
            cases.append(pytest.param(run, id=f"{name}-whole", marks=pytest.mark.sweep))
            run = partial(run, fewer[name])
        cases.append(pytest.param(run, id=name))
    return cases
