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

from collections.abc import Callable
from functools import cached_property
from typing import Any

from minigraph.ir.graph import Graph

from .drafting import RuleRecipes
from .emission import GraphBuilder, Refused, refuse_unless
from .log import PassReport
from .pattern import Pattern
from .replacement import Replacement

__all__ = ["GraphBuilder", "Refused", "Rule", "apply_rule", "refuse_unless"]


class Rule:
    """One equation. Subclasses define pattern, rewrite and, where it needs conditions, check.

    by_types  whether check and rewrite look at nothing but types and attributes of what they are given, and at what
              `g` tells: then the engine asks them once for all matches that are alike
    """

    by_types = False
    pattern: Callable[..., Any]

    def check(self, *args: Any, **bound: Any) -> None:
        """Refuse (`refuse_unless(fact, "why")`) where the equation does not hold."""

    def rewrite(self, g: GraphBuilder, *args: Any, **bound: Any) -> Any:
        """Emit the replacement through `g`; return the new values in the order of the pattern's."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__name__

    @cached_property
    def equation(self) -> str:
        """The first line of the class's docstring; "" where it has none of its own."""
        return (type(self).__dict__.get("__doc__") or "").strip().partition("\n")[0]

    @cached_property
    def compiled(self) -> Pattern:
        return Pattern(self.pattern)


def apply_rule(graph: Graph, rule: Rule, report: PassReport) -> int:
    """Apply `rule` wherever it matches and holds; returns how often it did."""
    applied, recipes = 0, RuleRecipes() if rule.by_types else None
    pattern = rule.compiled
    most = pattern.most_in(graph) if isinstance(pattern, Pattern) else None
    for anchor in graph.ops_of([pattern.root_type]):
        if anchor not in graph.nodes:
            continue
        if most is not None and report.miss is not None and report.miss.matched >= most:
            break  # nothing matches, and none of the others is a nearer miss
        matches, matched, why = pattern.match(anchor)
        if not matches:
            report.missed(rule.name, matched, why, anchor.site)
            continue
        refusals = []
        for match in matches:
            try:
                report.apply(Replacement(graph, rule, match, report.name, recipes).run())
                applied += 1
                break
            except Refused as no:
                refusals.append(str(no))
        else:
            report.refuse(rule.name, anchor.label(), refusals[0], anchor.site)
    return applied
