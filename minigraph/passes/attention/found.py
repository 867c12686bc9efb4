"""What scores.py finds out about attention that is written out, before the graph is touched."""

from __future__ import annotations

from dataclasses import dataclass, field

from minigraph.ir.graph import OpNode, VarNode

from .masks import StepFunction

HEADS_MOVED = (0, 2, 1, 3)  # [B, S, H, D] <-> [B, H, S, D]
RESHAPES = ("reshape", "flatten", "squeeze", "unsqueeze")


def split_by(op: OpNode) -> tuple[int, int] | None:
    """(B, H) where `op` makes [B, H, x, y] of [B * H, x, y] or the reverse."""
    if op.type not in RESHAPES:
        return None
    shapes = next(iter(op.input_vars)).type.shape, next(op.output_vars).type.shape
    narrow, wide = sorted(shapes, key=len)
    known = wide[2:] == narrow[1:] and len(wide) == 4 and wide.count(-1) <= 1 and 0 not in wide
    return (wide[0], wide[1]) if known and narrow[0] in (-1, wide[0] * wide[1]) else None


@dataclass
class AttentionOperand:
    """The value [..., S, D] of a product: `source` with its axes in the order `perm`.

    With three axes the first one may be batch times heads.
    """

    source: VarNode
    perm: tuple[int, ...]
    factor: float = 1.0

    @property
    def heads(self) -> int | None:
        """Of a value of rank 4."""
        return self.source.type.shape[self.perm[1]] if len(self.perm) == 4 else None


@dataclass
class Modifier:
    """One change of the scores.

    add     scores + factor * source
    where   scores where `source` (with `negated`: not source) is True, else `fill`
    times   scores * source, which is 1 or 0 by its place
    steps   what `source` is by its place, where that is known
    rank    of the scores
    """

    kind: str
    source: VarNode
    factor: float = 1.0
    negated: bool = False
    fill: float = 0.0
    steps: StepFunction | None = None
    rank: int = 4


@dataclass
class Attention:
    """An attention that was found; modifiers from the last one to the first."""

    ops: dict[OpNode, None] = field(default_factory=dict)
    constants: list[VarNode] = field(default_factory=list)
    modifiers: list[Modifier] = field(default_factory=list)
    scale: float = 1.0
    dropout: OpNode | None = None
    scores: VarNode | None = None
    path: list[VarNode] = field(default_factory=list)  # the values between both products
    split: tuple[int, int] | None = None  # batch and heads, where arrays of rank 3 have them as one axis
    q: AttentionOperand | None = None
    k: AttentionOperand | None = None
    v: AttentionOperand | None = None
    out: VarNode | None = None
    out_moved: bool = False  # `out` is [B, S, H, D]
    from_right: bool = False  # the product with V is V^T P^T
    out_turned: bool = False  # so `out` is [..., D, S]
    drops_turned: bool = False  # dropout's numbers are those of transposed probabilities

    def take(self, op: OpNode) -> VarNode:
        """Make `op` part of the match; its first input."""
        self.ops[op] = None
        return next(iter(op.input_vars))

    def regroup(self, op: OpNode) -> bool:
        """Whether `op` only splits batch times heads into both, or joins them again, as it was seen before."""
        wide = split_by(op)
        if wide is None or self.split not in (None, wide):
            return False
        self.split = wide
        return True

    def is_inside(self, v: VarNode) -> bool:
        """Whether only the match and its gradients read `v`."""
        return v.pinned is None and all(c in self.ops or c.forward in self.ops for c in v.consumers)
