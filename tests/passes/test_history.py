"""The history of a compilation: each rewrite alone changes no result, and the last program is the one that runs."""

from __future__ import annotations

import sys

import pytest

import minigraph as mg
from minigraph.compiler.strategy import PASSES
from minigraph.compiler.validate import distance, evaluate
from minigraph.errors import ProgramError
from minigraph.ir.convert import to_graph
from minigraph.ir.diff import first_difference
from minigraph.ir.graph import Graph
from minigraph.ir.recorded import RecordedGraph
from minigraph.ir.text import parse
from minigraph.static import BuildStrategy, CompiledProgram
from tests.support.counted_work import lines
from tests.support.random_programs import random_program

SEEDS = range(0, 120, 5)
TOLERANCE = 1e-8  # of float64, for sums in another order


def network(layers: int = 3):
    main = mg.static.Program("net")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        h = mg.static.data("x", [4, 8])
        for i in range(layers):
            with mg.static.name_scope(f"layer{i}"):
                h = mg.nn.functional.gelu(mg.nn.Linear(8, 8)(h)) + h
        loss = mg.mean(h * h)
        mg.optimizer.AdamW(0.1).minimize(loss)
    return main, loss


def compiled(layers: int = 3, **flags):
    main, loss = network(layers)
    made = CompiledProgram(main, BuildStrategy.all(**flags))
    made.program_for([loss.name])
    return made


def ends_differently(made) -> str | None:
    return first_difference(made.at(len(made.history)), made.after)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_rewrite_alone_changes_no_result(seed):
    case = random_program(seed)
    made = CompiledProgram(case.program, BuildStrategy.all(keep_history=True, verify="off"))
    made.program_for(case.fetches)
    assert first_difference(made.at(0), case.program) is None
    assert ends_differently(made) is None
    values = {**case.values, **case.feeds}
    kept = [*case.fetches, *(v.name for v in case.program.list_vars() if v.persistable)]
    expected = evaluate(made.at(0), values)
    for step in made.history:
        assert step.changes, "a step that does nothing"
        found = evaluate(made.at(step.number), values)
        for name in kept:
            if name in expected:
                assert distance(expected[name], found[name]) < TOLERANCE, f"{name} after {step}"


def test_a_step_says_what_it_did():
    step = next(s for s in compiled().history if s.flag == "fuse_gemm_epilogue")
    assert step.rule == "LinearGelu"
    assert step.reason == "gelu(elementwise_add(matmul(X, Y), Bias)) -> fused_gemm_epilogue(X, Y, Bias)"
    assert step.site is not None
    assert step.site.filename == __file__
    assert [op.type for op in step.before][:3] == ["matmul", "elementwise_add", "gelu"]
    assert [op.type for op in step.after] == ["fused_gemm_epilogue", "gelu_grad", "fused_gemm_epilogue_grad"]
    assert str(step.before[0]) == "linear_1.tmp_0 : f32[4,8] = matmul(X=x, Y=linear_0.w_0)"
    assert step.after[0].scope_name == "layer0/"
    assert str(step).startswith(f"{step.number:4} fuse_gemm_epilogue")


def test_it_is_the_same_where_it_was_not_kept():
    kept, later = compiled(keep_history=True), compiled()
    assert str(later.history) == str(kept.history)
    assert len(kept.history) > 5
    assert [first_difference(kept.at(i), later.at(i)) for i in range(len(kept.history))] == [None] * len(kept.history)


def test_reports_and_programs_do_not_depend_on_it():
    kept, plain = compiled(keep_history=True), compiled()
    assert first_difference(kept.after, plain.after) is None
    told = [[line for line in made.explain().splitlines() if line.startswith("  ")] for made in (kept, plain)]
    assert told[0] == told[1]


def test_it_costs_little_and_nothing_where_it_is_not_kept():
    called = set()

    def enter(frame, event, argument):
        called.add(frame.f_code.co_filename.rpartition("minigraph")[2].replace("\\", "/"))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        compiled()
    finally:
        sys.setprofile(before)
    assert "/passes/engine/rule.py" in called
    assert not {name for name in called if name.endswith(("/recorded.py", "/history.py"))}
    (main, loss), (again, _) = network(40), network(40)
    plain = lines(lambda: CompiledProgram(main, BuildStrategy.all()).program_for([loss.name]))
    kept = lines(lambda: CompiledProgram(again, BuildStrategy.all(keep_history=True)).program_for([loss.name]))
    assert plain < kept < 1.1 * plain


@pytest.mark.parametrize("change", ["set_input", "remove_op", "put", "move_op"])
def test_a_change_that_is_not_noted_is_seen(monkeypatch, change):
    monkeypatch.setattr(RecordedGraph, change, getattr(Graph, change))
    differ = []
    for seed in (*SEEDS, 140, 145, 150):
        case = random_program(seed)
        made = CompiledProgram(case.program, BuildStrategy.all(keep_history=True))
        made.program_for(case.fetches)
        try:
            differ.append(ends_differently(made))
        except Exception as broken:
            differ.append(str(broken))
    assert any(differ)


def test_a_new_name_is_noted_for_all_who_use_it():
    graph = to_graph(network()[0], kind=RecordedGraph)
    graph.start()
    v = graph.ops[0].outputs["Out"][0]
    users = {graph.keys[op] for op in v.users}
    assert graph.taken() == {}
    graph.move_op(graph.ops[0], graph.ops[0].rank)
    assert 0 in graph.taken()  # the name is known from here
    graph.rename_var(v, "another")
    assert {key for key, state in graph.taken().items() if "another" in str(state)} == users


def test_steps_that_do_not_exist_are_refused():
    made = compiled()
    last = len(made.history)
    for number in (-1, last + 1, True, 1.0):
        with pytest.raises(ProgramError, match=f"is no step of this compilation, which has {last}"):
            made.at(number)
    assert str(CompiledProgram(network()[0], BuildStrategy()).history) == "no rewrite"


def test_a_program_that_was_changed_since_is_refused():
    made = compiled(keep_history=True)
    history, main = made.history, made.before
    with mg.static.program_guard(main, mg.static.Program()):
        mg.nn.functional.relu(mg.static.data("more", [1]))
    for look in (lambda: made.history, lambda: history.at(0), lambda: history.steps):
        with pytest.raises(ProgramError, match="was changed after it was compiled"):
            look()


def test_the_text_after_each_pass_is_written(tmp_path):
    made = compiled(dump_dir=str(tmp_path / "texts"))
    names = sorted(path.name for path in (tmp_path / "texts").iterdir())
    flags = [row.flag for row in PASSES if row.in_all]
    assert names == ["00_input.txt", *(f"{i:02}_{flag}.txt" for i, flag in enumerate(flags, 1))]
    texts = [(tmp_path / "texts" / name).read_text(encoding="utf-8") for name in names]
    assert first_difference(parse(texts[0]), made.before) is None
    assert first_difference(parse(texts[-1]), made.after) is None
    assert f"# {made.before.ops[0].site}" in texts[0]
    gemm = names.index(next(n for n in names if "fuse_gemm_epilogue" in n))
    assert "= fused_gemm_epilogue(" not in texts[gemm - 1]
    assert "= fused_gemm_epilogue(" in texts[gemm]


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ProgramError, match=r"dump_dir .* cannot be written"):
        compiled(dump_dir=str(tmp_path / "file" / "texts"))
