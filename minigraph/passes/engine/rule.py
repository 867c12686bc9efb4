"""Rules: an equation with a condition, and the engine that applies it to a Graph.

A rule says what it finds (`pattern`), when it holds (`check`, with a reason for each refusal) and
what replaces it (`rewrite`). The engine does what no rule may forget:

- A value inside the match disappears, so it must not be fetched, persistable or read by others.
  A reader that needs only its shape is given the result, which has the same type.
- In a training program the grad operators of the matched operators are found by their links. They
  are replaced by what the new operator's own gradient rule emits, under the same conditions. So a
  rule never speaks of gradients, and a gradient that is not needed is not computed.
- Results keep their names. All checks come before the graph changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, Rank, VarNode
from minigraph.opdef import get_op
from minigraph.program import GRAD_SUFFIX
from minigraph.program.builder import GradNeeds, rule_gradients

from .links import gradient_slots, linked_grads
from .log import Applied, PassReport, Reason
from .pattern import Match, Pattern


class Refused(Reason):
    """A rule or the engine says no, and why."""


def refuse_unless(condition: object, reason: str, *about: object) -> None:
    """Refuse with `reason`, its {} filled with `about`, unless `condition` holds."""
    if not condition:
        raise Refused(reason, *about)


class Rule:
    """One equation. Subclasses define pattern, rewrite and, where it needs conditions, check."""

    pattern: Callable[..., Any]

    def check(self, *args: Any, **bound: Any) -> None:
        """Refuse (`refuse_unless(fact, "why")`) where the equation does not hold."""

    def rewrite(self, g: GraphBuilder, *args: Any, **bound: Any) -> Any:
        """Emit the replacement through `g`; return the new values in the order of the pattern's."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def equation(self) -> str:
        """The first line of the class's docstring; "" where it has none of its own."""
        return (type(self).__dict__.get("__doc__") or "").strip().partition("\n")[0]

    @cached_property
    def compiled(self) -> Pattern:
        return Pattern(self.pattern)


class GraphBuilder(GradNeeds):
    """`g.<op type>(...)` on a Graph: emits at the place of the operators that are replaced.

    training  whether the matched operators have grad operators, or will have
    replaced  the values that the pattern returned, None for outputs that are absent here
    layer     the name scope of new operators that have no forward operator
    """

    def __init__(self, graph: Graph, place: Rank, like: OpNode, rewriter: str) -> None:
        self.graph, self.place, self.like, self.rewriter = graph, place, like, rewriter
        self.training = False
        self.replaced: tuple[VarNode | None, ...] = ()
        self.emitted: list[OpNode] = []
        self.created: list[VarNode] = []
        self.forward, self.layer = like.forward, like.layer
        self.needs: Collection[str] = ()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("__"):
            raise AttributeError(op_type)
        return partial(self.emit, op_type)

    def emit(self, op_type: str, *args: Any, needs: Collection[str] = (), **kwargs: Any) -> Any:
        """Add an operator; returns its outputs as Builder.emit does."""
        opdef = get_op(op_type)
        inputs = opdef.bind_inputs(args, kwargs)
        attrs, types = opdef.resolved(inputs, kwargs)
        outputs: dict[str, list[VarNode]] = {}
        results: list[Any] = []
        for name, optional, variadic in opdef.outputs:
            made: list[VarNode] = []
            if name in types and (not optional or self.wanted(name, needs)):
                made = outputs[name] = [self.new_var(f"{op_type}.{name}", t) for t in types[name]]
            results.append(made if variadic else made[0] if made else None)
        op = OpNode(
            opdef, inputs, outputs, attrs, rank=(*self.place, self.graph.ticket()), role=self.like.role,
            forward=self.forward, site=self.like.site, number=self.like.number,
            scope_name=self.like.scope_name if self.forward is not None else self.layer, rewriter=self.rewriter,
        )  # fmt: skip
        problem = self.graph.order_problem(op.rank, op.input_vars)
        if problem:
            raise Refused(f"{op_type} cannot stand here: {problem}")
        self.emitted.append(self.graph.add_op(op))
        return results[0] if len(results) == 1 else tuple(results)

    def new_var(self, name: str, type: Any) -> VarNode:
        self.created.append(self.graph.add_var(self.graph.fresh_name(name), type))
        return self.created[-1]

    def undo(self) -> None:
        """Take everything out that was emitted."""
        for op in reversed(self.emitted):
            self.graph.remove_op(op)
        for v in self.created:
            self.graph.remove_var(v)


def apply_rule(graph: Graph, rule: Rule, report: PassReport) -> int:
    """Apply `rule` wherever it matches and holds; returns how often it did."""
    applied = 0
    pattern = rule.compiled
    for anchor in graph.ops_of([pattern.root_type]):
        if anchor not in graph:
            continue
        matches, matched, why = pattern.match(anchor)
        if not matches:
            report.missed(rule.name, matched, why, anchor.site)
            continue
        refusals = []
        for match in matches:
            try:
                report.apply(_Replacement(graph, rule, match, report.name).run())
                applied += 1
                break
            except Refused as no:
                refusals.append(str(no))
        else:
            report.refuse(rule.name, anchor.label(), refusals[0], anchor.site)
    return applied


class _Replacement:
    """One match on its way to being replaced."""

    def __init__(self, graph: Graph, rule: Rule, match: Match, pass_name: str) -> None:
        self.graph, self.rule, self.match, self.pass_name = graph, rule, match, pass_name
        self.old = sorted(match.ops.values(), key=attrgetter("rank"))
        self.kept = [v for v in match.kept if v is not None]
        self.grads, self.entering = linked_grads(self.old)
        self.inside = {*self.old, *self.grads}

    def run(self) -> Applied:
        """Check, emit, exchange; raises Refused with the graph unchanged."""
        bound = {**self.match.variables, **self.match.attrs}
        self.rule.check(**bound)
        inner = self._inner(self.old, self.kept)
        incoming, outgoing = self._gradients() if self.grads else (None, {})
        inner_grads = self._inner(self.grads, list(outgoing.values()))
        stand_ins = _stand_ins(self.graph, [*inner, *inner_grads], self.inside, self.kept)
        last = self.old[-1]
        g = GraphBuilder(self.graph, self._place(), last, self.pass_name)
        g.forward, g.replaced = self.old[0].forward, tuple(self.match.kept)
        g.training = bool(outgoing) or self.graph.awaits_gradients
        backward, contributions = None, []
        try:
            results = self.rule.rewrite(g, **bound)
            results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
            self._check_results(results, self.kept)
            if outgoing:
                assert incoming is not None
                first = self._backward_place(incoming)
                backward = GraphBuilder(self.graph, first.rank, first, self.pass_name)
                flowing = {r: incoming[k] for r, k in zip(results, self.kept, strict=True) if k in incoming}
                contributions = self._differentiate(backward, g.emitted, flowing, outgoing)
            _check_operands([*g.emitted, *(backward.emitted if backward is not None else ())], self.inside)
        except (Refused, MinigraphError) as no:
            for builder in (backward, g):
                if builder is not None:
                    builder.undo()
            raise Refused(no.fact if isinstance(no, MinigraphError) else str(no)) from None
        entry = Applied(
            self.rule.name, f"{self.kept[0].name} = {results[0].producer.type}",
            tuple(op.label() for op in self.old), last.site, last.role, self.rule.equation,
        )  # fmt: skip
        for op, slot, index, v in stand_ins:
            self.graph.set_input(op, slot, index, v)
        for op in self.entering:
            self.graph.link(op, results[0].producer)
        for op in reversed([*self.old, *self.grads]):
            self.graph.remove_op(op)
        self._take_over(g, results, self.kept)
        if backward is not None:
            self._take_over(backward, contributions, list(outgoing.values()))
        for v in (*inner, *inner_grads):
            self.graph.remove_var(v)
        self._name_new(g, backward)
        return entry

    # what may disappear

    def _inner(self, ops: Sequence[OpNode], kept: Sequence[VarNode]) -> list[VarNode]:
        """The values that only `ops` read and write; refuses where another operator needs one."""
        inside, outer = self.inside, {*kept}
        inner = [v for op in ops for vs in op.outputs.values() for v in vs if v not in outer]
        for v in inner:
            pinned = v.pinned
            refuse_unless(pinned is None, "{} is {}, the fused operator would not produce it", v.name, pinned)
            for reader in v.consumers if not inside.issuperset(v.read_by) else ():
                if reader not in inside:
                    refuse_unless(not reader.reads_values_of(v), "{} is also read by {}", v.name, reader)
            refuse_unless(v.version == 0 and v.next_version is None, "{} is updated in place", v.name)
        return inner

    def _place(self) -> Rank:
        """The rank of a matched operator at which the replacement can stand."""
        inside = {*self.old}
        reads = [v for op in self.old for vs in op.inputs.values() for v in vs if v.producer not in inside]
        problem = None
        for op in reversed(self.old):
            rank = op.rank
            problem = self.graph.order_problem(rank, reads)
            if problem is None:
                readers = [c for v in self.kept for c in v.consumers if c.rank <= rank and c not in inside]
                if not readers:
                    return rank
                problem = f"{readers[0].label()} reads a result earlier"
        raise Refused(f"the operators cannot be brought together: {problem}")

    # gradients

    def _gradients(self) -> tuple[dict[VarNode, VarNode], dict[VarNode, VarNode]]:
        """{result: the gradient that comes in for it}, {input of the match: the gradient that goes out for it}."""
        inside, outgoing = {*self.old}, {}
        for op in self.old:
            for grad in op.grads:
                refuse_unless(not grad.grads, "{} is differentiated twice", op)
                for slot, out in gradient_slots(grad):
                    for v, out_grad in zip(op.inputs.get(slot, ()), out, strict=False):
                        if v.producer in inside:
                            continue
                        if v in outgoing:
                            raise Refused(f"{v.name} enters {self.rule.name} twice or is differentiated twice")
                        outgoing[v] = out_grad
        entering = [v for op in self.old for v in op.input_vars]
        for v in outgoing:  # its gradient here may stand for one of the two places, the new one for both
            if entering.count(v) != 1:
                raise Refused(f"{v.name} enters {self.rule.name} twice or is differentiated twice")
        known = {*entering}.union(*[op.output_vars for op in self.old], *[grad.output_vars for grad in self.grads])
        foreign = {v for grad in self.grads for v in grad.input_vars if v not in known}
        refuse_unless(foreign, "0 gradients flow into {}, wanted one", self.kept[0].name)
        incoming: dict[VarNode, VarNode] = {}
        for gradient in sorted(foreign, key=attrgetter("name")):
            for grad in self.grads:
                if grad in gradient.read_by:
                    result = self._result_of(grad, gradient)
                    refuse_unless(
                        incoming.setdefault(result, gradient) is gradient,
                        "{} gradients flow into {}, wanted one", len(foreign), result.name,
                    )  # fmt: skip
        return incoming, outgoing

    def _result_of(self, grad: OpNode, gradient: VarNode) -> VarNode:
        """The value that survives whose `gradient` the operator `grad` reads."""
        own, first = [v for v in self.kept if v.producer is grad.forward], self.kept[0]
        refuse_unless(own, "{} is the gradient of an inner value, not of {}", gradient.name, first.name)
        return [*own, first][0]

    def _backward_place(self, incoming: dict[VarNode, VarNode]) -> OpNode:
        """The first grad operator at whose place all gradients that come in are there."""
        for grad in self.grads:
            if not self.graph.order_problem(grad.rank, incoming.values()):
                return grad
        return self.grads[-1]

    def _differentiate(
        self, g: GraphBuilder, emitted: Sequence[OpNode], incoming: dict[VarNode, VarNode],
        outgoing: dict[VarNode, VarNode],
    ) -> list[VarNode]:  # fmt: skip
        """The gradients in `outgoing`, by the new operators' gradient rules; incoming: {result: its gradient}."""
        wanted = set(outgoing)
        for op in emitted:
            if any(v in wanted for v in op.input_vars):
                wanted.update(op.output_vars)
        grads = dict(incoming)
        for op in reversed(emitted):
            if not any(v in grads for v in op.output_vars):
                continue
            refuse_unless(op.opdef.grad_function, "{} has no gradient rule", op.type)
            for slot, vs in op.outputs.items():
                taken = f"{slot}_grad" in op.opdef.grad_parameters or not any(v in grads for v in vs)
                refuse_unless(taken, "no gradient flows through {} of {}", slot, op.type)
            g.forward, g.needs = op, {s for s, vs in op.inputs.items() if any(v in wanted for v in vs)}
            for v, grad in rule_gradients(g, op, partial(_kept, op, grads), wanted.__contains__):
                grads[v] = grad if v not in grads else g.sum([grads[v], grad])
        for v in outgoing:
            refuse_unless(v in grads, "the gradient rule of {} gives no gradient of {}", emitted[-1].type, v.name)
        new = [grads[v] for v in outgoing]
        self._check_results(new, list(outgoing.values()))
        return new

    # exchanging

    def _check_results(self, new: Sequence[VarNode], old: Sequence[VarNode]) -> None:
        refuse_unless(len(new) == len(old), "{} values replace {}", len(new), len(old))
        for a, b in zip(new, old, strict=True):
            if a.type != b.type:  # usually they are the same
                refuse_unless(a.type.accepts(b.type) and b.type.accepts(a.type), f"{b} would become {a.type}")
            writer, before = a.producer, b.previous_version
            assert writer is not None
            for c in b.read_by:
                if c.rank <= writer.rank and c not in self.inside:
                    raise Refused(f"{b.name} is read earlier by {c.label()}")
            for c in before.users if before is not None else ():
                if c.rank > writer.rank:
                    raise Refused(f"{b.name} would be overwritten before {c.label()}")

    def _take_over(self, g: GraphBuilder, new: Sequence[VarNode], old: Sequence[VarNode]) -> None:
        """The new operators write and read the variables of old, whose names live on."""
        for a, b in zip(new, old, strict=True):
            self.graph.merge_var(a, b)
            g.created.remove(a)

    def _name_new(self, g: GraphBuilder, backward: GraphBuilder | None) -> None:
        """Names for values that are new: `<result>.reserve`, and those of the operators they come instead of."""
        for v in g.created:
            assert v.producer is not None
            slot = next(s for s, vs in v.producer.outputs.items() if any(x is v for x in vs))
            suffix = "reserve" if slot == "ReserveSpace" else slot
            self.graph.rename_var(v, self.graph.fresh_name(f"{self.kept[0].name}.{suffix}"))
        if backward is None or not backward.created:
            return
        old = [(op, slot, v.name) for op in self.grads for slot, vs in op.outputs.items() for v in vs]
        for v in backward.created:
            op = v.producer
            assert op is not None
            same = [n for o, s, n in old if s in op.outputs and n not in self.graph.newest and _alike(op, o)]
            self.graph.rename_var(v, same[0] if same else self.graph.fresh_name(self.kept[0].name + GRAD_SUFFIX))


def _stand_ins(
    graph: Graph, inner: Sequence[VarNode], inside: Set[OpNode], kept: Sequence[VarNode]
) -> list[tuple[OpNode, str, int, VarNode]]:  # fmt: skip
    """(operator, slot, index, value of the same type) for operators that read only the shape of an inner value."""
    stand_ins = []
    for v in inner:
        for reader in (r for r in v.consumers if r not in inside) if not v.read_by.keys() <= inside else ():
            same = next((k for k in kept if k.type == v.type), None)
            refuse_unless(
                same is not None and not graph.order_problem(reader.rank, [same]),
                f"{reader.label()} needs the shape of {v.name}",
            )  # fmt: skip
            assert same is not None
            stand_ins += [
                (reader, slot, i, same) for slot, vs in reader.inputs.items() for i, x in enumerate(vs) if x is v
            ]
    return stand_ins


def _check_operands(emitted: Sequence[OpNode], gone: Set[OpNode]) -> None:
    """New operators read nothing that goes: `h + h` is no product with a bias, though h may have its shape."""
    for v in (v for op in emitted for v in op.input_vars if v.producer in gone):
        raise Refused(f"{v.name} would be an operand of what computes it")


def _alike(new: OpNode, old: OpNode) -> bool:
    """Whether a new grad operator may name its outputs as an old one did: not where the same step has moved."""
    a, b = new.forward, old.forward
    moved = a is not None and b is not None and a.type == b.type and list(a.input_vars) != list(b.input_vars)
    return new.type == old.type and not moved


def _kept(op: OpNode, grads: dict[VarNode, VarNode], name: str) -> Any:
    """The argument of a gradient rule called `name`: an input, an output or an output's gradient."""
    slots = op.opdef.slots
    if name in slots:
        values = list(op.inputs.get(name, ()) or op.outputs.get(name, ()))
        return values if slots[name].variadic else (values[0] if values else None)
    output = op.outputs.get(name.removesuffix("_grad"), [])
    grad = [grads.get(v) for v in output]
    refuse_unless(None not in grad or name in op.opdef.optional_grads, "{} gets no gradient {}", op.type, name)
    return grad[0] if len(grad) == 1 else (grad or None)
