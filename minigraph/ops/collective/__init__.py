"""Operators that all ranks of a group run together."""

from . import collective  # noqa: F401
