"""Which parameter updates can become one operator, and which clipping and weight decay joins them.

Updates form a group if they are of one type and agree in the parameters' data type, in every
attribute, in the learning rate and in the slots that they have. What stands between a gradient and
its update is looked through: `elementwise_mul` by one number (a clipping factor) and `sum` with the
scaled parameter (L2 decay) are part of a fused update; norms of a list are one operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import OPS, get_op
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.redirect import (
    is_unread,
    require_readable,
    require_temporary,
    take_out,
)
from minigraph.passes.engine.rule import Refused, refuse_unless

SHARED = ("LearningRate", "SkipUpdate", "GradScale")


@dataclass(slots=True)
class Source:
    """Where an update's gradient comes from: (grad * scale) + decay * Param.

    between  operators that compute this, last first; they go when the update computes it itself
    """

    grad: VarNode
    scale: VarNode | None = None
    decay: float = 0.0
    between: list[OpNode] = field(default_factory=list)


@dataclass
class UpdateGroup:
    """Updates that can become one operator at `place`, in the order of the program."""

    ops: list[OpNode]
    sources: list[Source]
    place: Rank

    @property
    def scale(self) -> VarNode | None:
        return self.sources[0].scale

    @property
    def decay(self) -> float:
        return self.sources[0].decay

    def column(self, slot: str) -> list[VarNode]:
        """The variables of an input slot; of the gradient, those before clipping and decay that join."""
        if slot == "Grad":
            return [s.grad for s in self.sources]
        return [op.inputs[slot][0] for op in self.ops if slot in op.inputs]

    def results(self, slot: str) -> list[VarNode]:
        """The variables of an output slot."""
        return [op.outputs[slot][0] for op in self.ops if slot in op.outputs]


def is_update(op: OpNode) -> bool:
    """Whether this updates one parameter and has a form for lists."""
    return "optimizer" in op.opdef.traits and f"fused_{op.type}" in OPS


def find_groups(graph: Graph, report: PassReport, rule: str, only: str | None = None) -> list[UpdateGroup]:
    """Groups of two or more updates, of one type `only` if given; one that stays alone is reported with the reason."""
    updates = [op for op in graph.ops if is_update(op) and only in (None, op.type)]
    keyed = [(_key(op, source), op, source) for op, source in ((op, _source(op, report, rule)) for op in updates)]
    alike = Counter(key for key, _, _ in keyed)
    by_key: dict[tuple[object, ...], list[tuple[OpNode, Source]]] = {}
    for key, op, source in keyed:
        if alike[key] == 1:  # a factor or a decay of its own must not keep it out of a group
            source = Source(op.inputs["Grad"][0])
            key = _key(op, source)
        by_key.setdefault(key, []).append((op, source))
    groups = []
    for key, members in by_key.items():
        members = _movable(members, report, rule)
        if len(members) > 1:
            ops, sources = [op for op, _ in members], [source for _, source in members]
            groups.append(UpdateGroup(ops, sources, ops[-1].rank))
        else:
            for op, _ in members:
                report.refuse(rule, op.label(), f"alone: {_difference(key, op, by_key)}", op.site)
    return groups


def _key(op: OpNode, source: Source) -> tuple[object, ...]:
    shared = [(slot, id(op.inputs[slot][0])) for slot in SHARED if slot in op.inputs]
    scale = id(source.scale) if source.scale is not None else None
    dtype = op.inputs["Param"][0].type.dtype
    return op.type, dtype, repr(op.attrs), tuple(shared), frozenset(op.inputs), scale, source.decay


WORDS = ("type", "data type", "attributes", "learning rate or flags", "slots", "clipping factor", "weight decay")


def _difference(
    key: tuple[object, ...], op: OpNode, by_key: dict[tuple[object, ...], list[tuple[OpNode, Source]]]
) -> str:
    """The difference between an update and the group that is most like it."""
    others = [k for k in by_key if k != key]
    if not others:
        return "there is no other update"
    nearest = max(others, key=lambda k: sum(a == b for a, b in zip(k, key, strict=True)))
    words = [word for word, a, b in zip(WORDS, key, nearest, strict=True) if a != b]
    other = by_key[nearest][0][0]
    if "attributes" in words and key[0] == nearest[0]:
        names = [n for n, v in op.attrs.items() if other.attrs.get(n) != v]
        words[words.index("attributes")] = "attributes " + ", ".join(
            f"{n}={op.attrs[n]} instead of {other.attrs[n]}" for n in names
        )
    return f"it differs from {other.label()} in {', '.join(words)}"


def _movable(
    members: Sequence[tuple[OpNode, Source]], report: PassReport, rule: str
) -> list[tuple[OpNode, Source]]:  # fmt: skip
    """The updates that can take place where the last one stands."""
    kept = list(members)
    while True:
        place, inside = kept[-1][0].rank, {op for op, _ in kept}
        problems = [(op, why) for op, source in kept if (why := _problem(op, source, place, inside))]
        if not problems:
            return kept
        op, why = problems[-1] if problems[-1][0] is kept[-1][0] else problems[0]
        report.refuse(rule, op.label(), why, op.site)
        kept = [pair for pair in kept if pair[0] is not op]
        if not kept:
            return kept


def _problem(op: OpNode, source: Source, place: Rank, inside: set[OpNode]) -> str | None:
    """Why this update cannot wait until `place`."""
    reads = [*op.input_vars, source.grad, *([source.scale] if source.scale is not None else [])]
    for v in reads:
        if v.producer in inside:
            return f"{v.name} is updated twice"
        writer = v.next_version.producer if v.next_version is not None else None
        if writer is not None and writer not in inside and writer.rank < place:
            return f"{v.name} is overwritten by {writer.label()} before the last update of the group"
    for v in op.output_vars:
        if v.read_by and (readers := [c for c in v.consumers if c.rank <= place]):
            return f"{v.name} is read by {readers[0].label()} before the last update of the group"
        writer = v.next_version.producer if v.next_version is not None else None
        if writer is not None and writer.rank <= place:
            return f"{v.name} is overwritten by {writer.label()} before the last update of the group"
    return None


# what joins an update


def _source(op: OpNode, report: PassReport, rule: str) -> Source:
    """The gradient behind clipping and decay, as far as these can join."""
    source = Source(op.inputs["Grad"][0])
    reader = op
    for step in (_decayed, _scaled):
        try:
            reader = step(op, source, reader) or reader
        except Refused as why:
            report.refuse(rule, op.label(), f"{source.grad.name} stays: {why}", op.site)
            break
    return source


def _decayed(op: OpNode, source: Source, reader: OpNode) -> OpNode | None:
    """sum(grad, scale(Param)) -> grad, with the factor as decay."""
    total, param = source.grad.producer, op.inputs["Param"][0]
    if total is None or total.type != "sum" or len(total.inputs["X"]) != 2:
        return None
    if "MasterParam" in op.inputs or "GradScale" in op.inputs:  # decay of the rounded parameter; decay that is scaled
        return None
    grad, term = total.inputs["X"]
    scaled = term.producer
    if scaled is None or scaled.type != "scale" or scaled.inputs["X"][0] is not param:
        return None
    if scaled.attrs["bias"] != 0 or scaled.attrs["scale"] == 0 or len(scaled.inputs) != 1:
        return None
    _require_inner(source.grad, reader)
    _require_inner(term, total)
    source.grad, source.decay = grad, scaled.attrs["scale"]
    source.between += [total, scaled]
    return total


def _scaled(op: OpNode, source: Source, reader: OpNode) -> OpNode | None:
    """elementwise_mul(grad, one number) -> grad, with the number as scale."""
    product = source.grad.producer
    if product is None or product.type != "elementwise_mul" or "GradScale" in op.inputs:
        return None
    grad, factor = product.inputs["X"][0], product.inputs["Y"][0]
    if factor.type.size != 1 or grad.type != source.grad.type or factor.type.dtype != grad.type.dtype:
        return None
    _require_inner(source.grad, reader)
    require_readable(grad.graph, factor, [op])
    source.grad, source.scale = grad, factor
    source.between.append(product)
    return product


def _require_inner(v: VarNode, reader: OpNode) -> None:
    """Refuse unless `v` is a temporary that only `reader` reads."""
    require_temporary(v)
    others = [c for c in v.consumers if c is not reader]
    refuse_unless(not others, "{} is also read by {}", v.name, *others[:1])


# exchange


def replaced(graph: Graph, group: UpdateGroup, new: Sequence[OpNode], report: PassReport, rule: str) -> None:
    """Take the group's operators out after `new` was put in for them, and report it."""
    taken = [op.label() for op in group.ops]
    joined = [op for source in group.sources for op in source.between]
    for op in joined:
        if op in graph and is_unread(op):
            taken.append(op.label())
            take_out(graph, op)
    last = group.ops[-1]
    names = f"{group.results('ParamOut')[0].name}, ... = {new[-1].type}" if len(new) == 1 else f"{len(new)} operators"
    shown = (*taken[:4], f"{len(taken) - 4} more") if len(taken) > 5 else tuple(taken)
    report.apply(Applied(rule, names, shown, last.site, last.role))


def join_norms(graph: Graph, report: PassReport) -> int:
    """sum(squared_l2_norm(a), squared_l2_norm(b), ...) -> foreach_squared_l2_norm(a, b, ...)

    Arrays of several types, as mixed precision has them, give one such operator for each type, and their sum.
    """
    joined = 0
    for total in [op for op in graph.ops_of(["sum"]) if op.role == "optimize"]:
        norms = [v.producer for v in total.inputs["X"]]
        if len(norms) < 2 or any(op is None or op.type != "squared_l2_norm" for op in norms):
            continue
        squares = [op for op in norms if op is not None]
        arrays = [op.inputs["X"][0] for op in squares]
        kinds = list(dict.fromkeys(v.type.dtype for v in arrays))
        try:
            for v in total.inputs["X"]:
                _require_inner(v, total)
            for v in arrays:
                require_readable(graph, v, [total])
            refuse_unless(len(kinds) < len(arrays), "each gradient has a data type of its own")
        except Refused as why:
            report.refuse("JoinNorms", total.label(), str(why), total.site)
            continue
        result, type = total.outputs["Out"][0], total.inputs["X"][0].type
        graph.remove_op(total)
        parts = [result] if len(kinds) == 1 else [
            graph.add_var(graph.fresh_name(f"{result.name}.{dtype}"), type) for dtype in kinds
        ]  # fmt: skip
        for dtype, part in zip(kinds, parts, strict=True):
            some = [v for v in arrays if v.type.dtype == dtype]
            _emit_beside(graph, total, "foreach_squared_l2_norm", some, part, report)
        if len(kinds) > 1:
            _emit_beside(graph, total, "sum", parts, result, report)
        for square in dict.fromkeys(squares):  # gradients may be one value
            take_out(graph, square)
        labels = squares[0].label(), f"{len(squares) - 1} more", total.label()
        new = f"foreach_squared_l2_norm {result.name}"
        report.apply(Applied("JoinNorms", new, labels, total.site, total.role))
        joined += 1
    return joined


def _emit_beside(
    graph: Graph, old: OpNode, op_type: str, inputs: list[VarNode], result: VarNode, report: PassReport
) -> None:  # fmt: skip
    """Put an operator at the place of `old`."""
    graph.add_op(
        OpNode(
            get_op(op_type), {"X": inputs}, {"Out": [result]}, {}, rank=(*old.rank, graph.ticket()), role=old.role,
            site=old.site, number=old.number, scope_name=old.scope_name, rewriter=report.name,
        )
    )  # fmt: skip
