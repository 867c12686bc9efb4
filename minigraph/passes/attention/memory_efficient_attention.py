"""memory_efficient_attention: attention written out becomes one operator that never holds its probabilities.

    matmul(dropout(softmax(modified(scale * matmul(Q, K^T)))), V)  ->  memory_efficient_attention(Q, K, V, ...)

Saves the scores and probabilities, [B, H, Sq, Sk] each and again in backward, which stores LogSumExp
[B, H, Sq] instead. scores.py reads the many spellings as one template; this file decides
what the modifiers of scores are and emits the operator:

    attribute causal, window   where a mask hides by position alone and exactly that: with -inf; or with
                               -1e4 or less if no query is hidden from all keys, and no other mask or bias
    Mask and masked_score      every other `where`
    Bias                       every other addend

A mask of an operator that is there already becomes such an attribute, too: mask_by_position.py.

So results are those of the written program but by rounding. One thing differs on purpose: a query that
-inf hides from all keys gives zeros instead of NaN. Dropout keeps the numbers of the operator it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.pattern import Match, Mismatch
from minigraph.passes.engine.rule import GraphBuilder, Refused, Rule, apply_rule, refuse_unless

from .found import HEADS_MOVED, Attention, AttentionOperand, Modifier
from .mask_by_position import MaskByPosition, Position, attributes_of, hidden_by, sees_a_key
from .masks import EVERYWHERE, MOVES, SAME, Bounds, makers
from .scores import probabilities, take_constants, walk


def position_of(modifier: Modifier, attention: Attention) -> Position | None:
    """The positions that a modifier hides by position alone; None if it is no such mask of the scores."""
    sizes = sizes_of(attention)
    if modifier.source.type.shape[-2:] != sizes:
        return None
    if -1 in sizes and not has_shape_of(modifier.source, attention.path):
        return None
    return hidden_by(modifier)


def sizes_of(attention: Attention) -> tuple[int, int]:
    """How many queries and keys the scores have; -1 for a number that is known only at run time."""
    assert attention.scores is not None
    queries, keys = attention.scores.type.shape[-2:]
    return queries, keys


def has_shape_of(mask: VarNode, path: list[VarNode]) -> bool:
    """Whether a mask, made by steps that keep shapes, is as large as scores whose sizes are not known."""
    likes = [op for op in makers(mask) if op.type == "fill_any_like" and op.outputs["Out"][0].type.ndim > 0]
    moved = any(op.type in {*SAME, *MOVES} and next(op.output_vars).type.ndim for op in makers(mask))
    return bool(likes) and not moved and all(op.inputs["X"][0] in path for op in likes)


def split(attention: Attention) -> tuple[dict[str, Any], list[Modifier]]:
    """Attributes for the positions that are hidden, and the modifiers that stay arrays."""
    sizes = sizes_of(attention)
    masks = [(m, position_of(m, attention)) for m in attention.modifiers if m.kind != "times"]
    alone = all(p is not None for _, p in masks)
    exact: list[tuple[Modifier, Position]] = []
    outer_fill = False
    for m, p in masks:
        if p is not None and (alone if p.fill != -math.inf else not outer_fill):
            exact.append((m, p))
        outer_fill = outer_fill or (p is None and m.kind == "where" and m.fill != -math.inf)
    bounds, finite = common(p for _, p in exact), any(p.fill != -math.inf for _, p in exact)
    attrs = attributes_of(bounds, sizes) if bounds != EVERYWHERE else {}
    if attrs is None or (finite and not sees_a_key(bounds, sizes)):
        attrs, exact = {}, []
    check_times(attention, exact)
    taken = [m for m, _ in exact]
    return attrs, [m for m, _ in masks if not any(m is x for x in taken)]


def common(positions: Iterable[Position]) -> Bounds:
    """Where none of these masks hides."""
    bounds = EVERYWHERE
    for p in positions:
        bounds = max(bounds[0], p.bounds[0]), min(bounds[1], p.bounds[1])
    return bounds


def check_times(attention: Attention, exact: list[tuple[Modifier, Position]]) -> None:
    """Refuse scores times a mask of 1 and 0 unless a later mask by position hides what became 0."""
    for n, m in enumerate(attention.modifiers):
        if m.kind == "times" and m.steps is not None:
            low, high = common(p for x, p in exact if any(x is later for later in attention.modifiers[:n]))
            kept = [form.bounds for form in m.steps.forms() if form.inside == 1]
            hidden = any(bounds[0] <= low and high <= bounds[1] for bounds in kept)
            refuse_unless(
                hidden and m.source.type.shape[-2:] == sizes_of(attention),
                f"the scores are multiplied by {m.source.name}",
            )


class AttentionMatch(Match):
    """A match by attention_scores; `problem` tells why it is refused."""

    def __init__(self, attention: Attention, problem: str | None) -> None:
        super().__init__()
        self.ops = {op: op for op in attention.ops}  # pyright: ignore[reportAttributeAccessIssue]
        self.kept = [attention.out]
        self.attrs = {"attention": attention, "problem": problem}


class AttentionPattern:
    """Stands in for a Pattern: a match is found by walking."""

    root_type = "matmul"

    def match(self, anchor: OpNode) -> tuple[list[Match], int, str]:
        """As Pattern.match, with the product with V at `anchor`."""
        misses = []
        for from_right in (False, True):
            attention = Attention(from_right=from_right)
            try:
                return [self.read(anchor, attention, probabilities(anchor, attention))], len(attention.ops), ""
            except (Mismatch, Refused) as why:
                misses.append((len(attention.ops), str(why)))
        return [], *max(misses, key=lambda miss: miss[0])

    def read(self, anchor: OpNode, attention: Attention, scores: VarNode) -> Match:
        """The match whose softmax reads `scores`."""
        attention.out, problem = anchor.outputs["Out"][0], None
        try:
            walk(attention, anchor, scores)
            _, arrays = split(attention)
            take_constants(attention, [m.source for m in attention.modifiers if m not in arrays])
        except Refused as why:
            problem = str(why)
        return AttentionMatch(attention, problem)


class WrittenOut(Rule):
    """matmul(dropout(softmax(modified(scale * matmul(Q, K^T)))), V) -> memory_efficient_attention(Q, K, V, ...)"""

    compiled = AttentionPattern()  # pyright: ignore[reportAssignmentType]

    def check(self, *, attention: Attention, problem: str | None, **_) -> None:
        refuse_unless(problem is None, problem or "")
        refuse_unless(math.isfinite(attention.scale), f"the scale is {attention.scale}")
        if attention.dropout is not None and not attention.dropout.attrs["is_test"]:
            p, mode = attention.dropout.attrs["p"], attention.dropout.attrs["mode"]
            refuse_unless(p < 1, f"{attention.dropout.label()} drops everything")
            refuse_unless(mode == "upscale_in_train" or p == 0, f"{attention.dropout.label()} has mode {mode}")
        elif attention.dropout is not None:
            mode = attention.dropout.attrs["mode"]
            refuse_unless(mode == "upscale_in_train", f"{attention.dropout.label()} has mode {mode}")

    def rewrite(self, g: GraphBuilder, *, attention: Attention, problem: str | None, **_) -> Any:
        layout = layout_of(attention)
        q, k, v = (arranged(g, x, layout, attention.split) for x in (attention.q, attention.k, attention.v))
        attrs, arrays = split(attention)
        arrays = [regrouped(g, m, attention.split) for m in arrays]
        bias = bias_of(g, q.type.ndim, [m for m in arrays if m.kind == "add"])
        mask, masked_score = mask_of(g, arrays)
        if masked_score is not None:
            attrs["masked_score"] = masked_score
        key, dropout = None, attention.dropout
        if dropout is not None and dropout.attrs["p"] > 0 and not dropout.attrs["is_test"]:
            key = g.random_key(seed=dropout.attrs["seed"])
            g.emitted[-1].number = dropout.number  # the same random numbers as before
            attrs["dropout"] = dropout.attrs["p"]
        if attention.scale != 1 / math.sqrt(q.type.shape[-1] if q.type.shape[-1] > 0 else 1):
            attrs["scale"] = attention.scale
        out = g.memory_efficient_attention(
            q, k, v, bias, mask, None, None, key, layout=layout, needs=["LogSumExp"] if g.training else (), **attrs
        )[0]
        if q.type.ndim == 4 and (layout == "bshd") != attention.out_moved:
            out = g.transpose(out, perm=HEADS_MOVED)
        assert attention.out is not None
        shape = turned(attention.out.type.shape) if attention.out_turned else attention.out.type.shape
        if out.type.ndim != len(shape):
            out = g.reshape(out, shape=shape)
        return g.transpose(out, perm=turned(range(len(shape)))) if attention.out_turned else out


def turned(axes: Sequence[int]) -> tuple[int, ...]:
    """With the last two exchanged."""
    return (*axes[:-2], axes[-1], axes[-2])


def layout_of(attention: Attention) -> str:
    """The layout in which fewer arrays need a transpose."""
    operands = [x for x in (attention.q, attention.k, attention.v) if x is not None]
    if len(operands[0].perm) == 3 and attention.split is None:
        return "bshd"
    moved = sum(x.perm == HEADS_MOVED for x in operands) + attention.out_moved
    straight = sum(x.perm == tuple(range(len(x.perm))) for x in operands) + (not attention.out_moved)
    return "bshd" if moved > straight else "bhsd"


def arranged(g: GraphBuilder, operand: AttentionOperand | None, layout: str, split: tuple[int, int] | None) -> VarNode:
    """An operand in the layout; by a transpose where it does not lie so."""
    assert operand is not None
    source, perm = operand.source, operand.perm
    if len(perm) == 3 and split is not None:
        source = source if perm == (0, 1, 2) else g.transpose(source, perm=perm)
        source, perm = g.reshape(source, shape=(*split, *source.type.shape[1:])), (0, 1, 2, 3)
    if len(perm) == 4 and layout == "bshd":
        perm = tuple(perm[axis] for axis in HEADS_MOVED)
    return source if perm == tuple(range(len(perm))) else g.transpose(source, perm=perm)


def regrouped(g: GraphBuilder, m: Modifier, split: tuple[int, int] | None) -> Modifier:
    """A modifier of scores [B * H, Sq, Sk] as one of scores [B, H, Sq, Sk]."""
    shape = m.source.type.shape
    if split is None or m.rank != 3 or len(shape) != 3 or shape[0] == 1:
        return m
    return replace(m, source=g.reshape(m.source, shape=(*split, *shape[1:])))


def bias_of(g: GraphBuilder, rank: int, addends: list[Modifier]) -> VarNode | None:
    """The sum of all addends of the scores, which have this rank."""
    total: VarNode | None = None
    for m in addends:
        term = m.source if m.factor == 1 else g.scale(m.source, scale=m.factor)
        if total is None:
            total = term
            continue
        a, b = total.type.shape, term.type.shape
        total = g.elementwise_add(total, term)
        assert total is not None
        small = total.type.shape in (a, b) or total.type.ndim < rank or 1 in total.type.shape
        refuse_unless(small, f"the sum of {addends[0].source.name} and {m.source.name} would be as large as the scores")
    return total


def mask_of(g: GraphBuilder, arrays: list[Modifier]) -> tuple[VarNode | None, float | None]:
    """The condition under which a key is seen, and the score of the others where it is not -inf."""
    chosen = [m for m in arrays if m.kind == "where"]
    if not chosen:
        return None, None
    fills = {m.fill for m in chosen}
    refuse_unless(len(fills) == 1, f"masks fill in different numbers: {sorted(fills)}")
    fill = fills.pop()
    last = next(i for i, m in reversed(list(enumerate(arrays))) if m.kind == "where")
    late = [m for m in arrays[:last] if m.kind == "add"]
    refuse_unless(
        not late or fill == -math.inf,
        f"{late[0].source.name if late else ''} is added after {fill} was filled in, so masked scores differ",
    )
    mask: VarNode | None = None
    for m in chosen:
        term = g.logical_not(m.source) if m.negated else m.source
        mask = term if mask is None else g.logical_and(mask, term)
    return mask, None if fill == -math.inf else fill


def memory_efficient_attention(graph: Graph, report: PassReport) -> int:
    """Apply the equations of this file and of mask_by_position.py."""
    return sum(apply_rule(graph, rule, report) for rule in (MaskByPosition(), WrittenOut()))
