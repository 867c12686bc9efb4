"""The data type that variables get where a user gives none."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from minigraph.errors import DTypeError, require
from minigraph.types import FLOATS, DType, as_dtype, float32

from .context import Setting

_default_dtype = Setting("default dtype", float32)


def set_default_dtype(d: Any) -> None:
    """The data type of parameters, and of `data` and `full` where none is given (float32 at first).

    The main thread sets it for the process, another thread for itself.
    """
    dtype = as_dtype(d)
    require(dtype in FLOATS, f"the default data type must be a float, not {dtype}", DTypeError)
    _default_dtype.set(dtype)


def used_dtype(dtype: DType) -> AbstractContextManager[None]:
    """A guard: this is the default data type inside, for this thread."""
    return _default_dtype.used(dtype)


def get_default_dtype() -> str:
    """The name of the default data type."""
    return _default_dtype.get().name


def default_dtype() -> DType:
    """The default data type."""
    return _default_dtype.get()
