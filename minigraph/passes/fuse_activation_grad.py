"""fuse_activation_grad: relu's gradient moves into the matrix product of the gradient before it.

    relu_grad(X, matmul_grad(X, Y, Out_grad).X_grad) -> fused_gemm_epilogue_grad(Out_grad, X, Y, ReserveSpace).DX

This is the third equation of fuse_gemm_epilogue, for a product without bias, which is no fused operator itself. Y may
have leading axes of size 1, as weights that are fed often have. It saves one write and one read of the product, and
the read of X. The fused operator that wrote X keeps one bit for each element instead.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import GraphBuilder, Rule, apply_rule, refuse_unless
from minigraph.types import float32, float64

RESERVE = "ReserveSpace"


class ActivationCache:
    """Activation output -> the ReserveSpace of the fused operator that writes it: what backward rules can keep.

    It is created when the first reader asks, so each one has a reader. A compilation has one such object.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def producer(self, activation_out: VarNode) -> OpNode | None:
        """The fused operator whose activation output this is; None if there is none."""
        op = activation_out.producer
        fused = op is not None and RESERVE in op.opdef.output_names and op.attrs.get("activation") != "none"
        return op if fused else None

    def kept(self, activation_out: VarNode) -> VarNode | None:
        """The ReserveSpace that belongs to this output, None if none exists yet."""
        op = self.producer(activation_out)
        return op.outputs.get(RESERVE, [None])[0] if op is not None else None

    def reserve(self, activation_out: VarNode) -> VarNode:
        """The ReserveSpace that belongs to this output, created at the first request."""
        op = self.producer(activation_out)
        assert op is not None, f"{activation_out} is not the output of a fused activation"
        if RESERVE not in op.outputs:
            inferred = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
            name = self.graph.fresh_name(f"{activation_out.name}.reserve")
            self.graph.set_output(op, RESERVE, 0, self.graph.add_var(name, inferred[RESERVE][0]))
        return op.outputs[RESERVE][0]


class ReluGradMatmulGrad(Rule):
    """relu_grad(X, matmul_grad(X, Y, Out_grad).X_grad) -> fused_gemm_epilogue_grad(Out_grad, X, Y, ReserveSpace)"""

    def __init__(self, cache: ActivationCache) -> None:
        self.cache = cache

    def pattern(self, p, Out_grad, X, Y, *, trans_x, trans_y):
        grad = p.matmul_grad(X, Y, Out_grad, trans_x=trans_x, trans_y=trans_y)
        return p.relu_grad(X, grad.X_grad), grad.Y_grad

    def check(self, Out_grad: VarNode, X: VarNode, Y: VarNode, *, trans_x, **_) -> None:
        rank = X.type.ndim
        refuse_unless(
            X.type.dtype in (float32, float64),
            f"X is {X.type}: products of 16 bits have no such epilogue, and writing the mask costs what reading X does",
        )
        refuse_unless(Y.type.ndim >= 2 and set(Y.type.shape[:-2]) <= {1}, f"Y must be one matrix, is {Y.type}")
        refuse_unless(Y.type.ndim == 2 or Y.type.is_static, f"Y must be a matrix, or of known sizes, is {Y.type}")
        refuse_unless(
            rank == Out_grad.type.ndim >= 2, f"X and Out_grad must have one rank, are {X.type} and {Out_grad.type}"
        )
        refuse_unless(not trans_x or rank == 2, f"trans_x needs X of rank 2, is {X.type}")
        op = self.cache.producer(X)
        refuse_unless(
            op is not None and op.attrs["activation"] == "relu",
            f"{X.name} is not written by a fused relu, so no ReserveSpace is kept for it",
        )

    def rewrite(self, g: GraphBuilder, Out_grad, X, Y, *, trans_x, trans_y):
        matrix = Y if Y.type.ndim == 2 else g.reshape(Y, shape=Y.type.shape[-2:])
        both = g.replaced[1] is not None
        DX, DY, *_ = g.fused_gemm_epilogue_grad(
            Out_grad, X, matrix, self.cache.reserve(X), trans_x=trans_x, trans_y=trans_y,
            activation_grad="relu_grad", needs=["DX", "DY"] if both else ["DX"],
        )  # fmt: skip
        return DX, DY if DY is None or matrix is Y else g.reshape(DY, shape=Y.type.shape)


def fuse_activation_grad(graph: Graph, report: PassReport) -> int:
    """Apply the equation of this file."""
    return apply_rule(graph, ReluGradMatmulGrad(ActivationCache(graph)), report)
