"""The gradient of a float32 weight that the last layer reads in 16 bits: its float32 sums, without rounding.

    cast(DW, float32), DW = fused_linear_cross_entropy(X, cast(W, bfloat16), ...)  ->  DW, in float32

That is what mixed precision writes. A bias is treated as the weight is. The sums are there anyway, so this saves the
rounding, the array of 16 bits and its cast; it is refused where float32 sums beside scores would take more memory.
"""

from __future__ import annotations

import math

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.kernels.chunks import WORKSPACE, Chunking, rows_at_once
from minigraph.passes.engine.log import Applied, PassReport, bytes_text
from minigraph.passes.engine.redirect import require_temporary
from minigraph.passes.engine.rule import Refused, refuse_unless
from minigraph.types import float32

SLOTS = ("DW", "DBias")
LITTLE = 256 << 10  # bytes that are not worth a cast


def keep_sums(graph: Graph, op: OpNode, report: PassReport) -> bool:
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
