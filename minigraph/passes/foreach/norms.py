"""Norms of many tensors as one operator.

    norm(x_0), norm(x_1), ...  ->  foreach_norm(x_0, x_1, ...)
"""

from __future__ import annotations

from minigraph.ir.graph import Graph
from minigraph.passes.engine.log import PassReport


def join_norms(graph: Graph, report: PassReport) -> None:
    """Put one operator in the place of the norms of each order and data type."""
