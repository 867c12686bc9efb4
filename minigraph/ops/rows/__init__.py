"""Operators on rows: softmax, losses and norms."""

from . import linear_cross_entropy, loss, norm, softmax, sort  # noqa: F401
