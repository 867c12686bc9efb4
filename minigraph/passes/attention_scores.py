"""Attention that a user wrote out, read from its last product up to its inputs, whatever way it is written.

    Out = dropout(softmax(modified(scale * Q K^T))) V

Walking normalises: transposes of operands become an order of axes, all constant factors one scale,
repeated heads of K and V a group, casts nothing, and what changes scores a list of Modifiers. So one
template fits all spellings, and the graph is not touched before it is known that it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..ir.graph import OpNode, VarNode
from .attention_masks import Steps, constant_of, makers, value_of
from .pattern import Mismatch
from .rule import Refused, require

HEADS_MOVED = (0, 2, 1, 3)  # [B, S, H, D] <-> [B, H, S, D]


@dataclass
class Operand:
    """The value [..., S, D] of a product: `source` with its axes in the order `perm`."""

    source: VarNode
    perm: tuple[int, ...]
    factor: float = 1.0

    @property
    def heads(self) -> int:
        """Of a value of rank 4."""
        return self.source.type.shape[self.perm[1]]


@dataclass
class Modifier:
    """One change of the scores.

    add     scores + factor * source
    where   scores where `source` (with `negated`: not source) is True, else `fill`
    steps   what `source` is by its place, where that is known
    """

    kind: str
    source: VarNode
    factor: float = 1.0
    negated: bool = False
    fill: float = 0.0
    steps: Steps | None = None


@dataclass
class Attention:
    """What was found; modifiers from the last one to the first."""

    ops: dict[OpNode, None] = field(default_factory=dict)
    constants: list[VarNode] = field(default_factory=list)
    modifiers: list[Modifier] = field(default_factory=list)
    scale: float = 1.0
    dropout: OpNode | None = None
    scores: VarNode | None = None
    q: Operand | None = None
    k: Operand | None = None
    v: Operand | None = None
    out: VarNode | None = None
    out_moved: bool = False  # `out` is [B, S, H, D]

    def take(self, op: OpNode) -> VarNode:
        """Make `op` part of the match; its first input."""
        self.ops[op] = None
        return next(iter(op.input_vars))

    def is_inside(self, v: VarNode) -> bool:
        """Whether only the match and its gradients read `v`."""
        return v.pinned is None and all(c in self.ops or c.forward in self.ops for c in v.consumers)


def probabilities(anchor: OpNode, found: Attention) -> VarNode:
    """The softmax's input, with `anchor` as the product with V; a Mismatch where this is no attention."""
    found.take(anchor)
    v = anchor.inputs["X"][0]
    while v.producer is not None and v.producer.type in ("cast", "dropout", "softmax"):
        op = v.producer
        if op.type == "softmax":
            require_last_axis(op)
            return found.take(op)
        if op.type == "dropout":
            require(found.dropout is None, f"{op.label()} is the second dropout of the probabilities")
            found.dropout = op
        v = found.take(op)
    raise Mismatch(f"{v.name} is not computed by a softmax")


def require_last_axis(op: OpNode) -> None:
    axis, rank = op.attrs["axis"], next(iter(op.input_vars)).type.ndim
    if axis not in (-1, rank - 1):
        raise Mismatch(f"{op.label()} has axis {axis}, wanted the last one")


def walk(found: Attention, anchor: OpNode, scores: VarNode) -> None:
    """Fill in what lies above the softmax; Refused where the template does not fit."""
    require(not anchor.attrs["trans_x"], f"{anchor.label()} transposes the probabilities")
    product = _scores(found, scores)
    rank = product.inputs["X"][0].type.ndim
    require(rank in (3, 4), f"the operands of {product.label()} have rank {rank}, wanted 3 or 4")
    for operand in (product.inputs["X"][0], product.inputs["Y"][0], anchor.inputs["Y"][0]):
        require(operand.type.ndim == rank, f"{operand.name} has rank {operand.type.ndim}, others {rank}")
    found.q = _operand(found, product.inputs["X"][0], product.attrs["trans_x"], repeated=False)
    before = dict(found.ops), list(found.constants)
    for repeated in (True, False):  # repeated heads of both K and V are seen through, or of none
        found.ops, found.constants = dict(before[0]), list(before[1])
        found.k = _operand(found, product.inputs["Y"][0], not product.attrs["trans_y"], repeated)
        found.v = _operand(found, anchor.inputs["Y"][0], anchor.attrs["trans_y"], repeated)
        if rank == 3 or found.k.heads == found.v.heads:
            break
    found.scale *= found.q.factor * found.k.factor
    require(found.v.factor == 1, f"{found.v.source.name} is multiplied by a constant on its way")
    _find_result(found, anchor, rank)


def _scores(found: Attention, v: VarNode) -> OpNode:
    """The product of Q and K above `v`; on the way the scale, the modifiers."""
    while True:
        op = v.producer
        require(op is not None, f"the scores {v.name} are not computed by a product")
        assert op is not None
        if op.type == "matmul":
            found.scores = v
            found.take(op)
            return op
        if op.type == "cast":
            source = next(iter(op.input_vars)).type.dtype
            require(op.attrs["dtype"].itemsize >= source.itemsize, f"{op.label()} rounds the scores to {v.type.dtype}")
            v = found.take(op)
            continue
        factor = factor_of(op)
        if factor is not None:
            v = _scaled(found, op, factor)
        elif op.type in ("elementwise_add", "elementwise_sub"):
            v = _added(found, op)
        elif op.type == "where":
            v = _chosen(found, op)
        else:
            raise Refused(f"the scores go through {op.label()}")


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
            require(number != 0, f"{op.label()} divides by 0")
            return 1 / number, slot
        return number, slot
    return None


def _scaled(found: Attention, op: OpNode, factor: tuple[float, str]) -> VarNode:
    found.scale *= factor[0]
    found.take(op)
    found.constants += [x for slot, xs in op.inputs.items() if slot != factor[1] for x in xs]
    return op.inputs[factor[1]][0]


def _leads_to_product(v: VarNode, shape: tuple[int, ...], depth: int = 24) -> bool:
    """Whether a product lies above `v` on a way of values of this shape."""
    op = v.producer
    if op is None or v.type.shape != shape or depth == 0:
        return False
    if op.type == "matmul":
        return True
    if not op.opdef.traits & {"elementwise", "pointwise"}:
        return False
    unread = op.opdef.unread(op.outputs)
    read = (x for slot, xs in op.inputs.items() if slot not in unread for x in xs)
    return any(_leads_to_product(x, shape, depth - 1) for x in read)


def _added(found: Attention, op: OpNode) -> VarNode:
    """The scores among two summands; the other one becomes a Modifier."""
    x, y = op.inputs["X"][0], op.inputs["Y"][0]
    require(op.attrs["axis"] == -1 or x.type.ndim == y.type.ndim, f"{op.label()} adds along axis {op.attrs['axis']}")
    shape = next(op.output_vars).type.shape
    found.take(op)
    subtracted = op.type == "elementwise_sub"
    for scores, other in ((x, y), (y, x)):
        if _leads_to_product(scores, shape) and not (subtracted and scores is y):
            factor = -found.scale if subtracted else found.scale
            found.modifiers.append(Modifier("add", other, factor, steps=_steps(other)))
            return scores
    raise Refused(f"no operand of {op.label()} is a product of queries and keys of its shape")


def _chosen(found: Attention, op: OpNode) -> VarNode:
    """The scores among the choices of a `where`; the other must be a number."""
    condition, x, y = (op.inputs[slot][0] for slot in ("Condition", "X", "Y"))
    shape = next(op.output_vars).type.shape
    found.take(op)
    for scores, other, negated in ((x, y, False), (y, x, True)):
        if not _leads_to_product(scores, shape):
            continue
        number = constant_of(other)
        require(number is not None, f"{op.label()} puts {other.name} in place of scores, which is no constant")
        assert number is not None
        found.constants.append(other)
        fill = number * found.scale
        require(fill == fill and fill != float("inf"), f"{op.label()} puts {number} in place of scores")
        for part in _conditions(found, condition) if fill == -math.inf and not negated else (condition,):
            found.modifiers.append(Modifier("where", part, negated=negated, fill=fill, steps=_steps(part)))
        return scores
    raise Refused(f"no choice of {op.label()} is a product of queries and keys of its shape")


def _conditions(found: Attention, v: VarNode) -> tuple[VarNode, ...]:
    """Both sides of a conjunction of which one is known by its place; -inf may be filled in one after the other."""
    op = v.producer
    if op is None or op.type != "logical_and" or _steps(v) is not None:
        return (v,)
    sides = op.inputs["X"][0], op.inputs["Y"][0]
    if all(_steps(side) is None for side in sides):
        return (v,)
    if found.is_inside(v):
        found.take(op)
    return sides


def _steps(v: VarNode) -> Steps | None:
    found = value_of(v)
    return found if isinstance(found, Steps) else None


def _operand(found: Attention, v: VarNode, swapped: bool, repeated: bool) -> Operand:
    """What lies above an operand: transposes, factors, and for K and V repeated heads."""
    rank = v.type.ndim
    perm = (*range(rank - 2), rank - 1, rank - 2) if swapped else tuple(range(rank))
    operand = Operand(v, perm)
    while operand.source.producer is not None and found.is_inside(operand.source):
        op, source = operand.source.producer, None
        factor = factor_of(op)
        if factor is not None:
            operand.factor *= factor[0]
            found.constants += [x for slot, xs in op.inputs.items() if slot != factor[1] for x in xs]
            found.ops[op], source = None, op.inputs[factor[1]][0]
        elif op.type == "transpose":
            order = [axis % rank for axis in op.attrs["perm"]]
            operand.perm = tuple(order[axis] for axis in operand.perm)
            source = found.take(op)
        elif repeated and rank == 4:
            source = _before_repeat(found, op, operand.perm[1])
        if source is None:
            break
        operand.source = source
    return operand


def _before_repeat(found: Attention, op: OpNode, heads: int) -> VarNode | None:
    """K or V with its own heads, where `op` makes the last step of repeating each of them along axis `heads`."""
    out = next(op.output_vars).type.shape
    if op.type in ("expand", "tile"):  # of a single head
        x = op.inputs["X"][0]
        if x.type.ndim == 4 and x.type.shape[heads] == 1 and _same_but(x.type.shape, out, heads):
            return found.take(op)
        return None
    if op.type not in ("reshape", "flatten"):
        return None
    wide = op.inputs["X"][0]
    spread = wide.producer
    if wide.type.ndim != 5 or spread is None or spread.type not in ("expand", "tile") or not _joins(op, heads):
        return None
    narrow = spread.inputs["X"][0]
    split = narrow.producer
    if narrow.type.ndim != 5 or narrow.type.shape[heads + 1] != 1 or split is None:
        return None
    if not _same_but(narrow.type.shape, wide.type.shape, heads + 1) or split.type not in ("unsqueeze", "reshape"):
        return None
    source = split.inputs["X"][0].type.shape
    kept = (*narrow.type.shape[: heads + 1], *narrow.type.shape[heads + 2 :])
    known = split.type == "unsqueeze" or kept.count(-1) <= 1
    if source != kept or not known:
        return None
    chain = (op, spread, split)
    found.ops.update(dict.fromkeys(chain))
    if all(found.is_inside(v) for v in (wide, narrow)):
        return split.inputs["X"][0]
    for each in chain:
        del found.ops[each]
    return None


def _joins(op: OpNode, heads: int) -> bool:
    """Whether a reshape [.., H, G, ..] -> [.., H * G, ..] leaves the other axes alone."""
    source, out = op.inputs["X"][0].type.shape, next(op.output_vars).type.shape
    joined = (*source[:heads], source[heads] * source[heads + 1], *source[heads + 2 :])
    if -1 in source[heads : heads + 2] or out != joined:
        return False
    if op.type == "flatten" or out.count(-1) <= 1:
        return True
    shape = op.attrs["shape"]  # 0 copies a size at its place: then one unknown size is left
    return sum(size == -1 and not (axis < heads and shape[axis] == 0) for axis, size in enumerate(out)) <= 1


def _same_but(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    return len(a) == len(b) and all(x == y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != axis)


def _find_result(found: Attention, anchor: OpNode, rank: int) -> None:
    """The product, or where only a transpose to [B, S, H, D] reads it, that."""
    found.out = anchor.outputs["Out"][0]
    readers = [c for c in found.out.consumers if c.forward not in found.ops]
    if rank == 4 and len(readers) == 1 and readers[0].type == "transpose" and found.out.pinned is None:
        perm = tuple(axis % 4 for axis in readers[0].attrs["perm"])
        if perm == HEADS_MOVED and found.out.version == 0 and found.out.next_version is None:
            found.ops[readers[0]] = None
            if found.is_inside(found.out):
                found.out, found.out_moved = readers[0].outputs["Out"][0], True
            else:
                del found.ops[readers[0]]


def take_constants(found: Attention, sources: list[VarNode]) -> None:
    """Operators that make constants for this attention only disappear with it."""
    above = {op for v in (*found.constants, *sources) for op in makers(v)} - found.ops.keys()
    for op in sorted(above, key=lambda op: op.rank, reverse=True):
        quiet = not op.opdef.traits & {"random", "side_effect"} and not op.grads
        if quiet and all(found.is_inside(v) and v.version == 0 and v.next_version is None for v in op.output_vars):
            found.ops[op] = None
