"""diff: one operator per line, collapsed context, counts of what changed."""

from __future__ import annotations

import minigraph  # noqa: F401  (registers the operators)
from minigraph.ir.diff import diff
from minigraph.ir.text import parse

BEFORE = """\
program mlp
  data   x : f32[4,8]
  param  w : f32[8,3]
  param  b : f32[3]
  param  unused : f32[3]
forward
  a : f32[4,8] = gelu(X=x)
  c : f32[4,8] = gelu(X=a)
  d : f32[4,8] = gelu(X=c)
  t : f32[4,3] = matmul(X=d, Y=w)
  u : f32[4,3] = elementwise_add(X=t, Y=b)
  e : f32[4,8] = tanh(X=x)
  v : f32[4,3] = relu(X=u)
  f : f32[4,3] = tanh(X=v)
  g : f32[4,3] = tanh(X=f)
  h : f32[4,3] = tanh(X=g)
backward
  f@GRAD : f32[4,3] = tanh_grad(Out=g, Out_grad=h) for g
"""
AFTER = (
    BEFORE.replace("  t : f32[4,3] = matmul(X=d, Y=w)\n", "")
    .replace("  param  unused : f32[3]\n", "")
    .replace("u : f32[4,3] = elementwise_add(X=t, Y=b)", "u : f32[4,3] = matmul(X=d, Y=w)")
)
EXPECTED = """\
mlp: 11 operators before, 10 after
  elementwise_add 1 -> 0
- param unused : f32[3]
  ... 2 unchanged
forward
  d : f32[4,8] = gelu(X=c)
- t : f32[4,3] = matmul(X=d, Y=w)
- u : f32[4,3] = elementwise_add(X=t, Y=b)
+ u : f32[4,3] = matmul(X=d, Y=w)
  e : f32[4,8] = tanh(X=x)
  ... 5 unchanged"""


def test_a_rewrite_reads_like_a_patch():
    assert diff(parse(BEFORE), parse(AFTER)) == EXPECTED


def test_the_other_way_swaps_the_signs():
    text = diff(parse(AFTER), parse(BEFORE))
    assert "  elementwise_add 0 -> 1" in text
    assert "+ t : f32[4,3] = matmul(X=d, Y=w)" in text
    assert "- u : f32[4,3] = matmul(X=d, Y=w)" in text


def test_equal_programs_say_so():
    assert diff(parse(BEFORE), parse(BEFORE)) == "mlp: 11 operators before, 11 after\n  no operator changed"


def test_links_are_no_change_but_roles_and_attributes_are():
    assert "no operator changed" in diff(parse(BEFORE), parse(BEFORE.replace("for g", "for X of g")))
    text = diff(parse(BEFORE), parse(BEFORE.replace("gelu(X=c)", "gelu(X=c) {approximate=true}")))
    assert "- d : f32[4,8] = gelu(X=c)\n+ d : f32[4,8] = gelu(X=c) {approximate=true}" in text
    text = diff(parse(BEFORE), parse(BEFORE.replace("backward", "optimize")))
    assert "backward\n- f@GRAD" in text
    assert "optimize\n+ f@GRAD" in text


def test_new_operators_follow_what_they_replace():
    """Three fused layers: each new operator stands below its own old ones, not at the end."""
    old, new = ["program p", "  data x : f32[2,2]", "forward"], ["program p", "  data x : f32[2,2]", "forward"]
    last = "x"
    for i in range(3):
        old += [f"  t{i} : f32[2,2] = tanh(X={last})", f"  y{i} : f32[2,2] = relu(X=t{i})"]
        new += [f"  y{i} : f32[2,2] = gelu(X={last})"]
        last = f"y{i}"
    lines = diff(parse("\n".join(old)), parse("\n".join(new))).splitlines()
    assert [line[:4] for line in lines[3:]] == ["- t0", "- y0", "+ y0", "- t1", "- y1", "+ y1", "- t2", "- y2", "+ y2"]
    assert lines[1] == "  tanh 3 -> 0, relu 3 -> 0, gelu 0 -> 3"


def test_declarations_that_are_only_aligned_anew_are_no_change():
    longer = BEFORE.replace("unused", "a_much_longer_name")
    assert diff(parse(BEFORE), parse(longer)).splitlines()[1:3] == [
        "- param unused : f32[3]", "+ param a_much_longer_name : f32[3]",
    ]  # fmt: skip
