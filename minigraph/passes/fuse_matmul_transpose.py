"""fuse_matmul_transpose: a matrix product reads its operands as they are, not their transposes.

    matmul(transpose(X, (..., n-1, n-2)), Y)  ->  matmul(X, Y, trans_x)
    matmul(X, transpose(Y, (..., n-1, n-2)))  ->  matmul(X, Y, trans_y)

Saves a copy of the operand where a transpose is one (CUDA), and one of its gradient; tied weights
stay one array. Gradients follow by the product's own rule. Refused where other axes move. Refused too
for an X of rank 3 or more with a matrix Y: now it is one product over all rows, then it would be one
for each matrix of the batch, and no epilogue would fuse with it.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph, VarNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import GraphBuilder, Rule, apply_rule, refuse_unless
from minigraph.types import normalize_axes


class TransposedX(Rule):
    """matmul(transpose(X), Y) -> matmul(X, Y, trans_x=not trans_x)"""

    def pattern(self, p, X, Y, *, perm, trans_x, trans_y):
        return p.matmul(p.transpose(X, perm=perm), Y, trans_x=trans_x, trans_y=trans_y)

    def check(self, X: VarNode, Y: VarNode, *, perm, **_) -> None:
        _require_matrices_transposed(perm)
        rank, other = X.type.ndim, Y.type.ndim
        refuse_unless(rank == 2 or other != 2, f"X has rank {rank} and Y is a matrix, a product over all rows")

    def rewrite(self, g: GraphBuilder, X, Y, *, perm, trans_x, trans_y):
        return g.matmul(X, Y, trans_x=not trans_x, trans_y=trans_y)


class TransposedY(Rule):
    """matmul(X, transpose(Y)) -> matmul(X, Y, trans_y=not trans_y)"""

    def pattern(self, p, X, Y, *, perm, trans_x, trans_y):
        return p.matmul(X, p.transpose(Y, perm=perm), trans_x=trans_x, trans_y=trans_y)

    def check(self, *, perm, **_) -> None:
        _require_matrices_transposed(perm)

    def rewrite(self, g: GraphBuilder, X, Y, *, perm, trans_x, trans_y):
        return g.matmul(X, Y, trans_x=trans_x, trans_y=not trans_y)


def _require_matrices_transposed(perm: tuple[int, ...]) -> None:
    rank = len(perm)
    wanted = (*range(rank - 2), rank - 1, rank - 2)
    refuse_unless(
        rank >= 2 and normalize_axes(perm, rank) == wanted, f"perm {list(perm)} is not a swap of the last two axes"
    )


def fuse_matmul_transpose(graph: Graph, report: PassReport) -> int:
    """Apply the equations of this file, to both operands."""
    return sum(apply_rule(graph, rule, report) for rule in (TransposedX(), TransposedY()))
