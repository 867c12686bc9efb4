"""A mask that hides by position becomes an attribute: nobody reads a mask, and hidden blocks are not computed.

    memory_efficient_attention(Q, K, V, Bias=triu(full(-inf), 1))  ->  memory_efficient_attention(Q, K, V) {causal}

The same for Mask, for windows, and for numbers of -1e4 or less where every query sees a key. Refused where another
mask, a table of blocks, packed sequences, causal or a window are there, too. What such masks are as attributes is asked
for attention that is written out, too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from minigraph.ir.graph import OpNode
from minigraph.passes.engine.pattern import Match
from minigraph.passes.engine.rule import GraphBuilder, Rule, refuse_unless

from .found import Modifier
from .masks import Bounds, StepFunction, value_of

HIDES = -1e4  # a number that makes the exponential of a score 0 beside that of a visible one


class Position(NamedTuple):
    """A mask by position: a query i sees key j where bounds[0] <= j - i <= bounds[1]; else `fill` is its score."""

    bounds: Bounds
    fill: float


def hidden_by(modifier: Modifier) -> Position | None:
    """The positions that a modifier as large as the scores hides; None if what it does is no such mask."""
    steps = modifier.steps
    if steps is None or steps.constant is not None:
        return None
    hides = {steps.inside: False, steps.outside: False}
    if modifier.kind == "add":
        hides = {value: value * modifier.factor <= HIDES for value in hides}
        seen = [value for value, hidden in hides.items() if not hidden]
        if len(seen) != 1 or seen[0] != 0:
            return None
        fill = min(value * modifier.factor for value in hides)
    else:
        hides = {value: (value != 0) == modifier.negated for value in hides}
        fill = modifier.fill
    if fill > HIDES:
        return None
    seen = (form for form in steps.forms() if hides[form.outside] and not hides[form.inside])
    return next((Position(form.bounds, fill) for form in seen), None)


def attributes_of(bounds: Bounds, sizes: tuple[int, int]) -> dict[str, Any] | None:
    """causal, bottom_right and window that mean these bounds; None where nothing does."""
    low, high = bounds
    for bottom_right in (False, True)[: 1 if -1 in sizes else 2]:
        end = sizes[1] - sizes[0] if bottom_right else 0
        left, right = end - low, high - end
        if right == 0 and (left == math.inf or left >= 0):
            window = {} if left == math.inf else {"window": (int(left), 0)}
            return {"causal": True, "bottom_right": bottom_right and end != 0, **window}
        if math.isfinite(left) and math.isfinite(right) and min(left, right) >= 0:
            return {"window": (int(left), int(right)), "bottom_right": bottom_right}
    return None


def sees_a_key(bounds: Bounds, sizes: tuple[int, int]) -> bool:
    """Whether every query sees at least one key."""
    if -1 in sizes:
        return bounds[0] == -math.inf and bounds[1] >= 0
    queries, keys = sizes
    rows = (0, queries - 1) if queries else ()
    return all(max(0, i + bounds[0]) <= min(keys - 1, i + bounds[1]) for i in rows)


class MaskPattern:
    """Stands in for a Pattern: an operator with one mask or bias that hides by position alone."""

    root_type = "memory_efficient_attention"

    def match(self, anchor: OpNode) -> tuple[list[Match], int, str]:
        """As Pattern.match."""
        masks = [v for slot in ("Bias", "Mask") for v in anchor.inputs.get(slot, ())]
        steps = value_of(masks[0]) if len(masks) == 1 else None
        if not isinstance(steps, StepFunction) or steps.constant is not None:
            return [], 1, "it has no mask that is known by position" if masks else "it has no mask"
        kind, fill = ("add", 0.0) if "Bias" in anchor.inputs else ("where", anchor.attrs["masked_score"])
        match = Match()
        match.ops = {anchor: anchor}  # pyright: ignore[reportAttributeAccessIssue]
        match.kept = [next(iter(vs)) for slot in anchor.opdef.outputs if (vs := anchor.outputs.get(slot.name))]
        match.attrs = {"op": anchor, "mask": Modifier(kind, masks[0], fill=fill, steps=steps)}
        return [match], 1, ""


class MaskByPosition(Rule):
    """memory_efficient_attention(Q, K, V, a mask that hides by position) -> the same with causal or window"""

    compiled = MaskPattern()  # pyright: ignore[reportAssignmentType]

    def check(self, *, op: OpNode, mask: Modifier, **_) -> None:
        position, sizes = hidden_by(mask), self.sizes(op)
        given = [n for n in ("causal", "window") if op.attrs[n]]
        given += [n for n in ("CuSeqlensQ", "CuSeqlensK", "Blocks") if op.inputs.get(n)]
        refuse_unless(position is not None, f"{mask.source.name} hides nothing by position")
        refuse_unless(not given, f"it has {' and '.join(given)}, too")
        refuse_unless(mask.source.type.shape[-2:] == sizes, f"{mask.source.name} is not as large as the scores")
        assert position is not None
        refuse_unless(attributes_of(position.bounds, sizes), f"no attributes say where {mask.source.name} hides")
        exact = position.fill == -math.inf or sees_a_key(position.bounds, sizes)
        refuse_unless(exact, f"{mask.source.name} hides all keys from a query with a finite number")

    def rewrite(self, g: GraphBuilder, *, op: OpNode, mask: Modifier, **_) -> Any:
        position = hidden_by(mask)
        assert position is not None
        attrs = {**op.attrs, "masked_score": -math.inf, **(attributes_of(position.bounds, self.sizes(op)) or {})}
        q, k, v, key = (next(iter(op.inputs.get(slot, ())), None) for slot in ("Q", "K", "V", "Key"))
        results = g.memory_efficient_attention(
            q, k, v, None, None, None, None, key, needs=["LogSumExp"] if "LogSumExp" in op.outputs else (), **attrs
        )
        return tuple(v for v in results if v is not None)

    def sizes(self, op: OpNode) -> tuple[int, int]:
        """How many queries and keys there are."""
        q, k = (op.inputs[slot][0].type.shape for slot in ("Q", "K"))
        axis = 1 if op.attrs["layout"] == "bshd" or len(q) == 3 else 2
        return q[axis], k[axis]
