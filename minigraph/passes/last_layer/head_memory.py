"""Whether a program needs more memory with a head as one operator: it has the weight's gradient early.

    scores, ..., dscores, DX and DW  ->  some rows of scores, DX and DW, where the loss is

What is weighed besides is the sum of which DW is a part, for tied weights and gradients that are merged over steps:
fuse_grad_accumulation, which comes later, lets a product add DW to it, but the fused operator's DW waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.kernels.chunks import Chunking
from minigraph.opdef import get_op
from minigraph.passes.accumulation.fuse_grad_accumulation import (
    ADDS,
    GradPart,
    accumulated,
    check,
    part_of,
)
from minigraph.passes.engine.lives import FREE, Lives, LiveStep, step_of
from minigraph.passes.engine.log import bytes_text
from minigraph.passes.engine.replacement import linked_grads
from minigraph.passes.engine.rule import Refused, refuse_unless

from .linear_head import Head

FUSED = "fused_linear_cross_entropy"


def refuse_more_memory(graph: Graph, head: Head, chunking: Chunking, accumulates: bool) -> None:
    """Refuse where the graph would need more; where the rows are not known, and that depends on how many they are.

    accumulates  whether fuse_grad_accumulation runs later
    """
    dx, dw = _gradient(head, "X_grad"), _gradient(head, "Y_grad")
    if -1 in head.X.type.shape[:-1]:
        other = _other_reader(head)
        which = f"the gradient of {_before_cast(head.W).name} is added to that of {other.label() if other else ''}"
        more = dw is not None and other is not None and (accumulates or other.type in ("matmul", FUSED))
        refuse_unless(not more, f"{which}, and the number of rows is not known")
        return
    lives, grads = Lives(graph), linked_grads(head.ops)[0]
    before = {op.rank: step_of(op) for op in chain(head.ops, grads)}
    after, found = [_fused_step(head, [*head.ops, *grads], dx, dw, chunking)], None
    if accumulates and dw is not None and (found := _addition(dw)) is not None:
        add, own = found
        parts = [part for v in reversed(list(add.input_vars)) if (part := part_of(v)) is not None]
        before |= {step.rank: step for step in _sum(parts, add, own, lives)}
        after += _sum([part for part in parts if part.operand is not own.operand], add, own, lives)
    more = lives.more([*before.values()], after, alone=found is not None)
    refuse_unless(more <= FREE or more <= lives.little, f"the program would need {bytes_text(more)} more")


def _gradient(head: Head, slot: str) -> VarNode | None:
    """The gradient of an operand of the head's product."""
    return next((grad.outputs[slot][0] for grad in head.product.grads if slot in grad.outputs), None)


def _before_cast(v: VarNode) -> VarNode:
    """The parameter of which `v` is the copy in 16 bits that mixed precision reads; or `v` itself."""
    op = v.producer
    return op.inputs["X"][0] if op is not None and op.type == "cast" else v


def _other_reader(head: Head) -> OpNode | None:
    """Another operator that gives the weight a gradient."""
    source = _before_cast(head.W)
    readers = [*head.W.consumers, *(source.consumers if source is not head.W else ())]
    return next((op for op in readers if op not in (head.product, head.W.producer) and op.grads), None)


def _fused_step(
    head: Head, ops: Sequence[OpNode], dx: VarNode | None, dw: VarNode | None, chunking: Chunking
) -> LiveStep:
    """The fused operator, which is where the loss was."""
    ask, x, w = get_op(FUSED).beside_function, head.X, head.W
    assert ask is not None
    types = {slot: v.type for slot, v in (("X", x), ("W", w), ("DX", dx), ("DW", dw)) if v is not None}
    attrs = {"trans_w": head.trans_w, "accumulate_dtype": None, "chunk_bytes": chunking.nbytes,
             "chunk_rows": chunking.rows}  # fmt: skip
    beside = ask(types, attrs)
    return LiveStep(
        head.ops[0].rank, ops, [x, w], [*head.kept, *(v for v in (dx, dw) if v is not None)], beside,
        [(dx, x)] if dx is not None else (), [(dw, w)] if dw is not None and beside.apart else (),
    )  # fmt: skip


def _addition(dw: VarNode) -> tuple[OpNode, GradPart] | None:
    """The addition of which a gradient is a part, perhaps behind a cast."""
    for v in chain([dw], *[op.output_vars for op in dw.consumers if op.type == "cast"]):
        for add in v.consumers:
            if add.type in ADDS and add.role != "optimize" and (part := part_of(v)) is not None:
                return add, part
    return None


def _sum(parts: Sequence[GradPart], add: OpNode, own: GradPart, lives: Lives) -> list[LiveStep]:
    """How the sum is computed of which `own` is a part: those of these products that may add to the others do."""
    left, taken, steps, total = [*add.input_vars], list[GradPart](), list[LiveStep](), step_of(add)
    for part in parts:
        try:
            refuse_unless(len(left) > 1, "nothing is left to add it to")
            check(add, part, lives)
        except Refused:
            continue
        product, rest, last = accumulated(add, part)
        left.remove(part.operand)
        taken.append(part)
        gone = [op for one in taken for op in (one.cast, add) if op is not None]
        total = rest._replace(ops=gone, reads=[*left])
        steps += [product, last._replace(rank=(*add.rank, len(taken)))]
    if own not in taken and own.cast is not None:
        steps.append(step_of(own.cast))
    return [*steps, total]
