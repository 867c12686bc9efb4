"""The gradient block of a block: its own operators, then those of its gradients, as far as these need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.program import unique_name
from minigraph.program.backward import differentiated
from minigraph.program.builder import Builder
from minigraph.program.prune import pruned_ops


def gradient_block(copy: Any, wanted: Sequence[int], outputs: Sequence[int], summed: int) -> Any:
    """What `SubProgram.gradient` returns, made of a copy of the block."""
    inputs, results, block = copy.inputs, copy.outputs, copy.block0
    for v in inputs:
        v.stop_gradient = False
    targets, starts = [results[k] for k in outputs], [inputs[i] for i in wanted]
    seeds = [_given(block, t, "@OUT") for t in targets]
    sums = [_given(block, v, "@SUM") for v in (starts[-summed:] if summed else ())]
    grads = differentiated(block, targets, seeds, starts)
    with copy.emitting("backward"):
        g = Builder(block)
        whole = [
            grad if grad is not None else g.fill_any_like(v, value=0.0)
            for v, grad in zip(starts, grads, strict=True)
        ]
        for i, total in enumerate(sums, len(whole) - summed):
            whole[i] = g.elementwise_add(total, whole[i])
    copy.fetched = tuple(v.name for v in whole)
    needed = copy.copied(pruned_ops(copy.ops, copy.fetched, prune=()))
    used = {id(v) for op in needed.ops for v in (*op.input_vars, *op.output_vars)}
    for v in [v for v in needed.vars.values() if id(v) not in used and not v.is_data and not v.persistable]:
        dict.pop(needed.vars, v.name)
    return needed


def _given(block: Any, v: Any, suffix: str) -> Any:
    """A new input with v's type."""
    name = v.grad_name + suffix
    name = name if not block.has_var(name) else unique_name.generate(name)
    return block.create_var(name, type=v.type, stop_gradient=False, is_data=True)
