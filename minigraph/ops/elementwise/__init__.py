"""Operators on each element, and reductions."""

from . import activation, compare, elementwise, random, reduce, unary  # noqa: F401
