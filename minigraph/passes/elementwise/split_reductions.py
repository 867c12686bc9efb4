"""A sum over everything that elementwise operators compute becomes one over rows and one over these sums.

    reduce_sum(X)          -> reduce_sum(reduce_sum(X, axis=-1))       and so for reduce_mean
    reduce_sum_grad(X, D)  -> elementwise_div(D, fill_any_like(X, 1))  and so for reduce_mean_grad, with the number
                                                                       of X's elements, where it is known

The first sum works on rows, so fuse_elementwise takes it into the kernel that computes X: X is neither written nor read
again. The second sum reads one number for each row. Both are in X's type. So sums of 16-bit floats are not split: they
would be rounded once for each row. The gradient of a sum of everything is one number everywhere. It works element by
element, so it joins the kernel that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.redirect import take_out, take_out_unread, unlink
from minigraph.passes.engine.rule import GraphBuilder
from minigraph.types import float32, float64, normalize_axes

from .groups import is_candidate

LEAST, MOST = 64, 2048  # elements of a row: fewer leave much to the second sum, more may not fit a kernel's registers
KINDS = frozenset({"reduce_sum", "reduce_mean"})
GRADIENTS = frozenset({"reduce_sum_grad", "reduce_mean_grad"})


def split_reductions(graph: Graph, rewriter: str) -> list[tuple[OpNode, OpNode]]:
    """Apply the equation of this file; (sum of everything, sums of rows) of each that was split."""
    return [(op, _sums_of_rows(graph, op, rewriter)) for op in graph.ops_of(KINDS) if _pays(op)]


def join_alone(graph: Graph, split: Iterable[tuple[OpNode, OpNode]]) -> None:
    """Join a sum again whose sums of rows no kernel took."""
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


class Spread:
    """The second equation of this file, applied to one operator."""

    def __init__(self, graph: Graph, op: OpNode, rewriter: str) -> None:
        self.graph, self.op, self.rewriter = graph, op, rewriter
        forward = op.forward
        unlink(graph, op)
        g, D = self._builder(op), op.inputs["Out_grad"][0]
        X = op.inputs["X"][0]
        count = g.fill_any_like(X, value=1.0 if op.type == "reduce_sum_grad" else float(math.prod(X.type.shape)))
        graph.rename_var(count, graph.fresh_name(f"{next(op.output_vars).name}.count"))
        self.made = self._put(g.elementwise_div(D, count), op)
        take_out_unread(graph, [forward])  # whose gradient it was, if the sum itself is not read

    def _builder(self, op: OpNode) -> GraphBuilder:
        g = GraphBuilder(self.graph, op.rank, op, self.rewriter)
        g.forward = None
        return g

    def _put(self, new: VarNode, old: OpNode) -> OpNode:
        """Let the operator that makes `new` write what `old` wrote."""
        made = new.producer
        assert made is not None
        (out,) = old.output_vars
        for grad in list(old.grads):
            unlink(self.graph, grad)
        self.graph.remove_op(old)
        self.graph.set_output(made, next(iter(made.outputs)), 0, out)
        self.graph.remove_var(new)
        return made

    def undo_alone(self) -> None:
        """Take it back where no kernel took it."""
        if self.made not in self.graph:
            return
        D, count = self.made.inputs["X"][0], self.made.inputs["Y"][0].producer
        assert count is not None
        g = self._builder(self.made)
        self._put(g.emit(self.op.type, count.inputs["X"][0], D, **self.op.attrs), self.made)
        take_out(self.graph, count)


def spread_gradients(graph: Graph, rewriter: str) -> list[Spread]:
    """Apply the second equation wherever an operator that may join reads the gradient."""
    return [Spread(graph, op, rewriter) for op in graph.ops_of(GRADIENTS) if _spreads(op)]


def _spreads(op: OpNode) -> bool:
    X, (out,) = op.inputs["X"][0], op.output_vars
    whole = len({*normalize_axes(op.attrs["axis"], X.type.ndim)}) == X.type.ndim > 0
    counted = op.type == "reduce_sum_grad" or (X.type.is_static and X.type.dtype in (float32, float64))
    temporary = out.version == 0 and out.next_version is None
    return whole and counted and temporary and any(is_candidate(c) for c in out.consumers)
