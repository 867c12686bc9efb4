"""Paddle's `base` namespace: `base.unique_name.guard()`, `base.set_flags()`."""

from .. import unique_name
from ..flags import get_flags, set_flags

__all__ = ["get_flags", "set_flags", "unique_name"]
