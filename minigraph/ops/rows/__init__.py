"""Operators on rows: softmax, losses, norms and sums over rows."""

from . import column_sums, linear_cross_entropy, loss, norm, scan, softmax, sort  # noqa: F401
