"""From operators to those that compute their gradients, and from these to what they are gradients of."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from minigraph.ir.graph import OpNode, VarNode
from minigraph.program.builder import gradient_slot


def linked_grads(ops: Sequence[OpNode]) -> tuple[list[OpNode], list[OpNode]]:
    """The grad operators of `ops`, in order; and, apart, the sums that collect gradients from their readers."""
    linked = {g: None for op in ops for g in op.grads}
    entering = [g for g in linked if g.type == "sum"]
    if entering:
        made = {v for g in linked for v in g.output_vars}
        entering = [g for g in entering if not any(v in made for v in g.input_vars)]
    own = [g for g in linked if g not in entering] if entering else linked
    return sorted(own, key=attrgetter("rank")), entering


def gradient_slots(grad: OpNode) -> list[tuple[str, list[VarNode]]]:
    """(slot of the forward operator, its gradients) for the outputs of a grad operator."""
    assert grad.forward is not None
    if grad.grad_slot is not None:
        return [(grad.grad_slot, list(next(iter(grad.outputs.values()))))]
    if grad.type != f"{grad.forward.type}_grad":
        return []  # a value on the way
    return [(gradient_slot(slot), vs) for slot, vs in grad.outputs.items()]
