"""Operators on each element, and reductions."""

from . import (  # noqa: F401
    activation,
    binary_loss,
    compare,
    elementwise,
    elu,
    p_norm,
    random,
    reduce,
    softplus,
    statistics,
    unary,
)
