"""The table of passes: its order and conflicts, every ordered pair of flags, BuildStrategy.all()."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.compiler import strategy
from minigraph.compiler.fields import UnknownField
from minigraph.compiler.strategy import PASSES, RUN_FLAGS, BuildStrategy, PassRow
from minigraph.errors import AttrError, CallSite
from minigraph.ir.text import parse
from minigraph.passes.engine.log import Applied, PassReport
from tests.fuzz import FLAGS, ORDERED, check, passed
from tests.support.grades import graded
from tests.support.random_programs import Case, known_program

PROGRAMS, POOL = 3, 300  # for each ordered pair; the next pair takes the next ones, of so many; `make fuzz` has more


def test_every_row_is_a_documented_flag_that_is_off():
    assert len(set(FLAGS)) == len(FLAGS) and not set(FLAGS) & RUN_FLAGS.keys()
    for flag in FLAGS:
        assert getattr(BuildStrategy(), flag) is False
        assert f"    {flag} " in (BuildStrategy.__doc__ or "")


def test_the_order_of_the_table_is_the_one_it_asks_for():
    """A constraint names a row further up, so there is no cycle; each has a reason."""
    for position, step in enumerate(PASSES):
        assert step.after.keys() <= set(FLAGS[:position]), step.flag
        assert all(len(why.split()) >= 4 for why in (*step.after.values(), *step.conflicts.values()))
        assert all(hasattr(BuildStrategy(), other) for other in step.conflicts)


def one_order(first: str, second: str) -> bool:
    """True of one of the two orders of a pair: the table's for every other pair."""
    places = FLAGS.index(first), FLAGS.index(second)
    return (places[0] < places[1]) == (sum(places) % 2 == 0)


@pytest.mark.parametrize(
    ("first", "second", "program"),
    graded(
        ((*pair, program) for pair in ORDERED for program in range(PROGRAMS)),
        now=lambda first, second, program: program == 0 and one_order(first, second),
    ),
)
def test_every_ordered_pair_changes_no_result(first, second, program):
    """In the other order too, which the table does not use: order decides how much is rewritten, not what it means."""
    seed = ORDERED.index((first, second)) * PROGRAMS + program
    check(known_program(seed % POOL), [(first, second)])


# a program for each reason of the table: in its order less is left

ORDERS = {
    ("constant_folding", "dead_code_elimination"): """
        param w : f64[2,4]
        forward
        q : f64[2,4] = tanh(X=w)
        loss : f64[] = reduce_mean(X=q)
        backward
        loss@GRAD : f64[] = fill_constant() {value=1.0, dtype=float64}
        q@GRAD : f64[2,4] = reduce_mean_grad(X=q, Out_grad=loss@GRAD) for loss
        out : f64[2,4] = tanh_grad(Out=q, Out_grad=q@GRAD) for q""",
    ("constant_folding", "common_subexpression_elimination"): """
        data x : f64[2]
        forward
        a : f64[2] = fill_constant() {shape=[2], value=4.0, dtype=float64}
        b : f64[2] = fill_constant() {shape=[2], value=2.0, dtype=float64}
        c : f64[2] = square(X=b)
        out : f64[2] = sum(X=[x, a, c])""",
    ("remove_redundant_cast", "remove_redundant_transpose"): """
        data x : f32[2,3]
        forward
        a : f32[3,2] = transpose(X=x) {perm=[1, 0]}
        b : f64[3,2] = cast(X=a) {dtype=float64}
        c : f32[3,2] = cast(X=b) {dtype=float32}
        d : f32[2,3] = transpose(X=c) {perm=[1, 0]}
        out : f32[2,3] = tanh(X=d)""",
    ("dead_code_elimination", "fuse_matmul_transpose"): """
        data x : f64[2,4]
        param w : f64[3,4]
        forward
        t : f64[4,3] = transpose(X=w) {perm=[1, 0]}
        dead : f64[4,3] = tanh(X=t)
        out : f64[2,3] = matmul(X=x, Y=t)""",
    ("remove_redundant_transpose", "fuse_matmul_transpose"): """
        data x : f64[2,4]
        param w : f64[4,3]
        forward
        t : f64[3,4] = transpose(X=w) {perm=[1, 0]}
        u : f64[4,3] = transpose(X=t) {perm=[1, 0]}
        v : f64[3,4] = transpose(X=u) {perm=[1, 0]}
        r : f64[4,3] = transpose(X=v) {perm=[1, 0]}
        out : f64[2,3] = matmul(X=x, Y=r)""",
    ("dead_code_elimination", "fuse_gemm_epilogue"): """
        data x : f64[2,4]
        param w : f64[4,3]
        param b : f64[3]
        forward
        z : f64[2,3] = matmul(X=x, Y=w)
        dead : f64[2,3] = tanh(X=z)
        out : f64[2,3] = elementwise_add(X=z, Y=b)""",
    ("remove_redundant_cast", "fuse_gemm_epilogue"): """
        data x : f32[2,4]
        param w : f32[4,3]
        param b : f32[3]
        forward
        z : f32[2,3] = matmul(X=x, Y=w)
        c : f64[2,3] = cast(X=z) {dtype=float64}
        d : f32[2,3] = cast(X=c) {dtype=float32}
        out : f32[2,3] = elementwise_add(X=d, Y=b)""",
    ("fuse_matmul_transpose", "fuse_gemm_epilogue"): """
        data x : f64[2,4]
        param w : f64[3,4]
        param b : f64[3]
        forward
        t : f64[4,3] = transpose(X=w) {perm=[1, 0]}
        z : f64[2,3] = matmul(X=x, Y=t)
        out : f64[2,3] = elementwise_add(X=z, Y=b)""",
}


def left(text: str, flags: tuple[str, str]) -> int:
    program = parse(f"program net\n{text}\nfetch out")
    case = Case(0, 0, program, {}, {}, ["out"])
    return len(passed(case, flags)[0].ops)


@pytest.mark.parametrize(("first", "second"), ORDERS, ids=lambda flag: flag)
def test_a_reason_for_the_order_holds(first, second):
    assert first in {step.flag: step.after for step in PASSES}[second]
    text = ORDERS[first, second]
    assert left(text, (first, second)) < left(text, (second, first))


# conflicts


def conflicting(monkeypatch):
    last = PassRow(FLAGS[-1], PASSES[-1].apply, conflicts={FLAGS[0]: "both rewrite the same operators"})
    table = (*PASSES[:-1], last)
    monkeypatch.setattr(strategy, "PASSES", table)


def test_conflicting_flags_are_refused_with_both_names(monkeypatch):
    conflicting(monkeypatch)
    both = BuildStrategy(**{FLAGS[0]: True, FLAGS[-1]: True})
    program = mg.static.CompiledProgram(mg.static.Program(), both)
    with pytest.raises(AttrError, match=f"{FLAGS[-1]} and {FLAGS[0]} cannot be on together: both rewrite the same"):
        program.program_for()
    both.dead_code_elimination = True  # a strategy that was refused can be corrected
    setattr(both, FLAGS[0], False)
    assert mg.static.CompiledProgram(mg.static.Program(), both).program_for()


def test_one_of_two_conflicting_flags_is_fine(monkeypatch):
    conflicting(monkeypatch)
    for flag in (FLAGS[0], FLAGS[-1]):
        mg.static.CompiledProgram(mg.static.Program(), BuildStrategy(**{flag: True})).program_for()


@pytest.mark.parametrize(
    ("flag", "other"), [(s.flag, other) for s in PASSES for other in s.conflicts] or [(None, None)]
)
def test_declared_conflicts_are_refused(flag, other):
    if flag is None:
        assert not any(step.conflicts for step in PASSES)
        return
    with pytest.raises(AttrError, match=f"{flag} and {other} cannot be on together"):
        BuildStrategy(**{flag: True, other: True}).freeze()


# all()


def test_all_is_on_and_has_no_conflict():
    chosen = BuildStrategy.all()
    assert [step.flag for step in PASSES if getattr(chosen, step.flag)] == [s.flag for s in PASSES if s.in_all]
    chosen.freeze()
    assert chosen.idle_flags() == []


def test_flags_are_set_on_top_of_all():
    chosen = BuildStrategy.all(fuse_gemm_epilogue=False, verify="each_pass")
    assert not chosen.fuse_gemm_epilogue and chosen.constant_folding and chosen.verify == "each_pass"
    with pytest.raises(UnknownField, match="did you mean 'constant_folding'"):
        BuildStrategy.all(constant_foldin=True)


def test_explain_names_each_flag():
    main = parse("program net\ndata x : f64[2]\nforward\nout : f64[2] = tanh(X=x)")
    said = mg.static.CompiledProgram(main, BuildStrategy.all()).explain()
    first = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert first == [*(step.flag for step in PASSES if step.in_all), "compiled", "on", "off"]
    off = next(line for line in said.splitlines() if line.startswith("off "))
    assert all(step.flag in off for step in PASSES if not step.in_all) and "autotune" in off


def test_what_was_replaced_stands_in_one_column():
    report = PassReport("fuse_gemm_epilogue")
    for new in ("a = relu", "a_longer_name.tmp_0 = relu", "b" * 80):
        report.applied.append(Applied("Rule", new, ("matmul t",), CallSite("train.py", 3)))
    lines = [line for line in report.render().splitlines() if line.startswith("  + ")]
    assert lines[0].index("   from") == lines[1].index("   from") < lines[2].index("   from")
    assert lines[0].index("train.py:3") == lines[1].index("train.py:3")


@pytest.mark.parametrize("flag", ["return_lse", "training"])
def test_attention_takes_bools_for_flags(flag: str):
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3, 4, 8])
        with pytest.raises(mg.MinigraphError, match=f"{flag} must be a bool, is 'yes'"):
            mg.nn.functional.scaled_dot_product_attention(x, x, x, **{flag: "yes"})
        mg.nn.functional.scaled_dot_product_attention(x, x, x, **{flag: np.bool_(True)})


def test_one_rank_refuses_a_loss_name_that_is_none_too():
    with pytest.raises(mg.MinigraphError, match="loss_name is 3, not a str"):
        static.CompiledProgram(static.Program()).with_data_parallel(3)
