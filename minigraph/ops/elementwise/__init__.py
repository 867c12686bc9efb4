"""Operators on each element, and reductions."""

from . import activation, compare, elementwise, p_norm, random, reduce, unary  # noqa: F401
