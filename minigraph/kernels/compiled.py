"""Loops over the elements of arrays, written once: machine code by numba where that is installed, NumPy else.

    @compiled
    def axpy(x, y, a):
        for i in elements(x):
            y[i] = y[i] + a * x[i]

Compiled, `i` counts through the elements, so a loop reads and writes each array once whatever its
body computes. In NumPy `i` is all of them at once, each operation a pass over its block. Both do the
same operations on each element in the same order, without contractions, so results are bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


def elements(array: np.ndarray) -> tuple[Any, ...]:
    """The indices of a one-dimensional array, as `compiled` explains."""
    return (slice(None),)


class compiled:
    """A loop over C-contiguous one-dimensional arrays of one size and float dtype, the first of which says which.

    Floats among the arguments are taken as numbers of the arrays' dtype. The lock of the interpreter
    is released while compiled code runs. Machine code is kept on disk beside the package or in the
    user's cache folder, per dtype; without either it is made once per process, in about half a second.
    """

    def __init__(self, loop: Callable[..., None]) -> None:
        self.loop = loop
        self.machine_code: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        number = args[0].dtype.type
        self.code()(*[number(a) if isinstance(a, float) else a for a in args])

    def code(self) -> Callable[..., None]:
        """What runs: machine code, or the loop itself; the caller gives it numbers of the arrays' dtype."""
        if self.machine_code is None:
            self.machine_code = _compile(self.loop)
        return self.machine_code


def _compile(loop: Callable[..., None]) -> Callable[..., None]:
    try:
        import numba
    except ImportError:
        return loop
    _translate_elements()
    options = {"nogil": True, "error_model": "numpy"}  # a division by zero gives inf, as in NumPy
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder that can be written
        return numba.njit(**options)(loop)


@cache
def _translate_elements() -> None:
    """Once per process: what `elements` is in compiled code."""
    from numba.extending import overload

    # inlined, or the compiler does not see that indices are never negative, and does not vectorise
    overload(elements, inline="always")(lambda array: lambda array: range(array.size))
