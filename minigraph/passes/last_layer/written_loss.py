"""A cross entropy and a z-loss that are written out of simpler operators, told from their last operator upwards.

    log_sum_exp     log(sum(exp(z - top))) + top, where top is z's maximum, or log(sum(exp(z)))
    log_softmax     the operator, or z - log_sum_exp
    target          weight * (one_hot(numbers) with smoothing): a one_hot, scaled, with something added to each class
    square          factor * log_sum_exp^2

Each function returns what stands above and notes its steps in a Trail, or raises Mismatch. All sums go over the
classes, which are on the last axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from minigraph.ir.graph import OpNode, VarNode
from minigraph.passes.engine.pattern import Mismatch
from minigraph.passes.engine.replacement import gradient_slots

ON_THE_WAY = frozenset({"elementwise_sub", "exp", "reduce_sum", "log", "elementwise_add", "scale"})  # to a square
SQUARES = frozenset({"square", "pow", "elementwise_mul"})


@dataclass
class Trail:
    """What was walked: operators, and each value that one of them reads: those on the way, and those of a maximum."""

    ops: list[OpNode] = field(default_factory=list)
    main: list[tuple[OpNode, VarNode]] = field(default_factory=list)
    top: list[tuple[OpNode, VarNode]] = field(default_factory=list)

    def step(self, v: VarNode, op_type: str) -> OpNode:
        """The operator of this type that computes `v`."""
        op = v.producer
        if op is None or op.type != op_type:
            raise Mismatch("{} is not computed by {}", v.name, op_type)
        return self.add(op)

    def add(self, op: OpNode) -> OpNode:
        self.ops.append(op)
        return op

    def through(self, op: OpNode, slot: str = "X") -> VarNode:
        """The input by which the walk goes on."""
        v = op.inputs[slot][0]
        self.main.append((op, v))
        return v

    def stop(self) -> VarNode | None:
        """A value at which a gradient ends that goes on beside it; the maximum may be a constant, in all places."""
        for edges in (self.main, self.top):
            flows = [_flows(op, v) for op, v in edges]
            if any(flows) and not all(flows):
                return edges[flows.index(False)][1]
        return None


def _flows(op: OpNode, v: VarNode) -> bool:
    """Whether a grad operator of `op` computes the gradient of its input `v`, in each place where it is one."""
    made = {slot for grad in op.grads for slot, vs in gradient_slots(grad) if vs}
    return all(slot in made for slot, vs in op.inputs.items() if any(x is v for x in vs))


class LabelScore(NamedTuple):
    """weight * ((1 - smoothing) * one_hot(numbers) + smoothing / classes)"""

    one_hot: OpNode
    numbers: VarNode
    weight: float
    smoothing: float


def one_hot_of(v: VarNode, trail: Trail) -> tuple[OpNode, float, float]:
    """(one_hot, scale, bias) of v = scale * one_hot + bias; a one_hot may be cast, which keeps 0 and 1."""
    op, scale, bias = v.producer, 1.0, 0.0
    if op is not None and op.type == "scale" and op.attrs["bias_after_scale"]:
        trail.add(op)
        scale, bias = op.attrs["scale"], op.attrs["bias"]
        op = op.inputs["X"][0].producer
    if op is not None and op.type == "cast" and op.outputs["Out"][0].type.is_float:
        trail.add(op)
        op = op.inputs["X"][0].producer
    if op is None or op.type != "one_hot":
        raise Mismatch(f"{v.name} is no one_hot of class numbers")
    return trail.add(op), scale, bias


def target(v: VarNode, trail: Trail) -> LabelScore:
    """What the log-probabilities are multiplied by."""
    op, scale, bias = one_hot_of(v, trail)
    smoothing = bias * op.attrs["depth"]
    weight = scale + smoothing
    if not (weight and 0 <= smoothing / weight <= 1):
        raise Mismatch(f"{v.name} is {scale} * one_hot + {bias}, which is no smoothed label")
    return LabelScore(op, op.inputs["X"][0], weight, smoothing / weight)


def log_softmax(v: VarNode, trail: Trail) -> VarNode:
    """The scores whose log-probabilities `v` holds."""
    op = v.producer
    if op is not None and op.type == "log_softmax":
        if not _is_last(op.attrs["axis"], v):
            raise Mismatch(f"the classes of {v.name} are not on its last axis")
        return trail.through(trail.add(op))
    op = trail.step(v, "elementwise_sub")
    z, lse = trail.through(op), trail.through(op, "Y")
    if lse.type.ndim != z.type.ndim or log_sum_exp(lse, trail) is not z:
        raise Mismatch("{} does not subtract the log-sum-exp of {}", op, z.name)
    return z


def log_sum_exp(v: VarNode, trail: Trail) -> VarNode:
    """The scores whose log-sum-exp `v` holds, with size 1 at the classes or without them."""
    last, tops = v.producer, []
    if last is not None and last.type == "elementwise_add":
        trail.add(last)
        own = next((s for s in ("X", "Y") if getattr(last.inputs[s][0].producer, "type", "") == "log"), "X")
        v, top = trail.through(last, own), last.inputs["Y" if own == "X" else "X"][0]
        tops.append((last, top, v.type.ndim))
    logarithm = trail.step(v, "log")
    total = trail.step(trail.through(logarithm), "reduce_sum")
    power = trail.step(trail.through(total), "exp")
    shifted = trail.through(power)
    if not _is_over_classes(total):
        raise Mismatch("{} does not sum over the classes", total)
    if not tops:
        return shifted
    op = trail.step(shifted, "elementwise_sub")
    z = trail.through(op)
    for reader, top, rank in ((op, op.inputs["Y"][0], z.type.ndim), *tops):
        trail.top.append((reader, top))
        if _maximum(top, trail) is not z:
            raise Mismatch("{} is not the maximum of {}", top.name, z.name)
        if top.type.ndim != rank:
            raise Mismatch("{} is spread over other axes than the classes", reader)
    return z


def _maximum(v: VarNode, trail: Trail) -> VarNode | None:
    """The array whose largest elements over the classes `v` holds."""
    op = v.producer
    while op is not None and op.type in ("assign", "squeeze"):
        x = op.inputs["X"][0]
        if op.type == "squeeze" and [a % x.type.ndim for a in op.attrs["axes"]] != [x.type.ndim - 1]:
            return None
        trail.top.append((trail.add(op), x))
        op = x.producer
    if op is None or op.type != "reduce_max" or not _is_over_classes(op):
        return None
    x = op.inputs["X"][0]
    trail.top.append((trail.add(op), x))
    return x


def _is_last(axis: int, v: VarNode) -> bool:
    return axis in (-1, v.type.ndim - 1)


def _is_over_classes(op: OpNode) -> bool:
    axis = op.attrs["axis"]
    return axis is not None and len(axis) == 1 and _is_last(axis[0], op.inputs["X"][0])


def square(op: OpNode, trail: Trail) -> tuple[VarNode, float]:
    """(scores, factor) where `op` computes factor * log_sum_exp(scores)^2."""
    x, factor = trail.through(trail.add(op)), 1.0
    if op.type == "pow" and op.attrs["factor"] != 2:
        raise Mismatch("{} is no square", op)
    if op.type == "elementwise_mul":
        (x, a), (y, b) = _factor(x, trail), _factor(trail.through(op, "Y"), trail)
        if x is not y:
            raise Mismatch("{} multiplies different values", op)
        factor = a * b
    return log_sum_exp(x, trail), factor


def _factor(v: VarNode, trail: Trail) -> tuple[VarNode, float]:
    op = v.producer
    if op is None or op.type != "scale" or op.attrs["bias"] != 0:
        return v, 1.0
    return trail.through(trail.add(op)), op.attrs["scale"]


def squares_of(z: VarNode) -> Iterator[OpNode]:
    """Operators that may square the log-sum-exp of `z`."""
    waiting, seen = [z], {z}
    while waiting:
        for op in waiting.pop().consumers:
            if op.role != "forward":
                continue
            if op.type in SQUARES:
                yield op
            elif op.type in ON_THE_WAY and op.outputs["Out"][0] not in seen:
                seen.add(op.outputs["Out"][0])
                waiting.append(op.outputs["Out"][0])
