"""A mask that hides by position becomes an attribute: nobody reads a mask, and hidden blocks are not computed.

    memory_efficient_attention(Q, K, V, Bias=triu(full(-inf), 1))  ->  memory_efficient_attention(Q, K, V) {causal}

The same for Mask, for windows, and for numbers of -1e4 or less where every query sees a key. Refused where another
mask, a table of blocks, packed sequences, causal or a window are there, too.
"""

from __future__ import annotations

import math
from typing import Any

from minigraph.ir.graph import OpNode
from minigraph.passes.engine.pattern import Match
from minigraph.passes.engine.rule import GraphBuilder, Rule, refuse_unless

from .found import Modifier
from .masks import StepFunction, value_of
from .positions import attributes_of, hidden_by, sees_a_key


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
