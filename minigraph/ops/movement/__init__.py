"""Operators that make, move and pick elements."""

from . import creation, embedding, index, join, shape  # noqa: F401
