"""Fused operators and operators on lists: their bodies, member by member, after opdef/body.py."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.opdef.body import output_names, parse_body

from ..nodes import Nodes, Term
from ..operators import write_member
from ..registry import form
from .reductions import p_norm, squared_l2_norm


def body_results(g: Nodes, body: Sequence[str], env: dict[str, Term]) -> list[Term]:
    """y0, y1, ... of a body for these x0, x1, ..."""
    members = parse_body(tuple(body))
    for m in members:
        inputs = {slot: [env[name] for name in names] for slot, names in m.inputs.items()}
        results = write_member(g, m.opdef, inputs, m.attrs, frozenset(m.outputs))
        for slot, names in m.outputs.items():
            env.update(zip(names, results[slot], strict=True))
    return [env[name] for name in output_names(members)]


@form
def fused_elementwise(
    g: Nodes, X: Sequence[Term], Like: Sequence[Term] = (), *, body: tuple[str, ...]
) -> list[Term]:
    return body_results(g, body, {f"x{i}": x for i, x in enumerate(X)} | {f"s{i}": s for i, s in enumerate(Like)})


@form
def foreach_elementwise(
    g: Nodes, X: Sequence[Term], Shared: Sequence[Term] = (), *, body: tuple[str, ...], count: int
) -> list[Term]:
    rows = [
        body_results(g, body, {f"x{j}": x for j, x in enumerate([*X[i::count], *Shared])}) for i in range(count)
    ]
    return [value for column in zip(*rows, strict=True) for value in column]


@form
def foreach_p_norm(g: Nodes, X: Sequence[Term], *, porder: float) -> list[Term]:
    return [p_norm(g, x, porder=porder) for x in X]


@form
def foreach_squared_l2_norm(g: Nodes, X: Sequence[Term]) -> Term:
    total = squared_l2_norm(g, X[0])
    for x in X[1:]:
        total = total + squared_l2_norm(g, x)
    return total
