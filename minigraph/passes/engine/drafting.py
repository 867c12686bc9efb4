"""Drafting: the operators that come in for one match, and those of its gradients; nothing is in the graph yet.

A rule whose `check` and `rewrite` look at types and attributes only (`Rule.by_types`) gives alike operators for alike
matches, as the layers of a network are. What it gave for one is a RuleRecipe, which gives the same for others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from minigraph.ir.graph import OpNode, Rank, VarNode
from minigraph.opdef import OpDef
from minigraph.program.builder import rule_gradients
from minigraph.types import TensorType

from .emission import Draft, Refused, refuse_unless

if TYPE_CHECKING:
    from .replacement import Replacement

Gradients = dict[VarNode, VarNode]  # {value: its gradient}
Places = list[tuple[str, int | list[int]]]  # (slot, the number of its value, or the numbers of a list)


class RecipeStep(NamedTuple):
    """One operator of a RuleRecipe, in numbers of values.

    outer    the values that it reads and the recipe does not write
    forward  number of the operator whose gradient it computes, None for what the matched operators belong to
    """

    opdef: OpDef
    inputs: Places
    outputs: Places
    attrs: dict[str, Any]
    grad_slot: str | None
    forward: int | None
    outer: list[int]


class RuleRecipe(NamedTuple):
    """What a rule gave for a match, for others that cannot be told apart from it.

    drafts   for each the types of its new values with the names that they have in it, and the operators
    writers  number of the operator that writes each result, and each gradient that goes out
    types    those that the key of this recipe names by identity
    """

    drafts: list[tuple[list[tuple[str, TensorType]], list[RecipeStep]]]
    writers: list[int]
    types: list[TensorType]


class RuleRecipes(dict[Hashable, RuleRecipe]):
    """The recipes of one rule by all that they follow from, and the types and attributes that its `check` let pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: dict[Hashable, list[Any]] = {}  # with what they name by identity


class Drafting:
    """What comes in for a match.

    drafts   that of the new operators, and that of their gradients; they write values of the graph
    writer   the operator that writes the first result
    values   of the match: its variables, incoming gradients, and behind `own` of these what is written
    """

    def __init__(
        self, replaced: Replacement, place: Rank, given: Mapping[str, VarNode | None], incoming: Gradients,
        outgoing: Gradients,
    ) -> None:  # fmt: skip
        self.replaced, self.given, self.incoming, self.outgoing = replaced, given, incoming, outgoing
        self.graph, match, old = replaced.graph, replaced.match, replaced.old
        g = Draft(self.graph, place, old[-1], replaced.pass_name)
        g.forward, g.replaced = old[0].forward, tuple(match.kept)
        g.training = bool(outgoing) or self.graph.awaits_gradients
        self.drafts = [g]
        self.writer: OpNode
        bound = [v for v in given.values() if v is not None]
        self.values = [*bound, *incoming.values(), *replaced.kept, *outgoing.values()]
        self.own = len(bound) + len(incoming)

    def emit(self, recipes: RuleRecipes | None, facts: Hashable) -> None:
        """Let the rule emit, or do again what it did for a match like this; `facts` are types and attributes of it."""
        key = self._key(facts) if recipes is not None else None
        if recipes is None or key is None:
            self._run()
        elif (known := recipes.get(key)) is not None:
            self._replay(known)
        else:
            self._run()
            if (made := self._recipe()) is not None:
                recipes[key] = made

    def _key(self, facts: Hashable) -> Hashable | None:
        """What the operators follow from, of one rule; None where values cannot be told by their places."""
        values, g = self.values, self.drafts[0]
        number = {v: i for i, v in enumerate(values)}
        flow = [number.get(v) for v in (*self.incoming, *self.outgoing)]
        if len(number) < len(values) or None in flow:
            return None
        return (
            facts, g.training, *[v is None for v in g.replaced], self.own, *flow, *[id(v.type) for v in values]
        )  # fmt: skip

    def _run(self) -> None:
        """Ask the rule, and the gradient rules of what it emits."""
        replaced, g = self.replaced, self.drafts[0]
        results = replaced.rule.rewrite(g, **self.given, **replaced.match.attrs)
        results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
        self._check_results(results, replaced.kept)
        contributions: list[VarNode] = []
        if self.outgoing:
            flowing = {r: self.incoming[k] for r, k in zip(results, replaced.kept, strict=True) if k in self.incoming}
            contributions = self._differentiate(self._backward(), g.emitted, flowing)
        _check_operands((v for draft in self.drafts for op in draft.emitted for v in op.input_vars), replaced.inside)
        writer = results[0].producer
        assert writer is not None
        self.writer = writer
        for draft in self.drafts:
            draft.let_write([*results, *contributions], self.values[self.own :])

    def _backward(self) -> Draft:
        """The draft of gradients: at the first grad operator where all gradients that come in are there."""
        replaced, graph = self.replaced, self.graph
        fits = (op for op in replaced.grads if not graph.order_problem(op.rank, self.incoming.values()))
        first = next(fits, replaced.grads[-1])
        self.drafts.append(Draft(graph, first.rank, first, replaced.pass_name))
        return self.drafts[-1]

    def _differentiate(self, g: Draft, emitted: Sequence[OpNode], incoming: Gradients) -> list[VarNode]:
        """The gradients that go out, by the new operators' gradient rules; incoming: {result: its gradient}."""
        outgoing = self.outgoing
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

    def _check_results(self, new: Sequence[VarNode], old: Sequence[VarNode]) -> None:
        refuse_unless(len({*new}) == len(old) == len(new), "{} values replace {}", len({*new}), len(old))
        for a, b in zip(new, old, strict=True):
            t, wanted, writer = a.type, b.type, a.producer
            if writer is None or writer in self.graph:
                raise Refused("{} would become {}, which is there already", b.name, a.name)
            if t is not wanted and t != wanted:  # usually they are the same
                refuse_unless(t.accepts(wanted) and wanted.accepts(t), f"{b} would become {t}")
            self._check_order(writer.rank, b)

    def _check_order(self, rank: Rank, v: VarNode) -> None:
        """`v` can be written at this place."""
        inside = self.replaced.inside
        for c in v.read_by:
            if c.rank <= rank and c not in inside:
                raise Refused(f"{v.name} is read earlier by {c.label()}")
        if v.previous_version is not None:
            for c in v.previous_version.users:
                if c.rank > rank:
                    raise Refused(f"{v.name} would be overwritten before {c.label()}")

    # what alike matches have in common

    def _recipe(self) -> RuleRecipe | None:
        """What `_run` did, in numbers of values; None where an operator reads others than those of the match."""
        values = [*self.values, *[v for draft in self.drafts for v in draft.created]]
        number = {v: i for i, v in enumerate(values)}
        ops = {op: i for i, op in enumerate(op for draft in self.drafts for op in draft.emitted)}
        if any(v not in number for op in ops for v in (*op.input_vars, *op.output_vars)):
            return None

        def places(slots: dict[str, list[VarNode]]) -> Places:
            return [(s, number[vs[0]] if len(vs) == 1 else [number[v] for v in vs]) for s, vs in slots.items()]

        drafts = [
            ([(v.name, v.type) for v in draft.created], [
                RecipeStep(op.opdef, places(op.inputs), places(op.outputs), op.attrs.copy(), op.grad_slot,
                     ops.get(op.forward) if op.forward is not None else None,
                     [i for v in op.input_vars if (i := number[v]) < self.own])
                for op in draft.emitted
            ])
            for draft in self.drafts
        ]  # fmt: skip
        writer_of = {v: i for op, i in ops.items() for v in op.output_vars}
        writers = [writer_of[v] for v in self.values[self.own :]]
        return RuleRecipe(drafts, writers, [v.type for v in self.values])

    def _replay(self, recipe: RuleRecipe) -> None:
        """Do what `_run` would do: the same operators with the values of this match."""
        made: list[OpNode] = []
        outer: list[VarNode] = []
        values, writers, inside = self.values.copy(), iter(recipe.writers), self.replaced.inside
        for number, (created, steps) in enumerate(recipe.drafts):
            draft = self._backward() if number else self.drafts[0]
            values += [draft.new_var(name, type) for name, type in created]
            for step in steps:
                inputs, outputs = _filled(step.inputs, values), _filled(step.outputs, values)
                if step.forward is not None:
                    draft.forward = made[step.forward]
                op = draft.node(step.opdef, inputs, outputs, step.attrs.copy())
                op.grad_slot = step.grad_slot
                read = [values[i] for i in step.outer]
                draft.check_place(op, read)
                outer += read
                self.graph.drafted(op)
                draft.emitted.append(op)
                made.append(op)
            for v in self.outgoing.values() if number else self.replaced.kept:
                self._check_order(made[next(writers)].rank, v)
        _check_operands(outer, inside)
        self.writer = made[recipe.writers[0]]


def _filled(places: Places, values: Sequence[VarNode]) -> dict[str, list[VarNode]]:
    """Slots with values in the place of their numbers."""
    return {
        slot: [values[own]] if own.__class__ is int else [values[i] for i in own]  # pyright: ignore
        for slot, own in places
    }


def _check_operands(values: Iterable[VarNode], gone: Collection[OpNode]) -> None:
    """New operators read nothing that goes: `h + h` is no product with a bias, though h may have its shape."""
    for v in values:
        if v.producer in gone:
            raise Refused(f"{v.name} would be an operand of what computes it")


def _kept(op: OpNode, grads: Gradients, name: str) -> Any:
    """The argument of a gradient rule called `name`: an input, an output or an output's gradient."""
    slots = op.opdef.slots
    if name in slots:
        values = list(op.inputs.get(name, ()) or op.outputs.get(name, ()))
        return values if slots[name].variadic else (values[0] if values else None)
    output = op.outputs.get(name.removesuffix("_grad"), [])
    grad = [grads.get(v) for v in output]
    refuse_unless(None not in grad or name in op.opdef.optional_grads, "{} gets no gradient {}", op.type, name)
    return grad[0] if len(grad) == 1 else (grad or None)
