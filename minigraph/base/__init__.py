"""Paddle's `base` namespace: `base.unique_name.guard()`, `base.set_flags()`."""

from minigraph.program import unique_name
from minigraph.runtime.flags import get_flags, set_flags

__all__ = ["get_flags", "set_flags", "unique_name"]
