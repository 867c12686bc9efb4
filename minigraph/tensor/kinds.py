"""What data types can hold, and of which kind a Variable is."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.program import Variable
from minigraph.types import FLOATS, INTS, as_dtype, bfloat16

from .arguments import variable


class finfo:
    """Limits of a float type: min, max, eps, tiny, smallest_normal, resolution, bits, dtype."""

    def __init__(self, dtype: Any) -> None:
        kind = as_dtype(dtype)
        require(kind in FLOATS, f"finfo takes a float type, not {kind}", DTypeError, "mg.iinfo")
        wide = np.finfo(np.float32 if kind == bfloat16 else kind)  # bfloat16 has float32's exponents
        self.eps = 2.0**-7 if kind == bfloat16 else float(wide.eps)
        self.max = (2 - self.eps) * 2.0**127 if kind == bfloat16 else float(wide.max)
        self.min = -self.max
        self.tiny = self.smallest_normal = float(wide.smallest_normal)
        self.resolution = 0.01 if kind == bfloat16 else float(wide.resolution)
        self.bits, self.dtype = 8 * kind.itemsize, str(kind)

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, eps={self.eps:g}, bits={self.bits}, dtype={self.dtype})"


class iinfo:
    """Limits of an int type: min, max, bits, dtype."""

    def __init__(self, dtype: Any) -> None:
        kind = as_dtype(dtype)
        require(kind in INTS, f"iinfo takes an int type, not {kind}", DTypeError, "mg.finfo")
        facts = np.iinfo(kind)
        self.min, self.max, self.bits, self.dtype = int(facts.min), int(facts.max), int(facts.bits), str(kind)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, bits={self.bits}, dtype={self.dtype})"


def is_floating_point(x: Variable) -> bool:
    """Whether x holds floats."""
    return variable(x, "is_floating_point").dtype in FLOATS


def is_integer(x: Variable) -> bool:
    """Whether x holds ints; truth values are none."""
    return variable(x, "is_integer").dtype in INTS


def is_complex(x: Variable) -> bool:
    """False: there are no complex numbers."""
    variable(x, "is_complex")
    return False


__all__ = ["finfo", "iinfo", "is_complex", "is_floating_point", "is_integer"]
