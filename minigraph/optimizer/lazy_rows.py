"""Which rows of a table a run names: what Adam's lazy_mode updates."""

from __future__ import annotations

from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder


def named_rows(g: Builder, param: Parameter) -> Variable | None:
    """Bool, True in the rows that an id of this run names; None where not all of it comes from sparse embeddings."""
    if not param.sparse:
        return None
    forward = [op for op in g.block.ops if op.role == "forward" and any(v is param for v in op.input_vars)]
    if any(op.type != "embedding" for op in forward):
        return None
    named = None
    for op in forward:
        (ids,) = op.inputs["Ids"]
        last = g.last_writer(param, g.reshape(ids, shape=[-1]))
        there = g.greater_equal(last, g.fill_any_like(last, value=0))
        named = there if named is None else g.logical_or(named, there)
    return g.unsqueeze(named, axes=range(1, param.ndim)) if named is not None else None
