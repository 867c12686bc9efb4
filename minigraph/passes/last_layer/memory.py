"""Memory of the last layer: whether a program needs more with a head as one operator, and with its float32 sums.

    scores, ..., dscores, DX and DW  ->  some rows of scores, DX and DW, where the loss is

The operator has the weight's gradient early. What is weighed besides is the sum of which DW is a part, for tied
weights: fuse_grad_accumulation, which comes later, lets a product add DW to it, but the fused operator's DW waits.

    cast(DW, float32), DW = fused_linear_cross_entropy(X, cast(W, bfloat16), ...)  ->  DW, in float32

That is the gradient of a float32 weight that is read in 16 bits, as mixed precision writes it: the sums without
rounding. A bias is treated as the weight is. The sums are there anyway, so this saves the rounding, the array of 16
bits and its cast; it is refused where float32 sums beside scores would take more memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.kernels.chunks import WORKSPACE, Chunking, rows_at_once
from minigraph.opdef import get_op
from minigraph.passes.accumulation.fuse_grad_accumulation import (
    ADDS,
    GradPart,
    accumulated,
    check,
    merges,
    part_of,
)
from minigraph.passes.engine.lives import FREE, Lives, LiveStep, step_of
from minigraph.passes.engine.log import Applied, PassReport, bytes_text
from minigraph.passes.engine.redirect import require_temporary
from minigraph.passes.engine.replacement import linked_grads
from minigraph.passes.engine.rule import Refused, refuse_unless
from minigraph.types import float32

from .linear_head import Head

FUSED = "fused_linear_cross_entropy"
SLOTS = ("DW", "DBias")
LITTLE = 256 << 10  # bytes that are not worth a cast


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
    ask, x, w = get_op(FUSED).beside, head.X, head.W
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
    """The addition of which a gradient is a part, perhaps behind a cast.

    Not that of gradients which a state collects: later passes make one kernel of it, for less than is known here.
    """
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


# float32 sums


def keep_sums(graph: Graph, op: OpNode, report: PassReport, fuse_foreach: bool) -> bool:
    """Let `op` write float32 gradients where casts make them of its 16-bit ones; whether it does now."""
    made = {slot: op.outputs[slot][0] for slot in SLOTS if slot in op.outputs}
    casts = {slot: _cast_of(v) for slot, v in made.items()}
    if "DW" not in made or op.attrs["grad_dtype"] is None or not any(casts.values()):
        return False
    try:
        for slot, v in made.items():
            require_temporary(v)
            refuse_unless(
                casts[slot] is not None and len(v.consumers) == 1, "{} is read in {} too", v.name, str(v.type.dtype)
            )
            refuse_unless(not (fuse_foreach and _is_merged(casts[slot])), "one kernel casts {} and adds it to a state",
                          v.name)  # fmt: skip
        sums = op.attrs["accumulate_dtype"]
        refuse_unless(sums in (None, float32), f"chunks are added up in {sums}")
        _check_memory(op)
    except Refused as no:
        report.refuse("UnroundedGradient", op.label(), str(no), op.site)
        return False
    old = tuple(cast.label() for cast in casts.values() if cast is not None)
    op.attrs = {**op.attrs, "grad_dtype": None}
    for slot, cast in casts.items():
        assert cast is not None
        wide = cast.outputs["Out"][0]
        graph.remove_op(cast)
        graph.set_output(op, slot, 0, wide)
        graph.remove_var(made[slot])
    report.apply(Applied("UnroundedGradient", f"{op.label()} in float32", old, op.site, op.role))
    return True


def _cast_of(v: VarNode) -> OpNode | None:
    """The first cast to float32 that reads `v`, with a result that is written once."""
    for op in v.consumers:
        if op.type == "cast" and op.attrs["dtype"] == float32:
            out = op.outputs["Out"][0]
            if out.version == 0:
                return op
    return None


def _is_merged(cast: OpNode | None) -> bool:
    """Whether a cast is part of the kernel that adds its result to a state: none of both is kept."""
    if cast is None or cast.role != "optimize":
        return False
    return any(merges(op) for v in cast.output_vars for op in v.read_by)


def _check_memory(op: OpNode) -> None:
    """Refuse where float32 sums beside the scores of a chunk need more than rounding them and casting back."""
    x, w = op.inputs["X"][0].type, op.inputs["W"][0].type
    how, size = Chunking(op.attrs["chunk_bytes"], op.attrs["chunk_rows"]), x.dtype.itemsize
    width, classes = w.shape[::-1] if op.attrs["trans_w"] else w.shape
    refuse_unless(-1 not in w.shape, f"the size of {w} is not known")
    rows = math.prod(x.shape[:-1])
    if -1 in x.shape[:-1]:  # as many as a chunk can have
        rows = how.step(1 << 40, classes, size)
    own = how.step(rows, classes, size) * classes * size + width * classes * 4
    _, rounded = rows_at_once(rows, width, classes, size, how, "DBias" in op.outputs)
    rounded = max(rounded, width * classes * (4 + size) - WORKSPACE[1])  # which products have, and no cast has
    why = f"scores and float32 sums take {bytes_text(own)}, rounded ones {bytes_text(rounded)}"
    refuse_unless(own <= rounded + LITTLE, why)
