"""A gradient is added to others by the product that computes it, which then has beta = 1.

    sum([A, matmul_grad(X, Y, D).Y_grad])            ->  matmul_accumulate(X, D, Acc=A, trans_x=True)
    elementwise_add(A, cast(matmul_grad(X, Y, D).Y_grad))  ->  the same: A in float32 takes the product's own sums

The same holds for X_grad, for transposed operands and for fused_gemm_epilogue_grad. It saves the memory of the
gradient, one write and one read: for tied weights, for several users of one value, and for gradients that are added to
a state. Refused where another operator reads the gradient, where the product would wait for the others and its
operands, which wait with it, are larger than the gradient, and where the program would need more memory
(engine/lives.py): on a GPU the workspace of the product lies beside the sum then. Refused, too, where the state is
first set to zero or kept, as that of GradientMergeOptimizer: fuse_foreach does all of it in one kernel.
slice_grads.py joins gradients of slices that fill one array together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, NamedTuple

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.passes.engine.lives import FREE, Lives, LiveStep, step_of
from minigraph.passes.engine.log import Applied, PassReport, bytes_text
from minigraph.passes.engine.redirect import require_temporary, take_out, take_place
from minigraph.passes.engine.rule import GraphBuilder, Refused, refuse_unless
from minigraph.passes.foreach.chains import is_member
from minigraph.types import float32

from .slice_grads import join_slice_grads

LAST = 1 << 62  # a rank behind all others of one place
ADDS = frozenset({"sum", "elementwise_add"})
GRADIENTS = {  # operator -> (slots of X, Y and Out_grad, {output: whose gradient it is})
    "matmul_grad": ("X", "Y", "Out_grad", {"X_grad": "X", "Y_grad": "Y"}),
    "fused_gemm_epilogue_grad": ("X", "Y", "DOut", {"DX": "X", "DY": "Y"}),
}


class GradPart(NamedTuple):
    """An operand of an addition that a product computes: through `cast`, as output `slot` of `product`."""

    operand: VarNode
    cast: OpNode | None
    product: OpNode
    slot: str


def part_of(operand: VarNode) -> GradPart | None:
    """The product behind an operand, None where there is none."""
    op, cast = operand.producer, None
    if op is not None and op.type == "cast" and op.attrs["dtype"] == float32:
        cast, op = op, op.inputs["X"][0].producer
    v = operand if cast is None else cast.inputs["X"][0]
    if op is None or op.type not in GRADIENTS:
        return None
    slot = next(s for s, vs in op.outputs.items() if any(x is v for x in vs))
    return GradPart(operand, cast, op, slot) if slot in GRADIENTS[op.type][3] else None


def merges(add: OpNode) -> bool:
    """Whether `add` puts a gradient into a state that an operator on elements made ready for this alone.

    fuse_foreach makes one kernel of both and of the gradient's cast, which keeps none of these values.
    """
    if add.role != "optimize" or not all(v.persistable for v in add.output_vars):
        return False
    makers = [v.producer for v in add.input_vars if len(v.read_by) == 1 and v.pinned is None]
    return any(op is not None and op.type != "cast" and is_member(op) for op in makers)


def factors(part: GradPart) -> tuple[VarNode, VarNode, bool, bool]:
    """(A, B, trans_a, trans_b) with the gradient op(A) @ op(B)."""
    x_slot, y_slot, d_slot, gradients = GRADIENTS[part.product.type]
    X, Y, D = (part.product.inputs[slot][0] for slot in (x_slot, y_slot, d_slot))
    trans_x, trans_y = part.product.attrs["trans_x"], part.product.attrs["trans_y"]
    if gradients[part.slot] == "Y":
        return (D, X, True, trans_x) if trans_y else (X, D, not trans_x, False)
    does_more = part.product.attrs.get("activation_grad", "none") != "none"
    refuse_unless(not does_more, "{} does more to it", part.product)
    return (Y, D, trans_y, True) if trans_x else (D, Y, False, not trans_y)


def check(add: OpNode, part: GradPart, lives: Lives) -> None:
    """Refuse what cannot be rewritten, and what would need more memory."""
    _check(add, part, [*add.input_vars])
    A, B, _, _ = factors(part)
    _check_batches(A, B, part.operand)
    first, last = bisect_right(lives.ranks, part.product.rank), bisect_right(lives.ranks, add.rank) - 1
    if all(op is part.cast or op.opdef.shows is not None for op in lives.ops[first:last]):
        return  # the product has all that by itself
    _check_kept(add, part, {A, B})
    more = lives.more([step_of(op) for op in (part.product, part.cast, add) if op is not None], accumulated(add, part))
    why = f"{part.operand.name} as a part of {add.label()} needs more memory: {bytes_text(more)}"
    refuse_unless(more <= FREE or more <= lives.little, why)


def accumulated(add: OpNode, part: GradPart) -> list[LiveStep]:
    """What runs instead: the rest of the product, the sum of the others, and the product that adds to it."""
    A, B, _, _ = factors(part)
    others, out = [v for v in add.input_vars if v is not part.operand], next(add.output_vars)
    beside = get_op("matmul_accumulate").beside
    assert beside is not None
    return [
        step_of(part.product, without=part.slot),
        LiveStep(add.rank, (part.cast or add, add), others, [out], pairs=[(out, other) for other in others]),
        LiveStep((*add.rank, 0), (), [A, B], [], beside({"Out": out.type}, {})),
    ]


def _accumulate(graph: Graph, add: OpNode, part: GradPart, report: PassReport, lives: Lives) -> OpNode | None:
    """Replace one operand of `add`; the sum of the others, if there are several. Refuses with the graph unchanged."""
    check(add, part, lives)
    operands = list(add.input_vars)
    A, B, trans_a, trans_b = factors(part)
    others = [v for v in operands if v is not part.operand]
    place = add.rank
    g = GraphBuilder(graph, place, add, report.name)
    g.forward, g.layer = None, part.product.layer
    graph.move_op(add, (*place, LAST))  # it may update in place what the product is added to
    try:
        acc: Any = others[0] if len(others) == 1 else g.sum(others)
        new = g.matmul_accumulate(A, B, acc, trans_x=trans_a, trans_y=trans_b)
        out = next(add.output_vars)
        refuse_unless(new.type.accepts(out.type) and out.type.accepts(new.type), "{} would become {}", out, new.type)
    except (Refused, MinigraphError) as no:
        g.undo()
        graph.move_op(add, place)
        raise Refused(no.fact if isinstance(no, MinigraphError) else str(no)) from None
    old = part.product.label(), add.label()
    take_place(graph, add, g.emitted[-1])
    if len(others) > 1:
        graph.rename_var(acc, graph.fresh_name(out.name))
    if part.cast is not None:
        take_out(graph, part.cast)
    gone = part.product.outputs[part.slot][0]
    graph.drop_output(part.product, part.slot)
    graph.remove_var(gone)
    if not part.product.outputs:
        graph.remove_op(part.product)
    report.apply(Applied("GradAccumulation", f"{out.name} = matmul_accumulate", old, add.site, add.role))
    return g.emitted[0] if len(others) > 1 else None


def _check(add: OpNode, part: GradPart, operands: list[VarNode]) -> None:
    refuse_unless(len(operands) > 1, "there is nothing to add it to")
    refuse_unless(not add.grads and not part.product.grads, "{} or its gradient is differentiated", add)
    refuse_unless(all(v.type == operands[0].type for v in operands), "operands of {} are broadcast", add)
    refuse_unless([v is part.operand for v in operands].count(True) == 1, "{} is added to itself", part.operand.name)
    inner = [part.operand] if part.cast is None else [part.operand, part.cast.inputs["X"][0]]
    for v, reader in zip(inner, (add, part.cast), strict=False):
        require_temporary(v)
        other = [c for c in v.consumers if c is not reader]
        refuse_unless(not other, "{} is also read by {}", v.name, *other[:1])


def _check_batches(A: VarNode, B: VarNode, gradient: VarNode) -> None:
    """The product has the gradient's shape at run time too: nothing is summed over a batch that was broadcast."""
    a, b, c = (v.type.shape[:-2] for v in (A, B, gradient))
    known = a == b == c and -1 not in a
    refuse_unless(not c or not a or not b or known, "{} may be a sum over a batch that was broadcast", gradient.name)


def _check_kept(add: OpNode, part: GradPart, factors: set[VarNode]) -> None:
    """What the product keeps until the addition takes little more than its gradient."""
    kept = [v for v in factors if v.pinned is None and v.producer is not None and not _read_from(v, add)]
    sizes = [v.type.shape.count(-1) for v in (part.operand, *kept)]
    if any(n != sizes[0] for n in sizes):  # only a run knows which is larger
        return
    own, *others = (abs(math.prod(v.type.shape)) * v.type.dtype.itemsize for v in (part.operand, *kept))
    names = " and ".join(sorted(v.name for v in kept))
    more = f"{names} would be kept until {part.operand.name} is added: {bytes_text(sum(others))} for {bytes_text(own)}"
    refuse_unless(sum(others) <= own + FREE, more)


def _read_from(v: VarNode, add: OpNode) -> bool:
    """Whether an operator at the addition's place or behind it reads the values of v."""
    return any(op.rank >= add.rank and op.reads_values_of(v) for op in v.consumers[-1:])


def fuse_grad_accumulation(graph: Graph, report: PassReport, fuse_foreach: bool = False) -> int:
    """Apply the equations of this file, the last operand of an addition first.

    fuse_foreach   whether that pass comes later
    """
    lives = Lives(graph)
    for add in graph.ops_of(ADDS):
        left: OpNode | None = None if join_slice_grads(graph, add, report) else add
        if left is not None and fuse_foreach and merges(add):
            if any(map(part_of, add.input_vars)):
                report.refuse("GradAccumulation", add.label(), "one kernel makes the state ready and adds", add.site)
            continue
        while left is not None:
            parts = [part for part in map(part_of, reversed(list(left.input_vars))) if part is not None]
            left = _one(graph, left, parts, report, lives)
    return len(report.applied)


def _one(graph: Graph, add: OpNode, parts: list[GradPart], report: PassReport, lives: Lives) -> OpNode | None:
    """Replace the first operand that can be; returns the addition of the others, if one is left."""
    refused = []
    for part in parts:
        try:
            return _accumulate(graph, add, part, report, lives)
        except Refused as no:
            refused.append(str(no))
    if refused:
        report.refuse("GradAccumulation", add.label(), refused[0], add.site)
    return None
