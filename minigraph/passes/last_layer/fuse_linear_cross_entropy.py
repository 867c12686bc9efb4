"""A linear layer and its cross entropy become one operator that never has the scores of all rows.

    softmax_with_cross_entropy(matmul(X, W) + Bias, Label)  ->  fused_linear_cross_entropy(X, W, Label, Bias)

with what else may stand between (linear_head.py), and where the loss is written out of log_softmax and one_hot. What
follows on the loss of each row, means, masks and weights, stays as it is. Then forward and grad operator are joined,
so that the scores are computed once:

    Loss = fused_linear_cross_entropy(X, W, Label), DX, DW = fused_linear_cross_entropy_grad(X, W, Label, DLoss)
        ->  Loss, DX, DW = fused_linear_cross_entropy(X, W, Label, DLoss=DLoss)

DLoss is computed ahead of the loss (engine/ahead.py), which is refused where it depends on the loss itself. Layers of
no more classes than features are left alone: their scores take no more memory than what the layer reads. So are
those whose weight gradient is added to others, where the rows are so few that it would take more memory than scores.
"""

from __future__ import annotations

from typing import Any

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.kernels.chunks import Chunking
from minigraph.passes.engine.ahead import Ahead
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.pattern import Match, Mismatch, PatternVar
from minigraph.passes.engine.redirect import is_unread, take_out, unlink
from minigraph.passes.engine.rule import GraphBuilder, Refused, Rule, apply_rule, refuse_unless
from minigraph.types import TensorType, same

from .linear_head import Head, HeadPattern
from .memory import FUSED, keep_sums, refuse_more_memory
from .written_loss import Trail, one_hot_of


class ClassWeightsPattern:
    """reduce_sum(smoothed one_hot * Weight) over the classes."""

    root_type = "reduce_sum"

    def match(self, anchor: OpNode) -> tuple[list[Match], int, str]:
        """As Pattern.match."""
        product, match = anchor.inputs["X"][0].producer, Match()
        if product is None or product.type != "elementwise_mul":
            return [], 0, ""
        for target, weight in (("X", "Y"), ("Y", "X")):
            try:
                one_hot = one_hot_of(product.inputs[target][0], Trail())
            except Mismatch:
                continue
            if product.inputs[weight][0].type.ndim != 1:  # log-probabilities
                return [], 0, ""
            match.ops = {PatternVar("sum"): anchor, PatternVar("product"): product}  # type: ignore[dict-item]
            match.attrs = {"one_hot": one_hot, "Weight": product.inputs[weight][0], "anchor": anchor}
            match.kept = [anchor.outputs["Out"][0]]
            return [match], 2, ""
        return [], 1, f"{product.label()} does not weigh a one_hot"


class ClassWeights(Rule):
    """reduce_sum(one_hot(Label) * Weight) -> embedding(Label, Weight): the labels' weights without a one_hot"""

    compiled = ClassWeightsPattern()  # type: ignore[assignment]

    def check(self, one_hot: Any, Weight: VarNode, anchor: OpNode) -> None:
        depth, rank = one_hot[0].attrs["depth"], anchor.inputs["X"][0].type.ndim
        refuse_unless(Weight.type.shape == (depth,), f"{Weight} does not have one element per class ({depth})")
        axis = anchor.attrs["axis"]
        refuse_unless(axis is not None and [a % rank for a in axis] == [rank - 1], f"the sum goes over axes {axis}")

    def rewrite(self, g: GraphBuilder, one_hot: Any, Weight: VarNode, anchor: OpNode) -> VarNode:
        op, scale, bias = one_hot
        weights = g.embedding(op.inputs["X"][0], g.unsqueeze(Weight, axes=(1,)))
        if scale != 1:
            weights = g.scale(weights, scale=scale)
        if bias:
            weights = g.elementwise_add(weights, g.scale(g.reduce_sum(Weight), scale=bias))
        return weights if anchor.attrs["keepdim"] else g.squeeze(weights, axes=(-1,))


class LinearCrossEntropy(Rule):
    """softmax_with_cross_entropy(matmul(X, W) + Bias, Label) -> fused_linear_cross_entropy(X, W, Label, Bias)"""

    def __init__(self, graph: Graph, root_type: str, chunking: Chunking, accumulates: bool) -> None:
        self.compiled, self.graph = HeadPattern(root_type), graph  # type: ignore[assignment]
        self.chunking, self.accumulates = chunking, accumulates

    def check(self, head: Head) -> None:
        refuse_unless(head.W.type.ndim == 2, f"W must be 2-D, is {head.W.type}")
        refuse_unless(head.X.type.ndim >= 2, f"X must have rank 2 or more, is {head.X.type}")
        width, classes = head.W.type.shape[::-1] if head.trans_w else head.W.type.shape
        for trail in head.trails:
            stop = trail.stop()
            refuse_unless(stop is None, "no gradient flows through {}, but beside it", stop and stop.name)
        refuse_unless(classes > width, f"the scores of {classes} classes are no larger than X with {width} features")
        refuse_more_memory(self.graph, head, self.chunking, self.accumulates)

    def rewrite(self, g: GraphBuilder, head: Head) -> Any:
        x = head.X
        for op_type, attrs in head.moves:
            x = g.emit(op_type, x, **attrs)
        side = {"Prediction": head.prediction, "Square": head.square}
        loss, _, prediction, *_, square = g.fused_linear_cross_entropy(
            x, head.W, head.Label, head.Bias, trans_w=head.trans_w, ignore_index=head.ignore_index,
            label_smoothing=head.smoothing, softcap=head.softcap, chunk_bytes=self.chunking.nbytes,
            chunk_rows=self.chunking.rows, needs=[slot for slot, op in side.items() if op is not None],
        )  # fmt: skip
        if head.total is not None:
            loss = _summed(g, _times(g, loss, -head.weight), **head.total.attrs)
        old = g.replaced[0]
        assert old is not None
        if loss.type.dtype != old.type.dtype:  # of 16 bits where the scores were
            loss = g.cast(loss, dtype=old.type.dtype)
        results = [loss]
        if head.prediction is not None:
            results.append(_shaped(g, prediction, head.prediction.outputs["Out"][0].type))
        if head.square is not None:
            results.append(_shaped(g, _times(g, square, head.square_factor), head.square.outputs["Out"][0].type))
        return tuple(results)


def _times(g: GraphBuilder, x: VarNode, factor: float) -> VarNode:
    return x if factor == 1 else g.scale(x, scale=factor)


def _summed(g: GraphBuilder, loss: VarNode, axis: tuple[int, ...] | None, keepdim: bool) -> VarNode:
    """The loss of each row over axes, of which the last has size 1."""
    if axis is None or len(axis) > 1:
        return g.reduce_sum(loss, axis=axis, keepdim=keepdim)
    return loss if keepdim else g.squeeze(loss, axes=(-1,))


def _shaped(g: GraphBuilder, rows: VarNode, wanted: TensorType) -> VarNode:
    """One number for each row, [..., 1], as the program has them."""
    if wanted.dtype != rows.type.dtype:
        rows = g.cast(rows, dtype=wanted.dtype)
    if rows.type == wanted:
        return rows
    if rows.type.shape[:-1] == wanted.shape:
        return g.squeeze(rows, axes=(-1,))
    refuse_unless(wanted.shape.count(-1) <= 1, f"the shape of {wanted} is not known")
    return g.reshape(rows, shape=wanted.shape)


def join(graph: Graph, forward: OpNode, report: PassReport) -> bool:
    """Let `forward` compute the gradients that its grad operator computes; whether it does now."""
    grads = [op for op in forward.grads if op.type == f"{FUSED}_grad"]
    if not grads or "DLoss" in forward.inputs:
        return False
    g = GraphBuilder(graph, forward.rank, forward, report.name)
    g.forward = None
    ahead = Ahead(g)
    try:
        new = _joined(ahead, forward, grads)
    except Refused as no:
        ahead.undo()
        report.refuse("JoinGradient", grads[0].label(), f"the scores are computed twice: {no}", forward.site)
        return False
    for op in ahead.moved:
        unlink(graph, op)  # its forward operator may stand behind it now
    old_seeds, old = _seeds(grads[0]).values(), (forward.label(), grads[0].label())
    for op in (grads[0], forward):
        for other in [o for o in op.grads if o is not grads[0]]:
            graph.link(other, new)
        outputs = [(slot, v) for slot, vs in op.outputs.items() for v in vs]
        graph.remove_op(op)
        for slot, v in outputs:
            stand_in = new.outputs[slot][0]
            graph.set_output(new, slot, 0, v)
            graph.remove_var(stand_in)
            g.created.remove(stand_in)
    for seed in old_seeds:
        _remove_unread(graph, seed.producer, forward.rank)
    for v in g.created:
        origin = ahead.origins.get(v)
        graph.rename_var(v, graph.fresh_name(origin.name if origin else f"{new.outputs['Loss'][0].name}.like"))
    loss = new.outputs["Loss"][0]
    report.apply(Applied("JoinGradient", f"{loss.name} = {new.type}", old, new.site, new.role))
    return True


def _seeds(grad: OpNode) -> dict[str, VarNode]:
    """The gradients that enter a grad operator."""
    return {slot: grad.inputs[slot][0] for slot in ("DLoss", "DSquare") if slot in grad.inputs}


def _joined(ahead: Ahead, forward: OpNode, grads: list[OpNode]) -> OpNode:
    """Emit the operator that does what forward and grad operator do."""
    g = ahead.g
    refuse_unless(len(grads) == 1, f"{forward.label()} is differentiated twice")
    grad = grads[0]
    attrs = {**forward.attrs, "grad_dtype": grad.attrs["grad_dtype"]}
    alike = all(forward.inputs.get(s) == vs for s, vs in grad.inputs.items() if s not in _seeds(grad))
    alike = alike and all(same(value, grad.attrs.get(name)) for name, value in attrs.items())
    refuse_unless(alike, f"{grad.label()} reads other values than {forward.label()}")
    twice = forward.outputs.keys() & grad.outputs.keys()
    refuse_unless(not twice, f"both compute {', '.join(sorted(twice))}")
    for v in grad.output_vars:
        refuse_unless(v.version == 0 and v.next_version is None, f"{v.name} is updated in place")
    loss, label = forward.outputs["Loss"][0], forward.inputs["Label"][0]
    rows = label if label.type.ndim == loss.type.ndim else g.unsqueeze(label, axes=(-1,))
    ahead.hidden |= {v: g.fill_any_like(rows, value=0, dtype=v.type.dtype) for v in forward.output_vars}
    seeds = {slot: ahead.value(v) for slot, v in _seeds(grad).items()}
    for op in reversed(list(g.emitted)):  # operators that were emitted and are not read
        if is_unread(op) and not any(v is seed for v in op.output_vars for seed in seeds.values()):
            g.emitted.remove(op)
            g.created = [v for v in g.created if not any(v is x for x in op.output_vars)]
            take_out(g.graph, op)
    inputs = {slot: vs[0] for slot, vs in forward.inputs.items()}
    g.emit(FUSED, **inputs, **seeds, **attrs, needs=[*forward.outputs, *grad.outputs])
    return g.emitted[-1]


def _remove_unread(graph: Graph, op: OpNode | None, after: Rank) -> None:
    """Take `op` out, and what it was computed from behind `after`, as far as nobody reads it any more."""
    if op is None or op not in graph or op.rank <= after or not is_unread(op):
        return
    above = [x.producer for x in op.input_vars]
    take_out(graph, op)
    for x in above:
        _remove_unread(graph, x, after)


def fuse_linear_cross_entropy(
    graph: Graph, report: PassReport, linear_cross_entropy_chunk_bytes: int | None = None,
    linear_cross_entropy_chunk_rows: int | None = None, fuse_grad_accumulation: bool = False,
    fuse_foreach: bool = False,
) -> int:  # fmt: skip
    """Class weights without one_hot, heads, forward with backward, then gradients of float32 weights."""
    chunking = Chunking(linear_cross_entropy_chunk_bytes, linear_cross_entropy_chunk_rows)
    applied = apply_rule(graph, ClassWeights(), report)
    for root in ("softmax_with_cross_entropy", "reduce_sum"):  # the loss is an operator, or written out
        applied += apply_rule(graph, LinearCrossEntropy(graph, root, chunking, fuse_grad_accumulation), report)
    for op in graph.ops_of([FUSED]):
        applied += join(graph, op, report)
    for op in graph.ops_of([FUSED, f"{FUSED}_grad"]):
        applied += keep_sums(graph, op, report, fuse_foreach)
    return applied
