"""Gradients of slices that share nothing and leave nothing out are joined, not added.

    sum([slice_grad(X, A, rows 0 to 2), slice_grad(X, B, rows 2 to 5)])      ->  concat([A, B])
    sum([slice_grad(X, A, row 0 dropped), slice_grad(X, B, row 1 dropped)])  ->  stack([A, B])

Each slice_grad is an array of X's size that is zero outside its slice, so the sum of n such arrays moves n times as
much memory as their contents. An example are Q, K and V that are slices of one projection. Refused where slices
overlap or are not along one axis, and where another operator reads a gradient. (A sum would give 0.0 for -0.0.)
"""

from __future__ import annotations

from typing import NamedTuple

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.redirect import require_temporary, take_out, take_place
from minigraph.passes.engine.rule import GraphBuilder, Refused, refuse_unless
from minigraph.types import normalize_axes

LAST = 1 << 62  # a rank behind all others of one place


class GradSlice(NamedTuple):
    """The part of its output that a slice_grad fills: places start to stop of an axis, dropped by the slice or not."""

    start: int
    stop: int
    axis: int
    dropped: bool
    grad: VarNode


def join_slice_grads(graph: Graph, add: OpNode, report: PassReport) -> bool:
    """Apply the equations of this file to an addition; whether it is gone."""
    parts = [v.producer for v in add.input_vars]
    if len(parts) < 2 or not all(part is not None and part.type == "slice_grad" for part in parts):
        return False
    try:
        report.apply(_join(graph, add, [part for part in parts if part is not None], report.name))
    except Refused as no:
        report.refuse("SliceGrads", add.label(), str(no), add.site)
        return False
    return True


def _join(graph: Graph, add: OpNode, parts: list[OpNode], rewriter: str) -> Applied:
    """Refuses with the graph unchanged."""
    _check(add, parts)
    pieces = sorted(map(_piece, parts), key=lambda p: p[:2])
    axis, dropped, size = pieces[0].axis, pieces[0].dropped, next(add.output_vars).type.shape[pieces[0].axis]
    refuse_unless(all(p.axis == axis and p.dropped == dropped for p in pieces), "the slices are not alike")
    ends = [0, *(p.stop for p in pieces)]
    refuse_unless([*(p.start for p in pieces), size] == ends, "the slices share places or leave some out")
    place = add.rank
    g = GraphBuilder(graph, place, add, rewriter)
    g.forward = None
    graph.move_op(add, (*place, LAST))  # so that it stands behind what takes its place
    try:
        grads, out = [p.grad for p in pieces], next(add.output_vars)
        new = g.stack(grads, axis=axis) if dropped else g.concat(grads, axis=axis)
        refuse_unless(new.type.accepts(out.type) and out.type.accepts(new.type), f"{out} would become {new.type}")
    except (Refused, MinigraphError) as no:
        g.undo()
        graph.move_op(add, place)
        raise Refused(no.fact if isinstance(no, MinigraphError) else str(no)) from None
    old = (*(part.label() for part in parts), add.label())
    take_place(graph, add, g.emitted[-1])
    for part in parts:
        take_out(graph, part)
    return Applied("SliceGrads", f"{out.name} = {g.emitted[-1].type}", old, add.site, add.role)


def _check(add: OpNode, parts: list[OpNode]) -> None:
    operands = list(add.input_vars)
    refuse_unless(not add.grads and not any(part.grads for part in parts), "{} or its gradient is differentiated", add)
    refuse_unless(len({id(v) for v in operands}) == len(operands), "{} adds a gradient to itself", add)
    refuse_unless(all(v.type == operands[0].type for v in operands), "operands of {} are broadcast", add)
    for v in operands:
        require_temporary(v)
        other = [c for c in v.consumers if c is not add]
        refuse_unless(not other, f"{v.name} is also read by {other[0].label() if other else ''}")


def _piece(part: OpNode) -> GradSlice:
    shape, attrs = next(part.output_vars).type.shape, part.attrs
    axes, steps = normalize_axes(attrs["axes"], len(shape)), attrs["steps"] or (1,) * len(attrs["axes"])
    dropped, cuts = set(normalize_axes(attrs["decrease_axes"], len(shape))), []
    for axis, start, end, step in zip(axes, attrs["starts"], attrs["ends"], steps, strict=True):
        refuse_unless(shape[axis] >= 0, f"the size of axis {axis} of {part.label()} is known only at run time")
        places = range(shape[axis])[start:end:step]
        if places != range(shape[axis]) or axis in dropped:
            refuse_unless(len(places) == 1 or (places.step == 1 and len(places) > 1), "{} takes no run of places", part)
            cuts.append((axis, places[0], places[-1] + 1))
    refuse_unless(len(cuts) == 1, "{} does not cut along one axis", part)
    ((axis, start, stop),) = cuts
    return GradSlice(start, stop, axis, bool(dropped), part.inputs["Out_grad"][0])
