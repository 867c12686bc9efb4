"""Operators that make, move and pick elements."""

from . import creation, embedding, index, join, pad, places, shape  # noqa: F401
