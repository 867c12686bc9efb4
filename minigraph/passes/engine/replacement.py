"""Replacement: one match of a rule on its way to being replaced, its gradients included."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from operator import attrgetter
from typing import TYPE_CHECKING

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.program import GRAD_SUFFIX
from minigraph.program.builder import gradient_slot

from .drafting import Drafting, RuleRecipes
from .emission import Draft, Refused, refuse_unless
from .log import Applied
from .pattern import Match

if TYPE_CHECKING:
    from .rule import Rule

_rank, _name = attrgetter("rank"), attrgetter("name")


class Replacement:
    """One match on its way to being replaced."""

    def __init__(
        self, graph: Graph, rule: Rule, match: Match, pass_name: str, recipes: RuleRecipes | None = None
    ) -> None:
        self.graph, self.rule, self.match, self.pass_name = graph, rule, match, pass_name
        self.recipes = recipes
        self.old = sorted(match.ops.values(), key=_rank)
        self.kept = [v for v in match.kept if v is not None]
        self.grads, self.entering = linked_grads(self.old)
        self.inside = {*self.old, *self.grads}

    def run(self) -> Applied:
        """Check, emit, exchange; raises Refused with the graph unchanged."""
        last, given = self.old[-1], self.match.variables
        facts = self._checked(given)
        inner = self._inner(self.old, {*self.kept})
        incoming, outgoing = self._gradients() if self.grads else ({}, {})
        inner += self._inner(self.grads, {*outgoing.values()}) if self.grads else []
        stand_ins = _stand_ins(self.graph, inner, self.inside, self.kept)
        drafting = Drafting(self, self._place(), given, incoming, outgoing)
        try:
            drafting.emit(self.recipes, facts)
        except (Refused, MinigraphError) as no:
            raise Refused(no.fact if isinstance(no, MinigraphError) else str(no)) from None
        writer, drafts = drafting.writer, drafting.drafts
        entry = Applied(
            self.rule.name, f"{self.kept[0].name} = {writer.type}",
            tuple([op.label() for op in self.old]), last.site, last.role, self.rule.equation,
        )  # fmt: skip
        for op, slot, index, v in stand_ins:
            self.graph.set_input(op, slot, index, v)
        made = [op for draft in drafts for op in draft.emitted]
        gone = reversed([*self.old, *self.grads])
        self.graph.exchange(made, gone, inner, dict.fromkeys(self.entering, writer))
        self._name_new(*drafts)
        return entry

    def _checked(self, given: Mapping[str, VarNode | None]) -> Hashable:
        """Types and attributes of the match, where the rule looks at nothing else; refused where the rule does.

        given   the rule's variables
        """
        attrs, recipes = self.match.attrs, self.recipes
        if recipes is None:
            self.rule.check(**given, **attrs)
            return None
        types = [v.type if v is not None else None for v in given.values()]
        facts = *given, *attrs, *map(id, types), *map(id, attrs.values())
        if facts not in recipes.passed:
            self.rule.check(**given, **attrs)
            recipes.passed[facts] = [*types, *attrs.values()]
        return facts

    # what may disappear

    def _inner(self, ops: Sequence[OpNode], kept: Set[VarNode]) -> list[VarNode]:
        """The values that only `ops` read and write; refuses where another operator needs one."""
        inner: list[VarNode] = []
        inside = self.inside
        for op in ops:
            for vs in op.outputs.values():
                inner += vs if kept.isdisjoint(vs) else [v for v in vs if v not in kept]
        for v in inner:
            pinned = v.pinned
            refuse_unless(pinned is None, "{} is {}, the fused operator would not produce it", v.name, pinned)
            for reader in v.consumers if not inside.issuperset(v.read_by) else ():
                if reader not in inside:
                    refuse_unless(not reader.reads_values_of(v), "{} is also read by {}", v.name, reader)
            if v.version or v.next_version is not None:
                raise Refused("{} is updated in place", v.name)
        return inner

    def _place(self) -> Rank:
        """The rank of a matched operator at which the replacement can stand."""
        reads: list[VarNode] = []
        inside, problem = {*self.old}, None
        for op in self.old:
            for vs in op.inputs.values():
                reads += [v for v in vs if v.producer not in inside]
        for op in reversed(self.old):
            rank = op.rank
            problem = self.graph.order_problem(rank, reads)
            if problem is None:
                readers = _readers_before(self.kept, rank, inside)
                if not readers:
                    return rank
                problem = f"{readers[0].label()} reads a result earlier"
        raise Refused(f"the operators cannot be brought together: {problem}")

    # gradients

    def _gradients(self) -> tuple[dict[VarNode, VarNode], dict[VarNode, VarNode]]:
        """{result: the gradient that comes in for it}, {input of the match: the gradient that goes out for it}."""
        outgoing: dict[VarNode, VarNode] = {}
        inside = {*self.old}
        entering = [v for op in self.old for vs in op.inputs.values() for v in vs]
        for op in self.old:
            for grad in op.grads:
                if grad.grads:
                    raise Refused("{} is differentiated twice", grad)
                for slot, out in gradient_slots(grad):
                    for v, out_grad in zip(op.inputs.get(slot, ()), out, strict=False):
                        if v.producer in inside:
                            continue
                        if v in outgoing:
                            raise Refused(f"{v.name} enters {self.rule.name} twice or is differentiated twice")
                        outgoing[v] = out_grad
        for v in outgoing:  # its gradient here may stand for one of the two places, the new one for both
            if entering.count(v) != 1:
                raise Refused(f"{v.name} enters {self.rule.name} twice or is differentiated twice")
        known = {*entering}.union(*[vs for op in self.inside for vs in op.outputs.values()])
        foreign = {v for grad in self.grads for vs in grad.inputs.values() for v in vs if v not in known}
        refuse_unless(foreign, "0 gradients flow into {}, wanted one", self.kept[0].name)
        incoming: dict[VarNode, VarNode] = {}
        for gradient in sorted(foreign, key=_name) if len(foreign) > 1 else foreign:
            for grad in self.grads:
                if grad in gradient.read_by:
                    result = self._result_of(grad, gradient)
                    one = incoming.setdefault(result, gradient) is gradient
                    refuse_unless(one, "{} gradients flow into {}, wanted one", len(foreign), result.name)
        return incoming, outgoing

    def _result_of(self, grad: OpNode, gradient: VarNode) -> VarNode:
        """The value that survives whose `gradient` the operator `grad` reads."""
        first = self.kept[0]
        own = next((v for v in self.kept if v.producer is grad.forward), None)
        refuse_unless(own is not None, "{} is the gradient of an inner value, not of {}", gradient.name, first.name)
        return own if own is not None else first

    def _name_new(self, g: Draft, backward: Draft | None = None) -> None:
        """Names for values that are new: `<result>.reserve`, and those of the operators they come instead of."""
        graph = self.graph
        for v in g.created:
            assert v.producer is not None
            slot = next(s for s, vs in v.producer.outputs.items() if any(x is v for x in vs))
            suffix = "reserve" if slot == "ReserveSpace" else slot
            graph.enter_var(v, graph.fresh_name(f"{self.kept[0].name}.{suffix}"))
        if backward is None or not backward.created:
            return
        old = [(op, slot, v.name) for op in self.grads for slot, vs in op.outputs.items() for v in vs]
        for v in backward.created:
            op = v.producer
            assert op is not None
            same = [n for o, s, n in old if s in op.outputs and n not in graph.newest and _alike(op, o)]
            graph.enter_var(v, same[0] if same else graph.fresh_name(self.kept[0].name + GRAD_SUFFIX))


def linked_grads(ops: Sequence[OpNode]) -> tuple[list[OpNode], list[OpNode]]:
    """The grad operators of `ops`, in order; and, apart, the sums that collect gradients from their readers."""
    linked = {g: None for op in ops for g in op.grads}
    entering = [g for g in linked if g.type == "sum"]
    if entering:
        made = {v for g in linked for v in g.output_vars}
        entering = [g for g in entering if not any(v in made for v in g.input_vars)]
    own = [g for g in linked if g not in entering] if entering else linked
    return sorted(own, key=_rank), entering


def gradient_slots(grad: OpNode) -> list[tuple[str, list[VarNode]]]:
    """(slot of the forward operator, its gradients) for the outputs of a grad operator."""
    assert grad.forward is not None
    if grad.grad_slot is not None:
        return [(grad.grad_slot, list(next(iter(grad.outputs.values()))))]
    if grad.type != f"{grad.forward.type}_grad":
        return []  # a value on the way
    return [(gradient_slot(slot), vs) for slot, vs in grad.outputs.items()]


def _stand_ins(
    graph: Graph, inner: Sequence[VarNode], inside: set[OpNode], kept: Sequence[VarNode]
) -> list[tuple[OpNode, str, int, VarNode]]:  # fmt: skip
    """(operator, slot, index, value of the same type) for operators that read only the shape of an inner value."""
    stand_ins = []
    for v in inner:
        if inside.issuperset(v.read_by):  # as of nearly all
            continue
        for reader in [r for r in v.consumers if r not in inside]:
            same = next((k for k in kept if k.type == v.type), None)
            if same is None or graph.order_problem(reader.rank, [same]):
                raise Refused("{} needs the shape of {}", reader, v.name)
            stand_ins += [
                (reader, slot, i, same) for slot, vs in reader.inputs.items() for i, x in enumerate(vs) if x is v
            ]
    return stand_ins


def _readers_before(values: Iterable[VarNode], rank: Rank, inside: Set[OpNode]) -> list[OpNode]:
    """Operators outside that read one of the values at this rank or before it."""
    found: list[OpNode] = []
    for v in values:
        early = [c for c in v.read_by if c.rank <= rank and c not in inside]
        found += sorted(early, key=_rank) if len(early) > 1 else early
    return found


def _alike(new: OpNode, old: OpNode) -> bool:
    """Whether a new grad operator may name its outputs as an old one did: not where the same step has moved."""
    a, b = new.forward, old.forward
    moved = a is not None and b is not None and a.type == b.type and list(a.input_vars) != list(b.input_vars)
    return new.type == old.type and not moved
