"""Operators on each element, and reductions."""

from . import (  # noqa: F401
    activation,
    binary_loss,
    choice,
    compare,
    elementwise,
    elu,
    functions,
    integers,
    p_norm,
    random,
    reduce,
    softplus,
    special,
    statistics,
    unary,
)
