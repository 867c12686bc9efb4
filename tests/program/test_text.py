"""The text form: parse(dump(p)) equals p, and text that is wrong is refused with its line."""

from __future__ import annotations

import random
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigraph
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.ir.tokens import TextError
from minigraph.opdef import OPS, DTypeAttr, Floats, Ints, Number, Numbers, op
from minigraph.program import Program, name_scope, program_guard
from minigraph.program.backward import append_backward
from minigraph.program.builder import Builder
from tests.support.grades import graded

MLP = """\
program mlp seed 7
  data   x : f32[-1,8]
  param  w : f32[8,3] {learning_rate=0.5, need_clip=false}
  param  b : f32[3] frozen
  state  n : i64[1]
  var    t : f32[-1,3] frozen
forward
  t   : f32[-1,3] = matmul(X=x, Y=w)
  u   : f32[-1,3] = elementwise_add(X=t, Y=b) in net/
  out : f32[-1,3] = relu(X=u) in net/
backward
  u@GRAD : f32[-1,3] = relu_grad(Out=out, Out_grad=out) for out
  v      : f32[-1,3] = elementwise_add(X=t, Y=b) for X of u
optimize
  increment(X=w)
  w : f32[8,3] = assign(X=w)
  z : f32[8,3] = assign(X=w) for w#1
fetch out
fetch u"""


def assert_round_trip(program: Program) -> str:
    text = program.to_string()
    back = parse(text)
    assert first_difference(program, back) is None
    assert back.to_string() == text
    return text


def test_a_text_that_uses_everything_comes_back_as_it_is():
    program = parse(MLP)
    assert program.to_string() == MLP
    assert first_difference(program, parse(MLP)) is None
    w, t = program.vars["w"], program.vars["t"]
    assert (w.optimize_attr, w.need_clip, w.trainable) == ({"learning_rate": 0.5}, False, True)
    assert t.stop_gradient
    assert not program.vars["u"].stop_gradient
    assert program.random_seed == 7
    assert program.fetched == ("out", "u")
    assert program.ops[4].forward is program.ops[1]
    assert program.ops[4].grad_slot == "X"
    assert program.ops[7].forward is program.ops[6]
    assert program.ops[1].scope_name == "net/"
    assert program.ops[5].outputs == {"Out": [w]}
    assert str(parse(MLP, "mlp.txt").ops[0].site) == "mlp.txt:8"


def test_comments_blank_lines_spaces_and_carriage_returns_do_not_matter():
    lines = MLP.splitlines()
    loose = "\r\n".join(f"\t{line}   # a comment: {{[" for line in lines)
    loose = loose.replace("fetch out", "\n# only a comment\n\nfetch   out")
    assert parse(loose).to_string() == MLP
    detailed = parse(MLP).to_string(with_details=True)
    assert "# <text>:8" in detailed
    assert parse(detailed).to_string() == MLP


@pytest.mark.parametrize("op_type", sorted(OPS))
def test_each_operator_with_its_samples(op_type, rng):
    opdef = OPS[op_type]
    if opdef.samples_function is None:
        pytest.skip(f"{op_type} has no samples")
    for arrays, attrs in opdef.samples_function(rng):
        program = Program("sample")
        block = program.global_block()

        def data(array, block=block):
            if array is None:
                return None
            if isinstance(array, (list, tuple)):
                return [data(a) for a in array]
            array = np.asarray(array)
            return block.create_var(shape=array.shape, dtype=array.dtype, is_data=True, stop_gradient=True)

        inputs = [data(a) for a in arrays]
        Builder(block).emit(op_type, *inputs, needs=opdef.output_names, **attrs)
        assert_round_trip(program)


NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1, max_size=12).filter(str.isprintable)


@given(st.lists(NAMES, min_size=3, max_size=3, unique=True))
@settings(max_examples=100, deadline=None)
def test_any_name_survives(names):
    program = Program(names[0])
    block = program.global_block()
    x = block.create_var(names[1], (2,), "float32", is_data=True, stop_gradient=True)
    y = block.create_var(names[2], (2,), "float32")
    with program_guard(program), name_scope(names[0]):
        block.append_op("relu", {"X": x}, {"Out": y})
    program.fetched = (names[2],)
    assert_round_trip(program)


@pytest.fixture(scope="module")
def attribute_op():
    """An operator with an attribute of every kind; it is gone after this module."""

    def every_kind(X, *, i: int = 0, f: float = 0.0, b: bool = False, s: str = "", n: Number = 0,
                   ii: Ints = (), ff: Floats = (), nn: Numbers = (), d: DTypeAttr | None = None):  # fmt: skip
        """X"""
        return X

    yield op("Out")(every_kind)
    del OPS["every_kind"]


NUMBERS = st.one_of(st.booleans(), st.integers(-(2**70), 2**70), st.floats())


@given(
    i=st.integers(-(2**63), 2**63), f=st.floats(), b=st.booleans(), s=st.text(max_size=20), n=NUMBERS,
    ii=st.lists(st.integers(), max_size=3), ff=st.lists(st.floats(), max_size=3), nn=st.lists(NUMBERS, max_size=3),
    d=st.sampled_from([None, "float32", "bfloat16", "int8", "bool"]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_any_attribute_survives(attribute_op, **attrs):
    program = Program("attributes")
    x = program.global_block().create_var("x", (2,), "float32", is_data=True, stop_gradient=True)
    Builder(program.global_block()).every_kind(x, **attrs)
    assert_round_trip(program)


def test_a_value_that_only_looks_like_the_default_shows(attribute_op):
    program = Program("attributes")
    x = program.global_block().create_var("x", (2,), "float32", is_data=True, stop_gradient=True)
    Builder(program.global_block()).every_kind(x, n=False, f=-0.0, nn=(True, 1, 1.0))
    assert "{f=-0.0, n=false, nn=[true, 1, 1.0]}" in assert_round_trip(program)


def random_program(seed: int) -> Program:
    """Operators on operands drawn at random, some frozen, fetched or updated in place, then the gradient."""
    r = random.Random(seed)
    program = Program(f"random {seed}")
    program.random_seed = r.choice([0, r.randrange(1, 1 << 62)])
    block = program.global_block()
    g = Builder(block)
    kind = r.choice(["float32", "float64"])
    x = block.create_var("x", (r.choice([-1, 4]), 4), kind, is_data=True, stop_gradient=r.random() < 0.8)
    live = [x]
    for i in range(r.randint(1, 4)):
        name = f"w{i}" + r.choice(["", ".b", " b", "#1", "="])
        trainable, clip = i == 0 or r.random() < 0.7, r.random() < 0.8
        live.append(block.create_parameter(name, (4, 4), kind, trainable=trainable, need_clip=clip,
                                           learning_rate=r.choice([1.0, 0.1])))  # fmt: skip
    state = block.create_var("steps", (1,), kind, persistable=True, stop_gradient=r.random() < 0.8)
    for _ in range(r.randint(1, 12)):
        a, b = r.choice(live), r.choice(live)
        with program_guard(program), name_scope(r.choice(["a", "b c"])):
            form = r.randrange(6)
            if form == 0:
                new = g.matmul(a, b, trans_y=r.random() < 0.5)
            elif form == 1:
                new = g.elementwise_add(a, b)
            elif form == 2:
                new = r.choice([g.relu, g.tanh if "tanh" in OPS else g.relu])(a)
            elif form == 3:
                new = g.gelu(a, approximate=r.random() < 0.5)
            elif form == 4:
                new = g.sum([a, a])
            else:
                new = g.fill_any_like(a, value=r.choice([0.0, 1.5, float("inf"), float("nan"), 3]))
        new.stop_gradient = new.stop_gradient or r.random() < 0.1
        live.append(new)
    g.increment(state, out={"Out": state})
    total = g.reduce_sum(g.sum([g.reduce_sum(v) for v in live]))
    if any(p.trainable for p in program.all_parameters()):
        append_backward(total)
    with program.emitting("optimize"):
        for p in program.all_parameters():
            g.assign(p, out={"Out": p})
            g.increment(p, out={"Out": p})
    program.fetched = tuple(v.name for v in r.sample(live, r.randrange(3)))
    return program


@pytest.mark.parametrize("block", graded(range(10), now=lambda block: block < 3))
def test_random_programs(block):
    for seed in range(30 * block, 30 * block + 30):
        program = random_program(seed)
        assert_round_trip(program)
        assert_round_trip(program.clone(for_test=True))


def test_random_operators_keep_their_numbers():
    @op("Out", traits={"random"})
    def draw(X, *, rng=None):
        """X"""
        return X

    try:
        program = Program("draws")
        x = program.global_block().create_var("x", (2,), "float32", is_data=True, stop_gradient=True)
        g = Builder(program.global_block())
        g.relu(g.relu(x))
        y = g.draw(x, name="y")
        g.draw(y, name="z")
        program.ops.pop(0)
        text = assert_round_trip(program)
        assert "draw(X=x) number 2" in text
        again = parse(text)
        assert [o.number for o in again.ops[1:]] == [2, 3]
        Builder(again.global_block()).relu(again.vars["x"])
        assert again.ops[-1].number == 4
    finally:
        del OPS["draw"]


def test_a_long_chain_comes_back():
    program = Program("chain")
    g = Builder(program.global_block())
    x = program.global_block().create_var("x", (2,), "float32", is_data=True, stop_gradient=True)
    for _ in range(5000):
        x = g.relu(x)
    assert_round_trip(program)


ERRORS = [
    ("", "line 1: expected `program <name>`, found the end of the line"),
    ("relu", "expected `program <name>`, found 'relu'"),
    ("program p q", "expected the end of the line, found 'q'"),
    ("program p\n  y : f32[2] = relu(X=x)", "line 2: expected a declaration or one of forward, backward, optimize"),
    ("program p\n  data x f32[2]", "line 2: expected ':', found 'f32'"),
    ("program p\n  data x : float[2]", "expected a type such as f32[4,8], found 'float'"),
    ("program p\n  data x : f32[2", "expected ']', found the end of the line"),
    ("program p\n  data x : f32[-2]", "size -2 is negative"),
    ("program p\n  data x : f32[a]", "expected a size, found 'a'"),
    ("program p\n  data x : f32[99999999999,99999999999]", "more than 2^63 elements"),
    (f"program p\n  data x : f32[{','.join('1' * 65)}]", "at most 64 axes"),
    ("program p\n  data x : f32[2]\n  data x : f32[2]", "line 3: variable x exists already"),
    ("program p\n  param x : f32[2] {lr=2}", "attribute of a parameter 'lr' does not exist"),
    ("program p\n  param x : f32[2] {need_clip=2}", "learning_rate is a number, need_clip is true or false"),
    ("program p\n  data x : f32[2] live frozen", "expected the end of the line, found 'frozen'"),
    ("program p\nfetch y", "variable 'y' does not exist"),
    ("program p\n  'x", "\"'\" has no meaning here"),
    ('program "p', "this string does not end"),
    ('program "\\q"', "a string is written as in JSON"),
    (f"program p\n  data {'x' * 300} : f32[2]", "cannot be a name"),
]

BASE = "program p\n  data x : f32[4,8]\n  param w : f32[8,3]\nforward\n"
OPERATOR_ERRORS = [
    ("y : f32[4,3] = matmull(X=x, Y=w)", "operator type 'matmull' does not exist", "did you mean 'matmul'?"),
    ("y : f32[4,3] = matmul(X=x, Z=w)", "input slot of matmul 'Z' does not exist", "known: X, Y"),
    ("y : f32[4,3] = matmul(X=x, X=w)", "slot 'X' is given twice", None),
    ("y : f32[4,3] = matmul(X=x)", "input Y is missing", None),
    ("y : f32[4,3] = matmul(X=x, Y=v)", "variable 'v' does not exist", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) {transy=true}", "attribute of matmul 'transy' does not exist", "'trans_y'?"),
    ("y : f32[4,3] = matmul(X=x, Y=w) {trans_y=2}", "attribute trans_y must be a bool", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) {trans_y=yes}", "expected a value, found 'yes'", "in double quotes"),
    ("y : f32[4,3] = matmul(X=x, Y=w) {trans_y=[[true]]}", "expected a value, found '['", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) {trans_y=true", "expected '}', found the end of the line", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) {trans_y=true, trans_y=true}", "attribute 'trans_y' is given twice", None),
    ("y : f32[4,3] = matmul(X=[x, x], Y=w)", "input X takes one variable", None),
    ("y : f32[4,4] = matmul(X=x, Y=w)", "output Out is f32[4,3], variable y: f32[4,4] does not fit", None),
    ("y : f32[4,3] = matmul(X=w, Y=w)", "inner sizes differ: X axis -1 is 3, Y axis -2 is 8", None),
    ("w : f32[4,3] = matmul(X=x, Y=w)", "'w' is f32[4,3] here, it was f32[8,3] before", None),
    ("y : f32[4,3], f32[4,3] = matmul(X=x, Y=w)", "1 outputs, but 2 types", None),
    ("y, z : f32[4,3], f32[4,3] = matmul(X=x, Y=w)", "matmul has Out as outputs, here are 2", "Out=..."),
    ("out=y : f32[4,3] = matmul(X=x, Y=w)", "output slot of matmul 'out' does not exist", "did you mean 'Out'?"),
    ("matmul(X=x, Y=w)", "output Out is missing", None),
    ("relu(X=x)", "output Out is missing", None),
    ("y : f32[4,3] matmul(X=x, Y=w)", "expected '=', found 'matmul'", None),
    ("y = matmul(X=x, Y=w)", "expected", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) for x", "output of an operator before this line 'x' does not exist", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) number x", "expected a number, found 'x'", None),
    ("y : f32[4,3] = matmul(X=x, Y=w) twice", "expected the end of the line, found 'twice'", None),
    ("y : f32[4,3] = __import__(X=x, Y=w)", "operator type '__import__' does not exist", None),
]


@pytest.mark.parametrize(("text", "fact"), ERRORS)
def test_wrong_text_is_refused(text, fact):
    with pytest.raises(TextError) as caught:
        parse(text)
    assert fact in str(caught.value)


@pytest.mark.parametrize(("line", "fact", "hint"), OPERATOR_ERRORS)
def test_wrong_operators_are_refused_with_their_line(line, fact, hint):
    with pytest.raises(TextError) as caught:
        parse(f"{BASE}  {line}\n")
    message = str(caught.value)
    assert f"line 5: {fact}" in message
    assert line in message
    assert hint is None or hint in (caught.value.hint or "")


def test_the_caret_stands_below_the_wrong_word():
    with pytest.raises(TextError) as caught:
        parse(f"{BASE}  y : f32[4,3] = matmul(X=x, Y=w) {{transy=true}}")
    _, source, caret = str(caught.value).splitlines()[:3]
    assert source[caret.index("^") :].startswith("transy")
    long = f"{BASE}  y : f32[4,3] = sum(X=[{', '.join(['x'] * 1000)}, oops])"
    with pytest.raises(TextError) as caught:
        parse(long)
    _, source, caret = str(caught.value).splitlines()[:3]
    assert source[caret.index("^") :].startswith("oops")
    assert len(source) < 120


def test_links_must_name_an_operator_before():
    base = f"{BASE}  w : f32[8,3] = assign(X=w)\n  w : f32[8,3] = assign(X=w)\n"
    assert parse(f"{base}  y : f32[8,3] = assign(X=w) for w#1").ops[2].forward.outputs["Out"][0].name == "w"
    for link, fact in [("w", "2 operators write 'w'"), ("w#2", "2 operators before this line write 'w'"),
                       ("Y of w#0", "input slot of assign 'Y' does not exist")]:  # fmt: skip
        with pytest.raises(TextError, match=fact):
            parse(f"{base}  y : f32[8,3] = assign(X=w) for {link}")


@given(st.integers(0, 10**9), st.text(string.printable, max_size=3), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_damaged_text_is_read_or_refused_but_nothing_else(position, inserted, removed):
    at = position % len(MLP)
    damaged = MLP[:at] + inserted + MLP[at + removed :]
    try:
        program = parse(damaged)
    except TextError:
        return
    assert_round_trip(program)


def test_text_has_a_limit(monkeypatch):
    monkeypatch.setattr("minigraph.ir.text.LONGEST_TEXT", 100)
    with pytest.raises(minigraph.errors.ProgramError, match="at most 100 characters"):
        parse(MLP)


CHANGES = [
    ("program mlp", "program other", "name: mlp and other"),
    ("seed 7", "seed 8", "seed: 7 and 8"),
    ("fetch u", "fetch out", "fetch targets"),
    ("b : f32[3] frozen", "b : f32[3]", "variable b"),
    ("learning_rate=0.5", "learning_rate=0.25", "variable w"),
    ("need_clip=false", "need_clip=true", "variable w"),
    ("state  n", "data   n", "variable n"),
    ("  data   x : f32[-1,8]\n  param  w : f32[8,3] {learning_rate=0.5, need_clip=false}",
     "  param  w : f32[8,3] {learning_rate=0.5, need_clip=false}\n  data   x : f32[-1,8]", "order of declarations"),
    ("relu(X=u)", "gelu(X=u)", "operator 2, relu: type"),
    ("relu(X=u)", "relu(X=t)", "operator 2, relu: inputs"),
    ("relu(X=u) in net/", "relu(X=u)", "operator 2, relu: name scope"),
    ("backward", "forward", "operator 3, relu_grad: role"),
    ("for out", "for u", "operator 3, relu_grad: forward operator"),
    ("for X of u", "for Y of u", "operator 4, elementwise_add: gradient of slot"),
    ("for w#1", "for w#0", "operator 7, assign: forward operator"),
    ("elementwise_add(X=t, Y=b) in", "elementwise_add(X=t, Y=b) {axis=1} in",
     "operator 1, elementwise_add: attributes"),
    ("  z : f32[8,3] = assign(X=w) for w#1\n", "", "variables: only one has ['z']"),
    ("fetch out", "fetch out\nfetch out", "fetch targets"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
def test_first_difference_sees_each_fact(old, new, expected):
    assert MLP.count(old) >= 1
    found = first_difference(parse(MLP), parse(MLP.replace(old, new, 1)))
    assert found is not None
    assert found.startswith(expected)
