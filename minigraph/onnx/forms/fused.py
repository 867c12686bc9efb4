"""Fused operators: their bodies, member by member, after opdef/body.py."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.opdef.body import output_names, parse_body

from ..nodes import Nodes, Value
from ..operators import write_member
from ..registry import form


@form
def fused_elementwise(g: Nodes, X: Sequence[Value], Like: Sequence[Value] = (), *, body: tuple[str, ...]) -> list[Value]:
    members = parse_body(tuple(body))
    env = {f"x{i}": x for i, x in enumerate(X)} | {f"s{i}": s for i, s in enumerate(Like)}
    for m in members:
        inputs = {slot: [env[name] for name in names] for slot, names in m.inputs.items()}
        results = write_member(g, m.opdef, inputs, m.attrs, frozenset(m.outputs))
        for slot, names in m.outputs.items():
            env.update(zip(names, results[slot], strict=True))
    return [env[name] for name in output_names(members)]
