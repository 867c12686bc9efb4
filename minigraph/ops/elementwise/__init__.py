"""Operators on each element, and reductions."""

from . import (  # noqa: F401
    activation,
    choice,
    compare,
    elementwise,
    functions,
    integers,
    p_norm,
    random,
    reduce,
    special,
    unary,
)
