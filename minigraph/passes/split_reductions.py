"""A sum over everything that elementwise operators compute becomes one over rows and one over these sums.

    reduce_sum(X)  -> reduce_sum(reduce_sum(X, axis=-1))       and so for reduce_mean

The first one works on rows, so fuse_elementwise takes it into the kernel that computes X: nobody writes X, nobody reads
it again. The second one reads one number for each row. Both are in X's type, so 16-bit floats stay as they are: their
sums would be rounded once for each row.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Graph, OpNode
from ..types import float32, float64, normalize_axes
from .groups import is_candidate
from .redirect import take_out
from .rule import GraphBuilder

LEAST, MOST = 64, 2048  # elements of a row: fewer leave much to the second sum, more may not fit a kernel's registers
KINDS = frozenset({"reduce_sum", "reduce_mean"})


def split_reductions(graph: Graph, rewriter: str) -> list[tuple[OpNode, OpNode]]:
    """Apply the equation of this file; (sum of everything, sums of rows) of each that was split."""
    return [(op, _sums_of_rows(graph, op, rewriter)) for op in graph.ops_of(KINDS) if _pays(op)]


def join_alone(graph: Graph, split: Iterable[tuple[OpNode, OpNode]]) -> None:
    """Take back what was split for nothing: sums of rows that no kernel took."""
    for op, rows in split:
        if rows in graph:
            graph.set_input(op, "X", 0, rows.inputs["X"][0])
            take_out(graph, rows)


def _sums_of_rows(graph: Graph, op: OpNode, rewriter: str) -> OpNode:
    X = op.inputs["X"][0]
    assert X.producer is not None
    g = GraphBuilder(graph, X.producer.rank, op, rewriter)
    g.forward = None
    sums = g.emit(op.type, X, axis=(-1,), keepdim=True)
    graph.rename_var(sums, graph.fresh_name(f"{next(op.output_vars).name}.rows"))
    graph.set_input(op, "X", 0, sums)
    return g.emitted[0]


def _pays(op: OpNode) -> bool:
    """Whether all of a value is summed that one kernel may compute and sum over rows."""
    X = op.inputs["X"][0]
    whole = len({*normalize_axes(op.attrs["axis"], X.type.ndim)}) == X.type.ndim
    row = X.type.shape[-1] if X.type.ndim > 1 else 0
    maker = X.producer
    return (
        whole and LEAST <= row <= MOST and X.type.dtype in (float32, float64)
        and maker is not None and maker.opdef.rows is None and is_candidate(maker)
    )  # fmt: skip
