"""Attention that a user wrote out in one of many spellings, read from its last product up to its inputs.

    Out = dropout(softmax(modified(scale * Q K^T))) V

Walking normalises: transposes of operands become an order of axes, all constant factors one scale,
repeated heads of K and V a group, casts nothing, batches times heads that some arrays have as one axis
both of them, and what changes scores a list of Modifiers. So one template fits all spellings, and the
graph is not touched before it is known that it does.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from minigraph.ir.graph import OpNode, VarNode
from minigraph.passes.engine.pattern import Mismatch
from minigraph.passes.engine.rule import Refused, refuse_unless

from .found import HEADS_MOVED, RESHAPES, Attention, AttentionOperand, Modifier, split_by
from .heads import before_repeat
from .masks import StepFunction, constant_of, makers, value_of


def probabilities(anchor: OpNode, attention: Attention) -> VarNode:
    """The softmax's input, with `anchor` as the product with V; a Mismatch where this is no attention."""
    attention.take(anchor)
    slot, turned = ("Y", "trans_y") if attention.from_right else ("X", "trans_x")
    v, attention.out_turned = anchor.inputs[slot][0], anchor.attrs[turned]
    while v.producer is not None and v.producer.type in ("cast", "dropout", "softmax", "transpose", *RESHAPES):
        op = v.producer
        if op.type == "transpose":
            if not turns(op):
                break
            attention.out_turned = not attention.out_turned
        elif op.type in RESHAPES and not attention.regroup(op):
            break
        attention.path.append(v)
        if op.type == "softmax":
            require_last_axis(op)
            if attention.from_right and not attention.out_turned:
                break
            return attention.take(op)
        if op.type == "dropout":
            refuse_unless(attention.dropout is None, f"{op.label()} is the second dropout of the probabilities")
            attention.dropout, attention.drops_turned = op, attention.out_turned != attention.from_right
        v = attention.take(op)
    raise Mismatch(f"{v.name} is not computed by a softmax")


def turns(op: OpNode) -> bool:
    """Whether a transpose exchanges the last two axes only."""
    rank = len(op.attrs["perm"])
    return [axis % rank for axis in op.attrs["perm"]] == [*range(rank - 2), rank - 1, rank - 2]


def require_last_axis(op: OpNode) -> None:
    axis, rank = op.attrs["axis"], next(iter(op.input_vars)).type.ndim
    if axis not in (-1, rank - 1):
        raise Mismatch(f"{op.label()} has axis {axis}, wanted the last one")


def walk(attention: Attention, anchor: OpNode, scores: VarNode) -> None:
    """Fill in what lies above the softmax; Refused where the template does not fit."""
    refuse_unless(attention.out_turned == attention.from_right, f"{anchor.label()} transposes the probabilities")
    refuse_unless(not attention.drops_turned, "dropout draws its numbers for probabilities that are transposed")
    product = _scores(attention, scores)
    values = anchor.inputs["X" if attention.from_right else "Y"][0]
    values_turned = not anchor.attrs["trans_x"] if attention.from_right else anchor.attrs["trans_y"]
    inputs = product.inputs["X"][0], product.inputs["Y"][0], values
    rank = inputs[0].type.ndim
    refuse_unless(rank in (3, 4), f"the operands of {product.label()} have rank {rank}, wanted 3 or 4")
    for operand in inputs if attention.split is None else ():
        refuse_unless(operand.type.ndim == rank, f"{operand.name} has rank {operand.type.ndim}, others {rank}")
    for a, b in combinations(inputs, 2):
        first, second = a.type.shape[0], b.type.shape[0]
        unsure = a.type.ndim == b.type.ndim and first != second and -1 in (first, second)
        refuse_unless(not unsure, f"{a.name} and {b.name} may have batches of different sizes")
    dtype = values.type.dtype
    attention.q = _operand(attention, inputs[0], product.attrs["trans_x"], dtype)
    before = dict(attention.ops), list(attention.constants)
    for repeated in (True, False):  # repeated heads of both K and V are seen through, or of none
        attention.ops, attention.constants = dict(before[0]), list(before[1])
        attention.k = _operand(attention, inputs[1], not product.attrs["trans_y"], dtype, repeated)
        attention.v = _operand(attention, values, values_turned, None, repeated)
        if attention.k.heads == attention.v.heads:
            break
    attention.scale *= attention.q.factor * attention.k.factor
    _find_result(attention, anchor)


def _scores(attention: Attention, v: VarNode) -> OpNode:
    """The product of Q and K above `v`; on the way the scale, the modifiers."""
    while True:
        op = v.producer
        refuse_unless(op is not None, f"the scores {v.name} are not computed by a product")
        assert op is not None
        attention.path.append(v)
        if op.type == "matmul":
            attention.scores = v
            attention.take(op)
            return op
        if op.type == "cast":
            refuse_unless(_widens(op), f"{op.label()} rounds the scores to {v.type.dtype}")
            v = attention.take(op)
            continue
        if attention.regroup(op):
            v = attention.take(op)
            continue
        factor = factor_of(op)
        if factor is not None:
            v = _scaled(attention, op, factor)
        elif op.type in ("elementwise_add", "elementwise_sub"):
            v = _added(attention, op)
        elif op.type == "where":
            v = _chosen(attention, op)
        elif op.type == "elementwise_mul":
            v = _multiplied(attention, op)
        else:
            raise Refused(f"the scores go through {op.label()}")


def _widens(op: OpNode) -> bool:
    """Whether a cast of floats rounds nothing."""
    before, after = next(iter(op.input_vars)).type.dtype, op.attrs["dtype"]
    return before == after or after.itemsize > before.itemsize


def factor_of(op: OpNode) -> tuple[float, str] | None:
    """(c, slot of x) where `op` computes c * x with a constant c."""
    if op.type == "scale":
        return (op.attrs["scale"], "X") if op.attrs["bias"] == 0 else None
    if op.type not in ("elementwise_mul", "elementwise_div"):
        return None
    x, y = op.inputs["X"][0], op.inputs["Y"][0]
    result = next(op.output_vars).type
    for value, slot, other in ((x, "X", y), (y, "Y", x)):
        number = constant_of(other)
        if number is None or value.type != result or (op.type == "elementwise_div" and slot == "Y"):
            continue
        if op.type == "elementwise_div":
            refuse_unless(number != 0, f"{op.label()} divides by 0")
            return 1 / number, slot
        return number, slot
    return None


def _scaled(attention: Attention, op: OpNode, factor: tuple[float, str]) -> VarNode:
    attention.scale *= factor[0]
    attention.take(op)
    attention.constants += [x for slot, xs in op.inputs.items() if slot != factor[1] for x in xs]
    return op.inputs[factor[1]][0]


def _multiplied(attention: Attention, op: OpNode) -> VarNode:
    """The scores times a mask of 1 and 0 by position."""
    x, y = op.inputs["X"][0], op.inputs["Y"][0]
    for scores, mask in ((x, y), (y, x)):
        steps = _steps(mask)
        if steps is not None and {steps.inside, steps.outside} == {0, 1} and scores.type == next(op.output_vars).type:
            attention.modifiers.append(Modifier("times", mask, steps=steps))
            attention.take(op)
            return scores
    raise Refused(f"the scores go through {op.label()}")


def _leads_to_product(v: VarNode, shape: tuple[int, ...], depth: int = 24) -> bool:
    """Whether a product lies above `v` on a way of values of this shape."""
    op = v.producer
    if op is None or v.type.shape != shape or depth == 0:
        return False
    if op.type == "matmul":
        return True
    if split_by(op) is not None:
        v = next(iter(op.input_vars))
        return _leads_to_product(v, v.type.shape, depth - 1)
    if not op.opdef.traits & {"elementwise", "pointwise"}:
        return False
    unread = op.opdef.unread(op.outputs)
    read = (x for slot, xs in op.inputs.items() if slot not in unread for x in xs)
    return any(_leads_to_product(x, shape, depth - 1) for x in read)


def _added(attention: Attention, op: OpNode) -> VarNode:
    """The scores among two summands; the other one becomes a Modifier."""
    x, y = op.inputs["X"][0], op.inputs["Y"][0]
    refuse_unless(
        op.attrs["axis"] == -1 or x.type.ndim == y.type.ndim, f"{op.label()} adds along axis {op.attrs['axis']}"
    )
    shape = next(op.output_vars).type.shape
    attention.take(op)
    subtracted = op.type == "elementwise_sub"
    for scores, other in ((x, y), (y, x)):
        if _leads_to_product(scores, shape) and not (subtracted and scores is y):
            factor = -attention.scale if subtracted else attention.scale
            for part in _addends(attention, other):
                attention.modifiers.append(Modifier("add", part, factor, steps=_steps(part), rank=len(shape)))
            return scores
    raise Refused(f"no operand of {op.label()} is a product of queries and keys of its shape")


def _chosen(attention: Attention, op: OpNode) -> VarNode:
    """The scores among the choices of a `where`; the other must be a number."""
    condition, x, y = (op.inputs[slot][0] for slot in ("Condition", "X", "Y"))
    shape = next(op.output_vars).type.shape
    attention.take(op)
    for scores, other, negated in ((x, y, False), (y, x, True)):
        if not _leads_to_product(scores, shape):
            continue
        number = constant_of(other)
        refuse_unless(number is not None, f"{op.label()} puts {other.name} in place of scores, which is no constant")
        assert number is not None
        attention.constants.append(other)
        fill = number * attention.scale
        refuse_unless(fill == fill and fill != float("inf"), f"{op.label()} puts {number} in place of scores")
        through: list[OpNode] = []
        parts = _conditions(condition, negated, through) if fill == -math.inf else []
        if all(_steps(part) is None for part, _ in parts):
            parts, through = [(condition, negated)], []
        _leave(attention, through)
        for part, hides in parts:
            attention.modifiers.append(Modifier("where", part, 1.0, hides, fill, _steps(part), len(shape)))
        return scores
    raise Refused(f"no choice of {op.label()} is a product of queries and keys of its shape")


def _conditions(v: VarNode, negated: bool, through: list[OpNode]) -> list[tuple[VarNode, bool]]:
    """What must be (with True: must not be) for a key to be seen; -inf may be filled in for one after the other.

    `through` gets the operators that say so.
    """
    op = v.producer
    both = "logical_or" if negated else "logical_and"
    if op is None or _steps(v) is not None or op.type not in ("logical_not", both):
        return [(v, negated)]
    through.append(op)
    sides = [x for slot in ("X", "Y") for x in op.inputs.get(slot, ())]
    return [part for x in sides for part in _conditions(x, negated != (op.type == "logical_not"), through)]


def _addends(attention: Attention, v: VarNode) -> list[VarNode]:
    """Both sides of a sum of which one hides keys with -inf by its place: they may be added one after the other."""
    op = v.producer
    if op is None or op.type != "elementwise_add" or op.attrs["axis"] != -1 or _steps(v) is not None:
        return [v]
    sides = [op.inputs["X"][0], op.inputs["Y"][0]]
    if not any(s is not None and -math.inf in (s.inside, s.outside) for s in map(_steps, sides)):
        return [v]
    _leave(attention, [op])
    return sides


def _leave(attention: Attention, ops: list[OpNode]) -> None:
    """Operators whose results are not needed elsewhere become part of the match, the last one first."""
    for op in ops:
        if all(attention.is_inside(v) for v in op.output_vars):
            attention.ops[op] = None


def _steps(v: VarNode) -> StepFunction | None:
    value = value_of(v)
    return value if isinstance(value, StepFunction) else None


def _operand(attention: Attention, v: VarNode, swapped: bool, dtype: Any, repeated: bool = False) -> AttentionOperand:
    """Walk above an operand: transposes, batch times heads joined, for K and V repeated heads.

    With a `dtype`, of Q and K, also constant factors, and casts from that type.
    """
    rank = v.type.ndim
    perm = (*range(rank - 2), rank - 1, rank - 2) if swapped else tuple(range(rank))
    operand = AttentionOperand(v, perm)
    while operand.source.producer is not None and attention.is_inside(operand.source):
        op, source = operand.source.producer, None
        factor = factor_of(op) if dtype is not None else None
        if factor is not None:
            operand.factor *= factor[0]
            attention.constants += [x for slot, xs in op.inputs.items() if slot != factor[1] for x in xs]
            attention.ops[op], source = None, op.inputs[factor[1]][0]
        elif op.type == "transpose":
            order = [axis % len(operand.perm) for axis in op.attrs["perm"]]
            operand.perm = tuple(order[axis] for axis in operand.perm)
            source = attention.take(op)
        elif op.type == "cast" and dtype is not None and op.inputs["X"][0].type.dtype == dtype and _widens(op):
            source = attention.take(op)
        elif attention.split and len(operand.perm) == 3 and operand.perm[0] == 0 and split_by(op) == attention.split:
            operand.perm = (0, *(axis + 1 for axis in operand.perm))
            source = attention.take(op)
        elif repeated and len(operand.perm) == 4:
            source = before_repeat(attention, op, operand.perm[1])
        if source is None:
            break
        operand.source = source
    return operand


def _find_result(attention: Attention, anchor: OpNode) -> None:
    """The product, or where only a reshape to [B, H, S, D] reads it, that, or a transpose to [B, S, H, D] after it."""
    attention.out = anchor.outputs["Out"][0]
    op = _only_reader(attention)
    if op is not None and attention.out_turned and op.type == "transpose" and turns(op):
        attention.out_turned = not _move_result(attention, op)
        op = _only_reader(attention)
    if attention.out_turned:
        return
    split = attention.split
    if op is not None and attention.out.type.ndim == 3 and split is not None and split_by(op) == split:
        _move_result(attention, op)
        op = _only_reader(attention)
    if op is not None and op.type == "transpose" and tuple(axis % 4 for axis in op.attrs["perm"]) == HEADS_MOVED:
        attention.out_moved = _move_result(attention, op)


def _only_reader(attention: Attention) -> OpNode | None:
    """The only operator that reads the result, its gradients aside."""
    assert attention.out is not None
    readers = [c for c in attention.out.consumers if c.forward not in attention.ops]
    return readers[0] if len(readers) == 1 and attention.out.pinned is None else None


def _move_result(attention: Attention, op: OpNode) -> bool:
    """Let the output of `op` be the result, if no other operator reads the result."""
    assert attention.out is not None
    if attention.out.version != 0 or attention.out.next_version is not None:
        return False
    attention.ops[op] = None
    if not attention.is_inside(attention.out):
        del attention.ops[op]
        return False
    attention.out = next(op.output_vars)
    return True


def take_constants(attention: Attention, sources: list[VarNode]) -> None:
    """Operators that make constants for this attention only disappear with it."""
    above = {op for v in (*attention.constants, *sources) for op in makers(v)} - attention.ops.keys()
    for op in sorted(above, key=lambda op: op.rank, reverse=True):
        quiet = not op.opdef.traits & {"random", "side_effect"} and not op.grads
        if quiet and all(attention.is_inside(v) and v.version == 0 and v.next_version is None for v in op.output_vars):
            attention.ops[op] = None
