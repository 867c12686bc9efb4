"""The gradient of a bias is summed by the kernel on rows that computes what is summed.

    D = chain of the gradient of a norm;  DX, DY, DBias = fused_gemm_epilogue_grad(D, X, Y)
        ->  DBias = column_sums(D);          DX, DY = fused_gemm_epilogue_grad(D, X, Y)

fuse_elementwise takes the sum into the kernel of the chain, which keeps sums over rows anyway, those of the norm's
scale and bias. So D is not read once more. An example are the layers of a transformer whose results are added to its
residual. The sum is of D as it was computed, before it was rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.rule import GraphBuilder

from .groups import is_candidate
from .split_reductions import LEAST, MOST

LAYER, SLOT = "fused_gemm_epilogue_grad", "DBias"
DEPTH = 3  # operators of a chain behind the norm


class BiasSum(NamedTuple):
    """A sum that stands for an output of a layer's gradient."""

    layer: OpNode
    sum: OpNode


def bias_sums(graph: Graph, rewriter: str) -> list[BiasSum]:
    """Apply the equation of this file."""
    return [_apart(graph, op, rewriter) for op in graph.ops_of([LAYER]) if _pays(op)]


def give_back(graph: Graph, made: Iterable[BiasSum]) -> None:
    """Let the gradient compute the sum again where no kernel took it."""
    for layer, op in made:
        if op in graph:
            (out,) = op.output_vars
            graph.remove_op(op)
            graph.set_output(layer, SLOT, 0, out)


def _apart(graph: Graph, op: OpNode, rewriter: str) -> BiasSum:
    d, (out,) = op.inputs["DOut"][0], op.outputs[SLOT]
    assert d.producer is not None
    g = GraphBuilder(graph, d.producer.rank, op, rewriter)
    graph.drop_output(op, SLOT)
    own = g.column_sums(d)
    (made,) = g.emitted
    graph.set_output(made, "Out", 0, out)
    graph.remove_var(own)
    made.grad_slot = "Bias" if op.forward is not None else None
    return BiasSum(op, made)


def _pays(op: OpNode) -> bool:
    """Whether a kernel on rows computes what is summed, and the layer computes another gradient."""
    d, (out, *_) = op.inputs["DOut"][0], op.outputs.get(SLOT, [None])
    return (
        out is not None and len(op.outputs) > 1 and not op.attrs["trans_x"] and d.type.ndim > 1
        and LEAST <= d.type.shape[-1] <= MOST and out.version == 0 and _sums_rows(d, d.type.ndim - 1)
    )  # fmt: skip


def _sums_rows(d: VarNode, row: int, depth: int = DEPTH) -> bool:
    """Whether the operators that compute `d` element by element begin with one that sums over its rows, too."""
    op = d.producer
    if op is None or depth == 0 or op.role == "forward" or not is_candidate(op):
        return False
    rows = op.opdef.rows
    if rows is not None:
        return bool(rows.sums & op.outputs.keys()) and rows.start(op.attrs, d.type.ndim) == row
    return any(_sums_rows(v, row, depth - 1) for v in op.input_vars if v.type.shape == d.type.shape)
