"""DOT: a bipartite drawing that a DOT reader accepts, whatever names hold."""

from __future__ import annotations

import re

import pytest

import minigraph  # noqa: F401  (registers the operators)
from minigraph.ir.dot import COLOURS, NEW_COLOUR, PARAMETER_COLOUR, to_dot
from minigraph.ir.text import parse

TEXT = """\
program mlp
  data   x : f32[4,8]
  param  w : f32[8,3]
forward
  t : f32[4,3] = matmul(X=x, Y=w)
  y : f32[4,3] = relu(X=t)
backward
  t@GRAD : f32[4,3] = relu_grad(Out=y, Out_grad=y) for y
optimize
  w : f32[8,3] = assign(X=w)
fetch y
"""
STRING = r'"(?:[^"\\]|\\.)*"'
ATTRIBUTES = rf"\[(?:[a-z]+=(?:{STRING}|[a-zA-Z0-9#]+)(?:, )?)*\]"
STATEMENT = re.compile(rf"  (?:graph|node|edge|v\d+|op\d+|v\d+ -> op\d+|op\d+ -> v\d+) {ATTRIBUTES};")


def statements(dot: str) -> list[str]:
    """The lines between the braces, each checked against DOT's grammar."""
    lines = dot.splitlines()
    assert re.fullmatch(rf"digraph {STRING} {{", lines[0])
    assert lines[-1] == "}"
    for line in lines[1:-1]:
        assert STATEMENT.fullmatch(line), line
    return lines[1:-1]


def nodes(dot: str) -> dict[str, str]:
    """label -> statement of the boxes and ellipses."""
    found = {}
    for line in statements(dot):
        if "shape=" in line:
            label = re.search(rf"label=({STRING})", line)
            assert label
            found[label[1]] = line
    return found


def edges(dot: str) -> list[tuple[str, str, str]]:
    """(from, to, slot) with labels instead of node numbers."""
    label = {line.split()[0]: text for text, line in nodes(dot).items()}
    found = [re.match(r"  (\S+) -> (\S+) \[label=(\S+)\]", line) for line in statements(dot)]
    return [(label[m[1]], label[m[2]], m[3].strip('"')) for m in found if m]


def test_operators_are_boxes_and_variables_ellipses():
    dot = to_dot(parse(TEXT))
    found = nodes(dot)
    assert "shape=box" in found['"matmul"']
    assert "shape=ellipse" in found[r'"x\nf32[4,8]"']
    assert PARAMETER_COLOUR in found[r'"w\nf32[8,3]"']
    assert PARAMETER_COLOUR not in found[r'"x\nf32[4,8]"']
    for op, role in [("matmul", "forward"), ("relu_grad", "backward"), ("assign", "optimize")]:
        assert f'fillcolor="{COLOURS[role]}"' in found[f'"{op}"']
    assert 'tooltip="<text>:5"' in found['"matmul"']
    assert sum("peripheries=2" in line for line in statements(dot)) == 1


def test_edges_carry_slots_and_updates_make_a_new_version():
    assert edges(to_dot(parse(TEXT))) == [
        (r'"x\nf32[4,8]"', '"matmul"', "X"), (r'"w\nf32[8,3]"', '"matmul"', "Y"),
        ('"matmul"', r'"t\nf32[4,3]"', "Out"), (r'"t\nf32[4,3]"', '"relu"', "X"), ('"relu"', r'"y\nf32[4,3]"', "Out"),
        (r'"y\nf32[4,3]"', '"relu_grad"', "Out"), (r'"y\nf32[4,3]"', '"relu_grad"', "Out_grad"),
        ('"relu_grad"', r'"t@GRAD\nf32[4,3]"', "X_grad"),
        (r'"w\nf32[8,3]"', '"assign"', "X"), ('"assign"', r'"w (updated)\nf32[8,3]"', "Out"),
    ]  # fmt: skip


def test_operators_that_the_program_before_lacks_are_highlighted():
    before, after = parse(TEXT), parse(TEXT.replace("relu(X=t)", "gelu(X=t)"))
    highlighted = [label for label, line in nodes(to_dot(after, before)).items() if NEW_COLOUR in line]
    assert highlighted == ['"gelu"']
    assert NEW_COLOUR not in to_dot(after)
    assert NEW_COLOUR not in to_dot(after, after)


@pytest.mark.parametrize("name", ['a"b', "a\\", "a\\n", '"];}', "\\N", "<b>x</b>", "x -> y", "é→", "{a|b}"])
def test_names_cannot_break_out(name):
    program = parse(TEXT)
    program.vars["x"].name = name
    program.name = name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    assert f'"{escaped}\\nf32[4,8]"' in nodes(to_dot(program))


def test_a_fetched_variable_without_operators_is_drawn():
    assert len(nodes(to_dot(parse("program p\n  var x : f32[2]\nfetch x")))) == 1
