"""Paddle's `base` namespace: `base.unique_name.guard()`."""

from .. import unique_name

__all__ = ["unique_name"]
