"""Operators on rows: softmax, losses and norms."""

from . import linear_cross_entropy, loss, norm, scan, softmax, sort  # noqa: F401
