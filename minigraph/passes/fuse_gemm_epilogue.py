"""fuse_gemm_epilogue: bias and activation move into the matrix product's epilogue (Paddle PR #39437).

    relu|gelu(elementwise_add(matmul(X, Y), Bias)) -> fused_gemm_epilogue(X, Y, Bias)
    elementwise_add(matmul(X, Y), Bias)            -> fused_gemm_epilogue(X, Y, Bias)
    relu_grad|gelu_grad(fused_gemm_epilogue_grad(DOut, X, Y).DX)
                                                   -> fused_gemm_epilogue_grad(DOut, X, Y, ReserveSpace)

Saves one read and one write of the product for the bias, and again for the activation and its
gradient. The second gradient of a linear layer becomes `fused_gemm_epilogue_grad` with the first
two equations, by the fused operator's own gradient rule. The third joins a layer's gradient with
the activation below it: forward spans act(linear(x)), backward spans linear(act(x)). Behind gelu it also adds up the
gradient of the bias below, which a kernel with that epilogue does on the way:

    DX = fused_gemm_epilogue_grad(..., gelu_grad);  DY, DBias = fused_gemm_epilogue_grad(DX, ...)
        ->  DX, DXSums = fused_gemm_epilogue_grad(..., gelu_grad);  DY = fused_gemm_epilogue_grad(DX, ...)

Bias is [N] or [1, N]. A rule takes trans_x for X of rank 2 only. The operator by itself, as `append_op` adds it, takes
any rank: with trans_x the first axis of X is summed over and all others are rows, as in Paddle 2.x.
"""

from __future__ import annotations

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import GraphBuilder, Rule, apply_rule, refuse_unless
from minigraph.passes.fuse_activation_grad import ActivationCache
from minigraph.types import FLOATS

GRADIENT = "fused_gemm_epilogue_grad"


def linear(p, X, Y, Bias, trans_x, trans_y, axis):
    return p.elementwise_add(p.matmul(X, Y, trans_x=trans_x, trans_y=trans_y), Bias, axis=axis)


class LinearEpilogue(Rule):
    """activation(linear(X, Y, Bias)) -> fused_gemm_epilogue(X, Y, Bias)"""

    by_types = True
    activation = "none"

    def check(self, X: VarNode, Y: VarNode, Bias: VarNode, *, trans_x, trans_y, axis, **_) -> None:
        rank = X.type.ndim
        refuse_unless(X.type.dtype in FLOATS, "X must be a float, is {}", X.type)
        refuse_unless(rank >= 2, "X must have rank 2 or more, is {}", X.type)
        refuse_unless(Y.type.ndim == 2, "Y must be 2-D, is {}", Y.type)
        row = Bias.type.ndim == 1 or (Bias.type.ndim == 2 and Bias.type.shape[0] == 1)
        refuse_unless(row, "Bias must be [N] or [1, N], is {}", Bias.type)
        refuse_unless(axis in (-1, rank - 1), "Bias is added along axis {}, not the last one", axis)
        refuse_unless(not trans_x or rank == 2, "trans_x needs X of rank 2, is {}", X.type)
        columns, given = Y.type.shape[0 if trans_y else 1], Bias.type.shape[-1]
        refuse_unless(
            given == columns != -1, "Bias must have one element per column of Y ({}), is {}", columns, Bias.type
        )

    def rewrite(self, g: GraphBuilder, X, Y, Bias, *, trans_x, trans_y, axis, approximate=False):
        keep = self.activation == "gelu" and g.training  # gelu_grad reads the pre-activation
        return g.fused_gemm_epilogue(
            X, Y, Bias, trans_x=trans_x, trans_y=trans_y, activation=self.activation,
            approximate=approximate, needs=["ReserveSpace"] if keep else (),
        )[0]  # fmt: skip


class LinearBias(LinearEpilogue):
    """elementwise_add(matmul(X, Y), Bias) -> fused_gemm_epilogue(X, Y, Bias)"""

    def pattern(self, p, X, Y, Bias, *, trans_x, trans_y, axis):
        return linear(p, X, Y, Bias, trans_x, trans_y, axis)


class LinearRelu(LinearEpilogue):
    """relu(elementwise_add(matmul(X, Y), Bias)) -> fused_gemm_epilogue(X, Y, Bias)"""

    activation = "relu"

    def pattern(self, p, X, Y, Bias, *, trans_x, trans_y, axis):
        return p.relu(linear(p, X, Y, Bias, trans_x, trans_y, axis))


class LinearGelu(LinearEpilogue):
    """gelu(elementwise_add(matmul(X, Y), Bias)) -> fused_gemm_epilogue(X, Y, Bias)"""

    activation = "gelu"

    def pattern(self, p, X, Y, Bias, *, trans_x, trans_y, axis, approximate):
        return p.gelu(linear(p, X, Y, Bias, trans_x, trans_y, axis), approximate=approximate)


class ActivationGrad(Rule):
    """activation_grad(..., fused_gemm_epilogue_grad(DOut, X, Y).DX) -> fused_gemm_epilogue_grad, ReserveSpace"""

    activation: str
    gradient: str  # its operator

    def __init__(self, cache: ActivationCache) -> None:
        self.cache = cache

    def check(self, X: VarNode, **_) -> None:
        op = self.cache.producer(X)
        refuse_unless(
            op is not None and op.attrs["activation"] == self.activation,
            "{} is not written by a fused {}, so no ReserveSpace is kept for it", X.name, self.activation,
        )  # fmt: skip

    def rewrite(self, g: GraphBuilder, DOut, X, Y, *, trans_x, trans_y, approximate=False, **_):
        needs = [slot for slot, v in zip(("DX", "DY", "DBias"), g.replaced, strict=True) if v is not None]
        return g.fused_gemm_epilogue_grad(
            DOut, X, Y, self.cache.reserve(X), trans_x=trans_x, trans_y=trans_y,
            activation_grad=self.gradient, approximate=approximate, needs=needs,
        )[:3]  # fmt: skip


class ReluGradLinearGrad(ActivationGrad):
    """relu_grad(X, fused_gemm_epilogue_grad(DOut, X, Y).DX) -> fused_gemm_epilogue_grad(DOut, X, Y, ReserveSpace)"""

    activation, gradient = "relu", "relu_grad"

    def pattern(self, p, DOut, X, Y, *, trans_x, trans_y):
        grad = p.fused_gemm_epilogue_grad(DOut, X, Y, trans_x=trans_x, trans_y=trans_y)
        return p.relu_grad(X, grad.DX), grad.DY, grad.DBias


class GeluGradLinearGrad(ActivationGrad):
    """gelu_grad(Reserve, fused_gemm_epilogue_grad(DOut, X, Y).DX) -> fused_gemm_epilogue_grad(DOut, X, Y, Reserve)"""

    activation, gradient = "gelu", "gelu_grad"

    def pattern(self, p, DOut, X, Y, Reserve, *, trans_x, trans_y, approximate):
        grad = p.fused_gemm_epilogue_grad(DOut, X, Y, trans_x=trans_x, trans_y=trans_y)
        return p.gelu_grad(Reserve, grad.DX, approximate=approximate), grad.DY, grad.DBias

    def check(self, X: VarNode, *, Reserve: VarNode, **_) -> None:
        super().check(X)
        refuse_unless(
            self.cache.kept(X) is Reserve, f"gelu_grad reads {Reserve.name}, which is not the input of {X.name}"
        )


def fuse_gemm_epilogue(graph: Graph, report: PassReport) -> int:
    """Apply the equations of this file; activations before plain layers, forward before backward."""
    cache = ActivationCache(graph)
    rules = LinearRelu(), LinearGelu(), LinearBias(), ReluGradLinearGrad(cache), GeluGradLinearGrad(cache)
    applied = sum(apply_rule(graph, rule, report) for rule in rules)
    for op in list(graph.ops_of([GRADIENT])):
        _add_up_before(graph, op)
    return applied


def _add_up_before(graph: Graph, op: OpNode) -> None:
    """Let the gradient behind gelu's slope give the sums of what it computes, where `op` sums that for its bias."""
    d, (bias, *_) = op.inputs["DOut"][0], op.outputs.get("DBias", [None])
    before = d.producer
    if bias is None or bias.version > 0 or len(op.outputs) < 2 or before is None or before.type != GRADIENT:
        return
    if before.attrs["activation_grad"] == "gelu_grad" and before.outputs.get("DX") == [d] and d.type.ndim > 1:
        graph.drop_output(op, "DBias")
        graph.set_output(before, "DXSums", 0, bias)
