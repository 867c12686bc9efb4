"""Updates that a user writes, where all updates share flags: a factor on gradients, a step that is skipped.

Merged gradients and loss scaling have them. An operator of an update takes them as inputs; what a user writes knows
nothing of them.
"""

from __future__ import annotations

from typing import Any

from minigraph.program import Parameter, Variable
from minigraph.program.builder import Builder

from .gradients import scaled


def is_own(optimizer: Any) -> bool:
    """Whether a user wrote the update of this optimizer: in a class of one's own, or for this object alone."""
    writer = next(c for c in type(optimizer).__mro__ if "append_update" in vars(c))
    return "append_update" in vars(optimizer) or not writer.__module__.startswith(f"{__package__}.")


def append_own(optimizer: Any, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
    """Append a user's update: its gradient is scaled before, and what it writes goes back where a step is skipped."""
    shared = optimizer._shared
    flags, shared.flags = shared.flags, {}
    try:
        if "GradScale" in flags:
            ((_, grad),) = scaled([(param, grad)], flags["GradScale"])
        first = len(g.block.ops)
        optimizer.append_update(g, param, grad, lr)
        if "SkipUpdate" in flags:
            go_back(g, first, flags["SkipUpdate"])
    finally:
        shared.flags = flags


def go_back(g: Builder, first: int, skip: Variable) -> None:
    """Let the states that operators from `first` on write be as before where `skip` is true."""
    ops, end = g.block.ops, len(g.block.ops)
    written = {v.name: v for op in ops[first:] for v in op.output_vars if v.persistable}
    skip = g.reshape(skip, shape=())
    before = [g.assign(v) for v in written.values()]
    ops[first:] = [*ops[end:], *ops[first:end]]
    for v, old in zip(written.values(), before, strict=True):
        g.where(skip, old, v, out={"Out": v})
