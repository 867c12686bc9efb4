"""remove_redundant_transpose: two transposes in a row are one, or none.

    transpose(transpose(X, p), q)      ->  transpose(X, p[q])
    transpose(X, p) with p = 0, 1, ...  ->  X

Saves a copy of the array where a transpose is one (CUDA), and lets producer and reader meet in
other rewrites. Gradients of transposes are transposes and go the same way.
"""

from __future__ import annotations

from typing import Any

from minigraph.ir.graph import Graph, OpNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.pairs import combine_pairs
from minigraph.types import normalize_axes


def remove_redundant_transpose(graph: Graph, report: PassReport) -> int:
    """Apply the equations of this file."""
    return combine_pairs(graph, report, "transpose", "Transposes", _combine, _is_identity)


def _perm(attrs: dict[str, Any]) -> tuple[int, ...]:
    return normalize_axes(attrs["perm"], len(attrs["perm"]))


def _combine(first: OpNode, second: OpNode) -> dict[str, Any]:
    p = _perm(first.attrs)
    return {"perm": tuple(p[axis] for axis in _perm(second.attrs))}


def _is_identity(_: OpNode, attrs: dict[str, Any]) -> bool:
    perm = _perm(attrs)
    return perm == tuple(range(len(perm)))
