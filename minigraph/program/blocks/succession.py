"""A variable that comes to stand for another value: what a loop makes of its variables."""

from __future__ import annotations

from minigraph.program import unique_name
from minigraph.program.changes import put_in_place
from minigraph.program.variable import Variable


def succeed(old: Variable, new: Variable) -> None:
    """Let `old` be what `new` is, which is no more; the operators so far use what `old` was under another name."""
    block = old.block
    before = block.create_var(
        unique_name.generate(f"{old.name}.before"), type=old.type, stop_gradient=old.stop_gradient,
        is_data=old.is_data,
    )  # fmt: skip
    if old.is_data:  # what a block takes keeps its place
        places = [before if v is old else v for v in block.vars.values() if v is not before]
        dict.clear(block.vars)
        dict.update(block.vars, {v.name: v for v in [*places, old]})
        old.is_data = False
    old.type, old.stop_gradient = new.type, new.stop_gradient
    for op in block.ops:
        put_in_place(op, old, before)
        put_in_place(op, new, old)
    del block.vars[new.name]
