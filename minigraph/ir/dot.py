"""A Program as a drawing in Graphviz' DOT language: `dot -Tsvg after.dot -o after.svg`."""

from __future__ import annotations

from minigraph.program import Operator, Program, Variable
from minigraph.program.text.dot_text import quoted
from minigraph.program.text.dump import dump_op

COLOURS = {"forward": "#ffffff", "backward": "#fdf0e2", "optimize": "#e8f3e8"}
NEW_COLOUR, PARAMETER_COLOUR = "#ffe08a", "#dddddd"


def to_dot(program: Program, before: Program | None = None) -> str:
    """Operators as boxes, variables as ellipses with their types, edges labelled by slot.

    before  the program before rewriting: operators that it does not have are highlighted
    A variable that is updated in place has one ellipse for each version, so no edge leads back.
    """
    old = {dump_op(op) for op in before.ops} if before is not None else None
    drawing = _Drawing()
    for v in program.vars.values():
        if v.is_data or v.persistable:
            drawing.version(v)
    for i, op in enumerate(program.ops):
        drawing.operator(i, op, old is not None and dump_op(op) not in old)
    for name in program.fetched:
        node = drawing.current.get(name) or drawing.version(program.vars[name])
        drawing.lines.append(f'  {node} [peripheries=2, tooltip="fetched"];')
    return "\n".join([
        f"digraph {quoted(program.name)} {{",
        '  graph [rankdir=TB, fontname="Helvetica"];',
        '  node [fontname="Helvetica", fontsize=10, style=filled, fillcolor=white];',
        '  edge [fontname="Helvetica", fontsize=8, color="#666666"];',
        *drawing.lines,
        "}",
        "",
    ])  # fmt: skip


class _Drawing:
    """The statements so far, and the node that stands for each variable's present value."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.current: dict[str, str] = {}
        self.number = 0

    def version(self, v: Variable) -> str:
        """A new ellipse for `v`."""
        updated = " (updated)" if v.name in self.current else ""
        node = self.current[v.name] = f"v{self.number}"
        self.number += 1
        fill = f', fillcolor="{PARAMETER_COLOUR}"' if v.persistable else ""
        self.lines.append(f"  {node} [shape=ellipse, label={quoted(f'{v.name}{updated}', str(v.type))}{fill}];")
        return node

    def operator(self, index: int, op: Operator, is_new: bool) -> None:
        """A box, and edges from what it reads and to what it writes."""
        fill = NEW_COLOUR if is_new else COLOURS[op.role]
        site = f", tooltip={quoted(str(op.site))}" if op.site else ""
        bold = ", penwidth=2" if is_new else ""
        self.lines.append(f'  op{index} [shape=box, label={quoted(op.type)}, fillcolor="{fill}"{bold}{site}];')
        for slot, vs in op.inputs.items():
            for v in vs:
                node = self.current.get(v.name) or self.version(v)
                self.lines.append(f"  {node} -> op{index} [label={quoted(slot)}];")
        for slot, vs in op.outputs.items():
            for v in vs:
                self.lines.append(f"  op{index} -> {self.version(v)} [label={quoted(slot)}];")
