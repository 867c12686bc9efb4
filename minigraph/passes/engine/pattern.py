"""Patterns: a rule's left-hand side, written like the code that builds it, matched from its last operator.

    def pattern(self, p, X, Y, Bias, *, trans_y):
        return p.elementwise_add(p.matmul(X, Y, trans_y=trans_y), Bias)

Positional parameters stand for variables, keyword-only ones for attributes. An attribute that is
not mentioned must have its default value, a literal one must be equal. The function returns the
values that survive the rewrite. Matching starts at the producer of the first of them, the anchor,
and walks along producers only, so every operator of a pattern must lead to its anchor. It is linear
in the number of operators: each anchor looks at a few neighbours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import OpDef, get_op
from minigraph.types import same

from .log import Reason


class PatternVar:
    """A variable of the pattern: an input of the rule, or the output `slot` of a pattern operator."""

    def __init__(self, name: str, op: PatternOp | None = None) -> None:
        self.name, self.op = name, op


class AttrVar:
    """An attribute that the pattern binds."""

    def __init__(self, name: str) -> None:
        self.name = name


class PatternOp:
    """An operator of the pattern.

    attrs  (name, the value that is wanted, "") of all its attributes, or (name, None, the variable that it binds)
    """

    def __init__(self, opdef: OpDef, inputs: dict[str, PatternVar], attrs: dict[str, Any]) -> None:
        self.opdef, self.inputs = opdef, inputs
        wanted = [(name, attrs.get(name, attr.default)) for name, attr in opdef.attrs.items()]
        self.attrs = [(n, None, v.name) if isinstance(v, AttrVar) else (n, v, "") for n, v in wanted]
        self.outputs = {s: PatternVar(s, self) for s in opdef.output_names}

    def __getattr__(self, slot: str) -> PatternVar:
        if slot not in self.__dict__.get("outputs", {}):
            raise AttributeError(slot)
        return self.outputs[slot]


Order = dict[PatternOp, dict[str, PatternVar]]  # inputs of operators whose operands have changed places


class Match:
    """A match of a pattern: variables and attributes by name, and the operators in pattern order."""

    def __init__(self) -> None:
        self.ops: dict[PatternOp, OpNode] = {}
        self.bound: dict[PatternVar, VarNode | None] = {}
        self.attrs: dict[str, Any] = {}
        self.kept: list[VarNode | None] = []

    @property
    def variables(self) -> dict[str, VarNode | None]:
        """The rule's positional parameters and the variables that they stand for."""
        return {v.name: node for v, node in self.bound.items() if v.op is None}


class Mismatch(Reason):
    """Why a pattern does not match here."""


class PatternBuilder:
    """`p.<op type>(inputs, attr=...)` inside a rule's pattern function."""

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return partial(self._op, op_type)

    def _op(self, op_type: str, *args: Any, **kwargs: Any) -> Any:
        opdef = get_op(op_type)
        bound = opdef.bind_inputs(args, kwargs)
        inputs = {slot: _variable(vs[0]) for slot, vs in bound.items()}
        unknown = kwargs.keys() - opdef.attrs.keys()
        assert not unknown, f"pattern: {op_type} has no attributes {unknown}"
        op = PatternOp(opdef, inputs, kwargs)
        return op if len(opdef.outputs) > 1 else op.outputs[opdef.output_names[0]]


class Pattern:
    """A compiled pattern function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        variables, attrs = [], {}
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            if parameter.kind == parameter.KEYWORD_ONLY:
                attrs[parameter.name] = AttrVar(parameter.name)
            else:
                variables.append(PatternVar(parameter.name))
        kept = function(PatternBuilder(), *variables, **attrs)
        self.kept: tuple[PatternVar, ...] = kept if isinstance(kept, tuple) else (kept,)
        root = self.kept[0].op
        assert root is not None, "a pattern returns what its operators compute"
        self.root: PatternOp = root
        self.ops = list(_ops(root))
        self.orders = list(_operand_orders(self.ops))

    @property
    def root_type(self) -> str:
        return self.root.opdef.type

    def most_in(self, graph: Graph) -> int | None:
        """How many operators match at most anywhere, where the graph lacks a type that the pattern needs; else None."""
        if all(graph.has(op.opdef.type) for op in self.ops):
            return None
        return max(len(_met(self.root, order, graph, {})[0]) for order in self.orders)

    def match(self, anchor: OpNode) -> tuple[Iterable[Match], int, Mismatch | None]:
        """(matches, most operators matched, why not more) with the pattern's last operator at `anchor`.

        There is one match for each order of commutative operands that fits; those after the first are looked for when
        they are asked for. Where none fits the matches are an empty list.
        """
        most, reason = 0, None
        for number, order in enumerate(self.orders):
            match = Match()
            why = self._match_op(self.root, anchor, match, order)
            if why is None:
                match.kept = [match.bound.get(v) for v in self.kept]
                return self._from(match, anchor, number + 1), 0, None
            if len(match.ops) > most:
                most, reason = len(match.ops), why
        return [], most, reason

    def _from(self, first: Match, anchor: OpNode, number: int) -> Iterator[Match]:
        """A match and those in the orders from `number` on."""
        yield first
        for order in self.orders[number:]:
            match = Match()
            if self._match_op(self.root, anchor, match, order) is None:
                match.kept = [match.bound.get(v) for v in self.kept]
                yield match

    def _match_op(self, pattern: PatternOp, op: OpNode, match: Match, order: Order) -> Mismatch | None:
        """Match an operator and what leads to it; says why it does not fit."""
        if op.opdef is not pattern.opdef:
            return Mismatch("{} is not a {}", op, pattern.opdef.type)
        if pattern in match.ops:
            return None if match.ops[pattern] is op else Mismatch("{} is not the operator matched before", op)
        match.ops[pattern] = op
        for name, wanted, variable in pattern.attrs:
            value = op.attrs[name]
            if variable:
                known = match.attrs.setdefault(variable, value)
                if known is not value and not same(known, value):
                    return Mismatch("{} has {}={}, not {}", op, name, value, known)
            elif wanted is not value and not same(wanted, value):
                return Mismatch("{} has {}={}, wanted {}", op, name, value, wanted)
        bound, given = match.bound, op.outputs
        for slot, v in pattern.outputs.items():
            node = given[slot][0] if given.get(slot) else None
            if bound.setdefault(v, node) is not node:
                return Mismatch("{} writes another variable than matched before", op)
        given = op.inputs
        if not given.keys() <= pattern.inputs.keys():
            return Mismatch("{} has an input {}", op, next(s for s in given if s not in pattern.inputs))
        for slot, v in order.get(pattern, pattern.inputs).items():
            nodes = given.get(slot)
            if nodes is None or len(nodes) != 1:
                return Mismatch("{} has no single input {}", op, slot)
            node = nodes[0]
            if bound.setdefault(v, node) is not node:
                return Mismatch("{} is not the variable that was matched as {}", node.name, v.name)
            if v.op is None:
                continue
            if (producer := node.producer) is None:
                return Mismatch("{} is not computed by a {}", node.name, v.op.opdef.type)
            if (why := self._match_op(v.op, producer, match, order)) is not None:
                return why
        return None


def _variable(value: Any) -> PatternVar:
    assert isinstance(value, PatternVar), f"a pattern's operand is a pattern variable, not {value!r}"
    return value


def _operand_orders(ops: Iterable[PatternOp]) -> Iterator[Order]:
    """The commutative operators whose X and Y are swapped: all combinations, as written first."""
    commutative = [op for op in ops if "commutative" in op.opdef.traits]
    for bits in range(2 ** len(commutative)):
        yield {op: _swapped(op) for i, op in enumerate(commutative) if bits >> i & 1}


def _ops(op: PatternOp) -> Iterator[PatternOp]:
    seen, stack = set(), [op]
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            yield op
            stack.extend(v.op for v in op.inputs.values() if v.op is not None)


def _met(op: PatternOp, order: Order, graph: Graph, met: dict[PatternOp, None]) -> tuple[dict[PatternOp, None], bool]:
    """(operators of the pattern that matching meets in this order, whether the graph has the types of all)."""
    if op in met:
        return met, True
    if not graph.has(op.opdef.type):
        return met, False
    met[op] = None
    for v in order.get(op, op.inputs).values():
        if v.op is not None and not _met(v.op, order, graph, met)[1]:
            return met, False
    return met, True


def _swapped(pattern: PatternOp) -> dict[str, PatternVar]:
    return {**pattern.inputs, "X": pattern.inputs["Y"], "Y": pattern.inputs["X"]}
