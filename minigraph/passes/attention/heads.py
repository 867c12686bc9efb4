"""Heads of K and V that are repeated for the query heads that read them."""

from __future__ import annotations

from minigraph.ir.graph import OpNode, VarNode

from .found import Attention


def before_repeat(attention: Attention, op: OpNode, heads: int) -> VarNode | None:
    """K or V with its own heads, where `op` makes the last step of repeating each of them along axis `heads`."""
    out = next(op.output_vars).type.shape
    if op.type in ("expand", "tile"):  # of a single head
        x = op.inputs["X"][0]
        if x.type.ndim == 4 and x.type.shape[heads] == 1 and _same_but(x.type.shape, out, heads):
            return attention.take(op)
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
    attention.ops.update(dict.fromkeys(chain))
    if all(attention.is_inside(v) for v in (wide, narrow)):
        return split.inputs["X"][0]
    for each in chain:
        del attention.ops[each]
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
