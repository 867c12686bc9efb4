"""cond, case, switch_case and while_loop: values of Paddle 2.6.2, gradients, text, copies, passes, runs that fail."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.rewrite import rewrite
from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import (
    DTypeError,
    FeedError,
    FetchError,
    KernelError,
    MinigraphError,
    ProgramError,
)
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.program import unique_name
from minigraph.program.scope import Scope, scope_guard
from minigraph.runtime.executor import Executor
from minigraph.static import CompiledProgram, Program, data, gradients, program_guard
from minigraph.static.nn import case, cond, switch_case, while_loop
from tests.support import control_cases
from tests.support.control_cases import X
from tests.support.in_threads import in_threads

CASES = control_cases.cases()
RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("control_flow_paddle_2_6_2.json").read_text(encoding="utf-8")
)


@pytest.fixture(autouse=True)
def fresh():
    mg.set_default_dtype("float64")
    with unique_name.guard(), program_guard(Program("main"), Program("startup")), scope_guard(Scope()):
        yield


def built(title):
    """(main, startup, fetches without None, feeds, names of parameters) of a case."""
    main, startup, wanted = control_cases.build(mg, CASES[title])
    feed = {f"x{i}": a for i, a in enumerate(CASES[title][1])}
    return main, startup, [v for v in wanted if v is not None], feed


def run(program, feed=None, fetches=(), **options):
    return Executor().run(program, feed=feed, fetch_list=list(fetches), **options)


def main() -> Program:
    return mg.static.default_main_program()


def assert_same(found, expected, tolerance=1e-12):
    for a, b in zip(found, expected, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def positive(x):
    return mg.sum(x) > 0


# Values


@pytest.mark.parametrize("title", CASES)
def test_values_and_gradients_are_paddles_with_and_without_passes(title):
    program, startup, fetches, feed = built(title)
    run(startup)
    expected = [a for a in RECORDED[title] if a is not None]
    before = program.state_dict()
    assert_same(run(program, feed, fetches), expected)
    program.set_state_dict(before)
    assert_same(run(CompiledProgram(program, BuildStrategy.all(verify="each_pass")), feed, fetches), expected)


@pytest.mark.parametrize("title", CASES)
def test_a_text_is_read_back_and_copies_are_equal(title):
    program, startup, fetches, feed = built(title)
    again = parse(str(program))
    assert first_difference(program, again) is None
    assert str(again) == str(program)
    copy = program.clone()
    assert first_difference(program, copy) is None
    assert not {id(b) for b in program.blocks} & {id(b) for b in copy.blocks}
    for other in (again, copy):
        run(startup)
        assert_same(run(other, feed, [v.name for v in fetches]), [a for a in RECORDED[title] if a is not None])


def test_a_branch_is_chosen_in_each_run():
    x = data("x", [-1, 3])
    out = cond(positive(x), lambda: x * 2.0, lambda: x[:1]) + 1.0
    assert out.shape == (-1, 3)
    exe = Executor()
    for values in (X, -X, X[:1], X, np.vstack([-X, -X])):
        (found,) = exe.run(main(), feed={"x": values}, fetch_list=[out])
        expected = values * 2.0 + 1.0 if values.sum() > 0 else values[:1] + 1.0
        np.testing.assert_array_equal(found, expected)


def test_a_branch_and_a_loop_in_a_loop_have_the_gradient_of_differences():
    def build(x):
        def body(i, h):
            def inner(j, g):
                return [j + 1, mg.tanh(g) * 1.25 + x * 0.125]

            grown = while_loop(lambda j, g: j < 2, inner, [mg.full([1], 0, "int64"), h])[1]
            return [i + 1, cond(mg.sum(grown) > 1.0, lambda: grown * grown, lambda: grown - 0.5)]

        return mg.sum(while_loop(lambda i, h: i < 3, body, [mg.full([1], 0, "int64"), x * 1.0])[1])

    x = data("x", [2, 3])
    x.stop_gradient = False
    loss = build(x)
    (grad,) = gradients([loss], [x])
    value, found = run(main(), {"x": X}, [loss, grad])
    step, differences = 1e-6, np.zeros_like(X)
    for place in np.ndindex(*X.shape):
        moved = [X.copy(), X.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (run(main(), {"x": m}, [loss])[0] for m in moved)
        differences[place] = (up - down) / (2 * step)
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-7)
    assert np.isfinite(value)


def test_the_gradient_of_a_branch_has_a_gradient():
    x = data("x", [2, 3])
    x.stop_gradient = False
    (first,) = gradients([cond(positive(x), lambda: x * x * x, lambda: x * x)], [x])
    (second,) = gradients([first], [x])
    for values, expected in ((X, 6 * X), (-X, np.full_like(X, 2.0))):
        np.testing.assert_allclose(run(main(), {"x": values}, [second])[0], expected, rtol=1e-14)


def test_the_gradient_of_a_loop_has_none_and_says_so():
    x = data("x", [2, 3])
    x.stop_gradient = False
    (first,) = gradients([while_loop(lambda v: mg.sum(v) < 9.0, lambda v: [v * v], [x])[0]], [x])
    with pytest.raises(ProgramError, match="while_loop_grad has no gradient rule"):
        gradients([first], [x])


def test_sizes_may_change_from_round_to_round_also_for_gradients():
    x = data("x", [2, 3])
    x.stop_gradient = False
    out = while_loop(
        lambda i, v: i < 3, lambda i, v: [i + 1, mg.concat([v, v * 0.5], 0)], [mg.full([1], 0, "int64"), x]
    )[1]
    (grad,) = gradients([mg.sum(out * out)], [x])
    assert out.shape == (-1, 3)
    found, back = run(main(), {"x": X}, [out, grad])
    assert found.shape == (16, 3)
    np.testing.assert_allclose(back, 2 * X * 1.25**3, rtol=1e-14)


def test_the_condition_of_a_loop_computes_with_sizes_that_change():
    x = data("x", [2, 3])
    out = while_loop(lambda v: mg.sum(mg.abs(v) * 2.0) < 100.0, lambda v: [mg.concat([v, v], 0)], [x])[0]
    assert run(main(), {"x": X}, [out])[0].shape == (32, 3)


def test_the_gradient_of_a_value_that_a_branch_writes():
    x = data("x", [2, 3])
    x.stop_gradient = False
    total = x * 3.0

    def change():
        mg.assign(x * x + total * 1.0, total)

    cond(positive(x), change, None)
    (grad,) = gradients([total * 1.0], [x])
    for values, expected in ((X, 2 * X + 3.0), (-X, np.full_like(X, 3.0))):
        np.testing.assert_allclose(run(main(), {"x": values}, [grad])[0], expected)


def test_a_run_keeps_what_each_round_began_with():
    """Else the loop would run again for its gradient."""
    x, calls = data("x", [2, 3]), []
    x.stop_gradient = False

    def small(v):
        flag = main().current_block().create_var("flag", [1], "bool")
        return mg.static.py_func(lambda a: calls.append(1) or np.array([np.abs(a).sum() < 100.0]), v, flag)

    out = while_loop(small, lambda v: [v * 2.0], [x])[0]
    (grad,) = gradients([out], [x])
    np.testing.assert_array_equal(run(main(), {"x": X}, [grad])[0], np.full_like(X, 32.0))
    assert len(calls) == 6


def test_a_variable_inside_that_is_renamed_stays_in_its_place():
    x, y = data("x", [2, 3]), data("y", [2, 3])
    out = cond(positive(x), lambda: x - y, lambda: y - x)
    block = main().block(1)
    block.vars["x"].name = "renamed"
    assert [v.name for v in block.program.inputs] == ["renamed", "y"]
    np.testing.assert_array_equal(run(main(), {"x": X, "y": 3 * X}, [out])[0], -2 * X)


def test_training_through_a_branch_and_a_loop():
    w = mg.static.create_parameter([3], "float64", default_initializer=mg.nn.initializer.Constant(1.0))
    x = data("x", [3])
    h = while_loop(lambda i, v: i < 2, lambda i, v: [i + 1, v * w], [mg.full([1], 0, "int64"), x])[1]
    loss = mg.sum(cond(mg.sum(x) > 0, lambda: h * w, lambda: h))
    mg.optimizer.SGD(0.1).minimize(loss)
    run(mg.static.default_startup_program())
    values = np.ones(3)
    for feed in (np.array([1.0, 2.0, 3.0]), np.array([-1.0, -2.0, -3.0])):
        run(main(), {"x": feed})
        values = values - 0.1 * feed * (3 * values**2 if feed.sum() > 0 else 2 * values)
    np.testing.assert_allclose(main().state_dict()[w.name], values, rtol=1e-14)


# Random numbers


def test_each_round_draws_other_numbers_and_the_gradient_sees_the_same_ones():
    x = data("x", [400])
    x.stop_gradient = False
    out = while_loop(
        lambda i, v: i < 3, lambda i, v: [i + 1, mg.nn.functional.dropout(v, 0.25)], [mg.full([1], 0, "int64"), x]
    )[1]
    chosen = cond(positive(x), lambda: mg.nn.functional.dropout(x), lambda: x)
    grads = gradients([mg.sum(out) + mg.sum(chosen)], [x])
    mg.seed(7)
    ones = np.ones(400)
    a, b, grad = run(main(), {"x": ones}, [out, chosen, *grads])
    np.testing.assert_allclose(grad, a + b, rtol=1e-14)
    assert 120 < np.count_nonzero(a) < 220, "three masks, of which each drops others"
    assert 150 < np.count_nonzero(b) < 250
    exe, scope = Executor(), Scope()
    first, second = (exe.run(main(), feed={"x": ones}, fetch_list=[out], scope=scope)[0] for _ in range(2))
    assert not np.array_equal(first, second), "another run draws others"


def test_operators_that_are_appended_to_a_copy_draw_numbers_of_their_own():
    x = data("x", [64])
    cond(positive(x), lambda: mg.nn.functional.dropout(mg.tanh(mg.exp(mg.exp(x) * 2.0) + x)), lambda: x)
    copy = main().clone()
    with program_guard(copy):
        mg.nn.functional.dropout(copy.vars["x"])
    (block,) = [b for b in copy.blocks if any(op.type == "dropout" for op in b.ops) and b is not copy.block0]
    assert copy.ops[-1].number > max(op.number for op in block.ops)


# What is built inside


def test_blocks_are_numbered_and_know_their_parents():
    x = data("x", [2, 3])

    def inner():
        assert main().current_block() is not main().global_block()
        return cond(mg.max(x) > 1.0, lambda: x, lambda: x + 1.0)

    cond(positive(x), inner, lambda: x)
    assert main().current_block() is main().global_block()
    assert [(b.idx, b.parent_idx) for b in main().blocks] == [(0, -1), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert main().num_blocks == 5
    assert main().block(3) is main().blocks[3]
    with pytest.raises(ProgramError, match="block 5 does not exist, the program has 5"):
        main().block(5)


def test_layers_inside_have_their_parameters_outside():
    x = data("x", [4, 3])
    out = cond(positive(x), lambda: mg.static.nn.fc(x, 2), lambda: x[:, :2])
    assert len(main().all_parameters()) == 2
    mg.optimizer.SGD(0.5).minimize(mg.mean(out))
    run(mg.static.default_startup_program())
    before = main().state_dict("param")
    run(main(), {"x": -np.ones((4, 3))})
    assert all(np.array_equal(v, before[n]) for n, v in main().state_dict("param").items())
    run(main(), {"x": np.ones((4, 3))})
    assert not any(np.array_equal(v, before[n]) for n, v in main().state_dict("param").items())


def test_a_value_from_inside_is_refused_outside():
    x, kept = data("x", [2, 3]), []
    cond(positive(x), lambda: kept.append(x * 2.0), None)
    for use in (lambda: kept[0] + 1.0, lambda: mg.concat([x, kept[0]]), lambda: x + kept[0]):
        with pytest.raises(ProgramError, match=r"cond_0.true.* used outside of it"):
            use()
    for name, use in {"exp": mg.exp, "mean": mg.mean, "reshape": lambda v: mg.reshape(v, [6])}.items():
        with pytest.raises(ProgramError, match=rf"\] {name}: a variable of cond_0.true is used outside of it"):
            use(kept[0])
    with pytest.raises(FetchError, match="is not in program main"):
        run(main(), {"x": X}, [kept[0].name])
    with pytest.raises(FetchError, match="fetch target"):
        run(main(), {"x": X}, [kept[0]])
    with pytest.raises(FeedError, match="is not a data variable"):
        run(main(), {"x": X, kept[0].name: X}, [x])


def test_gradients_inside_are_those_of_values_inside():
    x = data("x", [2, 3])
    x.stop_gradient = False
    y = mg.sum(x * x)

    def own():
        z = x * 3.0
        return gradients([mg.sum(z * z)], [z])[0]

    out = cond(positive(x), own, lambda: x)
    np.testing.assert_allclose(run(main(), {"x": X}, [out])[0], 6 * X)
    for wrong in (lambda: gradients([y], [x])[0], lambda: mg.optimizer.SGD(0.1).minimize(y)):
        with pytest.raises(ProgramError, match="inside the function of a branch or loop are those of its own values"):
            cond(positive(x), wrong, lambda: x)


def test_what_is_refused_leaves_nothing():
    x = data("x", [2, 3])
    text = str(main())
    with pytest.raises(ProgramError):
        cond(mg.full([1], True, "bool"), lambda: x * 2.0, lambda: None)
    assert len(main().blocks) == 1
    assert str(main()).count("cond") == text.count("cond")


REFUSED = {
    "pred": (DTypeError, "pred is True, not a Variable", lambda x: cond(True, lambda: x, lambda: x)),
    "pred type": (DTypeError, "must be bool", lambda x: cond(mg.sum(x), lambda: x, lambda: x)),
    "pred size": (ValueError, "must have one element", lambda x: cond(x > 0, lambda: x, lambda: x)),
    "function": (DTypeError, "true_fn is no function", lambda x: cond(positive(x), 5, lambda: x)),
    "None": (ProgramError, r"true_fn returns .*, false_fn None", lambda x: cond(positive(x), lambda: x)),
    "other None": (ProgramError, r"false_fn returns .*, true_fn None", lambda x: cond(positive(x), None, lambda: x)),
    "None inside": (ProgramError, "None is neither", lambda x: cond(positive(x), lambda: (x, None), lambda: (x, x))),
    "number": (ProgramError, "true_fn returns", lambda x: cond(positive(x), lambda: (x, x), lambda: (x,))),
    "structure": (ProgramError, "true_fn returns", lambda x: cond(positive(x), lambda: {"a": x}, lambda: {"b": x})),
    "types": (DTypeError, "two data types", lambda x: cond(positive(x), lambda: x, lambda: mg.cast(x, "int32"))),
    "numbers": (DTypeError, "two data types", lambda x: cond(positive(x), lambda: 1, lambda: 2.5)),
    "ranks": (ValueError, "two ranks", lambda x: cond(positive(x), lambda: x, lambda: mg.sum(x))),
    "case": (DTypeError, "pred_fn_pairs is a list", lambda x: case([])),
    "case pair": (DTypeError, "which is no pair", lambda x: case([positive(x)])),
    "case default": (DTypeError, "default is no function", lambda x: case([(positive(x), lambda: x)], 3)),
    "switch": (DTypeError, "branch_index must be", lambda x: switch_case(x, [lambda: x])),
    "switch twice": (ProgramError, "number 1 twice", lambda x: switch_case(index(), [(1, lambda: x), (1, lambda: x)])),
    "switch number": (DTypeError, "no number with", lambda x: switch_case(index(), {"a": lambda: x})),
    "loop": (ProgramError, "loop_vars is empty", lambda x: while_loop(lambda: positive(x), lambda: [], [])),
    "loop list": (DTypeError, "loop_vars is a list", lambda x: while_loop(lambda v: positive(v), lambda v: v, x)),
    "loop flag": (DTypeError, "must be bool", lambda x: while_loop(lambda v: mg.sum(v), lambda v: [v], [x])),
    "loop size": (ValueError, "one element", lambda x: while_loop(lambda v: v > 0, lambda v: [v], [x])),
    "loop python": (DTypeError, "cond returns True", lambda x: while_loop(lambda v: True, lambda v: [v], [x])),
    "loop number": (ProgramError, "body returns", lambda x: while_loop(positive, lambda v: [v, v], [x])),
    "loop None": (ProgramError, "body returns None", lambda x: while_loop(lambda v, w: positive(v), lambda *v: None,
                                                                          [x, x])),
    "loop type": (DTypeError, "two data types", lambda x: while_loop(positive, lambda v: [mg.cast(v, "int32")], [x])),
    "loop rank": (ValueError, "two ranks", lambda x: while_loop(positive, lambda v: [mg.sum(v)], [x])),
}  # fmt: skip


def index():
    return mg.full([1], 1, "int64")


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_calls_are_one_clear_error(what):
    kind, fact, call = REFUSED[what]
    x = data("x", [2, 3])
    with pytest.raises(kind, match=fact) as caught:
        call(x)
    assert isinstance(caught.value, MinigraphError)
    assert "test_control_flow.py" in str(caught.value)


def test_a_predicate_of_unknown_size_is_looked_at_in_the_run():
    x = data("x", [-1])
    out = cond(x > 0, lambda: x, lambda: x + 1.0)
    np.testing.assert_array_equal(run(main(), {"x": np.ones(1)}, [out])[0], [1.0])
    with pytest.raises(MinigraphError, match=r"must have one element, it has shape \[2\]"):
        run(main(), {"x": np.ones(2)}, [out])


# Parts of a program


def test_test_programs_pruned_runs_and_computed_feeds():
    x = data("x", [2, 3])
    h = x * 2.0
    out = cond(positive(h), lambda: mg.nn.functional.dropout(h, 0.5), lambda: h)
    unused = cond(positive(h), lambda: h / 0.0, lambda: h)
    test = main().clone(for_test=True)
    assert "is_test=true" in str(test)
    np.testing.assert_array_equal(run(test, {"x": X}, [out.name])[0], 2 * X)
    pruned = run(test, {h.name: X}, [out.name], use_prune=True)[0]
    np.testing.assert_array_equal(pruned, X)
    with pytest.raises(FeedError, match="would have no effect"):
        run(main(), {"x": X, unused.name: X}, [out])


def test_an_inference_model_holds_its_blocks(tmp_path):
    x = data("x", [-1, 3])
    out = cond(positive(x), lambda: mg.static.nn.fc(x, 2), lambda: x[:, :2])
    exe = Executor()
    exe.run(mg.static.default_startup_program())
    expected = [exe.run(main(), feed={"x": v}, fetch_list=[out])[0] for v in (X, -X)]
    mg.static.save_inference_model(str(tmp_path / "net"), [x], [out], exe)
    with scope_guard(Scope()):
        program, feeds, fetches = mg.static.load_inference_model(str(tmp_path / "net"), exe)
        found = [exe.run(program, feed={feeds[0]: v}, fetch_list=fetches)[0] for v in (X, -X)]
    assert_same(found, expected)


def test_a_run_that_fails_in_a_later_part_changes_nothing():
    x = data("x", [2, 3])
    rows = data("rows", [2], "int64")
    count = mg.static.create_global_var([1], 1.0, "float64", persistable=True)
    mg.assign(count + 1.0, count)
    out = cond(positive(x), lambda: mg.nn.functional.embedding(rows, count_table(x)), lambda: x)
    run(mg.static.default_startup_program())
    exe = Executor()
    with pytest.raises(KernelError):
        exe.run(main(), feed={"x": X, "rows": np.array([0, 9])}, fetch_list=[out])
    assert main().state_dict()[count.name] == 1.0
    exe.run(main(), feed={"x": X, "rows": np.array([0, 1])}, fetch_list=[out])
    assert main().state_dict()[count.name] == 2.0


def count_table(x):
    return x * 1.0


# Passes


def test_passes_go_into_blocks_and_explain_tells_of_it():
    x, w = data("x", [4, 3]), mg.static.create_parameter([3, 2], "float64")
    b = mg.static.create_parameter([2], "float64", is_bias=True)
    out = cond(positive(x), lambda: mg.nn.functional.relu(mg.matmul(x, w) + b), lambda: x[:, :2])
    compiled = CompiledProgram(main(), BuildStrategy(fuse_gemm_epilogue=True))
    run(mg.static.default_startup_program())
    expected = run(main(), {"x": np.ones((4, 3))}, [out])
    assert_same(run(compiled, {"x": np.ones((4, 3))}, [out]), expected)
    assert "fused_gemm_epilogue" in str(compiled.after)
    assert "fused_gemm_epilogue" not in str(compiled.before)
    assert "1 applied" in compiled.explain()
    assert "block true_block" in compiled.diff()


def cut_program():
    """(compiled, fetches): a branch, a loop that keeps its sizes, and one that does not, with what follows them."""
    x, n = data("x", [None, 64]), mg.full([1], 2, "int64")
    layer = mg.nn.Linear(64, 64)
    h = cond(positive(x), lambda: mg.nn.functional.relu(layer(x)), lambda: x * 2.0)
    _, h = while_loop(lambda i, v: i < n, lambda i, v: [i + 1, mg.nn.functional.gelu(layer(v))], [n * 0, h])
    known = mg.tanh(h)
    _, longer = while_loop(lambda i, v: i < n, lambda i, v: [i + 1, mg.concat([v, v])], [n * 0, known])
    return CompiledProgram(main(), BuildStrategy.all()), [known, mg.exp(longer)]


def test_memory_and_kernels_of_a_cut_program_are_those_of_its_pieces_and_blocks():
    compiled, fetches = cut_program()
    report = compiled.memory_report({"x": [256, 64]}, fetches)
    blocks = ["cond_0.true", "cond_0.false", "while_loop_0.cond", "while_loop_0.body", "while_loop_1.body"]
    assert {*blocks, "piece 0"} <= set(report.parts)
    assert [part for part, nbytes in report.parts.items() if nbytes is None] == ["piece 3"]  # behind what grows
    assert report.planned == sum(nbytes or 0 for nbytes in report.parts.values())
    assert report.at_peak() and report.running
    assert "a run decides  piece 3" in str(report)
    kernels = compiled.kernels({"x": [256, 64]}, fetches)
    assert {k.members for k in kernels if k.part == "cond_0.true"} == {("fused_gemm_epilogue",)}
    assert [k.op.type for k in kernels if k.part == "cond_0.false" and k.op is not None] == ["scale"]
    assert "\nwhile_loop_0.body:\n" in str(kernels)


def test_planned_memory_of_a_cut_program_is_that_of_its_plans():
    x = data("x", [None, 64])
    out = cond(positive(x), lambda: mg.matmul(x, x, transpose_y=True), lambda: x)
    compiled = CompiledProgram(main(), BuildStrategy())
    at = mg.CPUPlace()
    report = compiled.memory_report({"x": [32, 64]}, [out], at)
    block = main().ops[-1].attrs["true_block"]
    alone = CompiledProgram(block, BuildStrategy()).memory_report({x.name: [32, 64]}, block.outputs, at)
    assert report.parts["cond_0.true"] == alone.planned > 0


def test_a_gradient_of_a_cut_program_has_parts_of_its_own():
    _, (known, _) = cut_program()
    mg.optimizer.SGD(0.0).minimize(mg.mean(known))
    compiled = CompiledProgram(main(), BuildStrategy.all())
    parts = compiled.memory_report({"x": [8, 64]}, [known]).parts
    assert {"while_loop_0.body", "while_loop_0.body@GRAD", "cond_0.true", "cond_0.true@GRAD"} <= set(parts)


def test_a_cut_program_has_a_report(tmp_path):
    compiled, fetches = cut_program()
    text = compiled.report(tmp_path / "cut.html", {"x": [8, 64]}, fetches).read_text(encoding="utf-8")
    assert '"planned":' in text


def test_rewrites_in_blocks_are_in_the_history(tmp_path):
    _, (known, _) = cut_program()
    mg.optimizer.SGD(0.0).minimize(mg.mean(known))
    strategy = BuildStrategy.all(keep_history=True, dump_dir=str(tmp_path))
    compiled = CompiledProgram(main(), strategy)
    compiled.program_for([known.name])
    history = compiled.history
    inside = [step for step in history if step.block]
    assert [step.number for step in history] == list(range(1, len(history) + 1))
    assert len(inside) > 3 and inside[0].block == "cond_0.true" and "in cond_0.true" in str(history)
    assert [op.type for op in inside[0].before] == ["matmul", "elementwise_add", "relu"]
    assert [op.type for op in inside[0].after] == ["fused_gemm_epilogue"]
    assert str(compiled.at(0)) == str(compiled.before)
    assert str(compiled.at(len(history))) == str(compiled.after)
    assert "fused_gemm_epilogue" in str(compiled.at(1)) and "fused_gemm_epilogue" not in str(compiled.at(0))
    assert sum(len(report.applied) for report in compiled.reports.values()) <= len(history)
    last = sorted(tmp_path.iterdir())[-1].read_text(encoding="utf-8")
    assert last == compiled.after.to_string(with_details=True)
    run(mg.static.default_startup_program())
    feed = {"x": np.ones((4, 64))}
    results = [run(compiled.at(i), feed, [known])[0] for i in (0, len(inside))]
    np.testing.assert_allclose(*results, rtol=1e-10)


def test_a_rewrite_before_gradients_leaves_blocks_and_says_so():
    x = data("x", [2, 3])
    cond(positive(x), lambda: mg.exp(mg.log(x)), lambda: x)
    (report,) = rewrite(main(), [lambda graph, report: 0])
    assert [r.reason for r in report.refused] == ["its blocks are left as they are: build them after the rewrite"]


def test_a_loop_that_never_ends_on_made_up_numbers_is_not_validated():
    x = data("x", [1])
    out = while_loop(lambda v: mg.sum(v) < 1e300, lambda v: [v * 1.0], [x])[0]
    mg.tanh(x)  # which nobody reads: a pass has something to change
    compiled = CompiledProgram(main(), BuildStrategy.all(verify="each_pass"))
    np.testing.assert_array_equal(run(compiled, {"x": np.full(1, 2e300)}, [out])[0], [2e300])
    assert "a loop goes on after 1000 rounds" in compiled.explain()


def test_a_changed_block_is_planned_anew():
    x = data("x", [2, 3])
    out = cond(positive(x), lambda: mg.scale(x, 2.0), lambda: x)
    exe = Executor()
    np.testing.assert_array_equal(exe.run(main(), feed={"x": X}, fetch_list=[out])[0], 2 * X)
    (op,) = [op for b in main().blocks for op in b.ops if op.type == "scale"]
    op._set_attr("scale", 3.0)
    np.testing.assert_array_equal(exe.run(main(), feed={"x": X}, fetch_list=[out])[0], 3 * X)


def test_programs_with_blocks_leave_nothing_behind(frozen):
    def made() -> weakref.ref:
        program = Program("gone")
        with program_guard(program, Program()):
            x = data("x", [2, 3])
            x.stop_gradient = False
            out = cond(positive(x), lambda: x * x, lambda: x)
            gradients([out], [x])
        Executor().run(program, feed={"x": X}, fetch_list=[out])
        return weakref.ref(program)

    gone = made()
    gc.collect()
    assert gone() is None


def test_a_feed_that_only_a_block_reads_is_asked_for():
    x, y = data("x", [2, 3]), data("y", [2, 3])
    out = cond(positive(x), lambda: y * 2.0, lambda: x)
    with pytest.raises(FeedError, match="feed 'y' is missing: the program reads y"):
        run(main(), {"x": X}, [out])


def test_nan_inside_a_block_is_found_and_nothing_changes():
    x = data("x", [2, 3])
    count = mg.static.create_global_var([1], 0.0, "float64", persistable=True)
    mg.assign(count + 1.0, count)
    out = cond(positive(x), lambda: mg.log(x * 2.0), lambda: x)
    run(mg.static.default_startup_program())
    for strategy in (BuildStrategy(check_nan_inf=True), BuildStrategy.all(check_nan_inf=True)):
        compiled = CompiledProgram(main(), strategy)
        with pytest.raises(mg.errors.NonFiniteError, match="log"):
            run(compiled, {"x": X}, [out])
        assert main().state_dict()[count.name] == 0.0
        np.testing.assert_array_equal(run(compiled, {"x": -X}, [out])[0], -X)
        main().set_state_dict({count.name: np.zeros(1)})


def test_two_threads_build_branches_of_their_own():
    def build(_):
        program = Program("threads")
        with unique_name.guard(), program_guard(program, Program()):
            x = data("x", [2, 3], "float64")
            for _ in range(20):
                x = cond(positive(x), lambda x=x: x * 2.0, lambda x=x: x + 1.0)
        return str(program)

    assert len(set(in_threads(build, range(3)))) == 1


TEXT = """program main
  data x : f64[3]
forward
  p : bool[3] = less_than(X=x, Y=x)
  q : bool[1] = slice(X=p) {axes=[0], starts=[0], ends=[1]}
  y : f64[3] = cond(Pred=q, Input=x)
  block true_block one
      data x : f64[3]
    forward
      t : f64[3] = tanh(X=x)
    fetch t
  end
  block false_block other
      data x : f64[3]
    fetch x
  end
fetch y"""

WRONG_TEXTS = {
    "no end": ("    fetch x\n  end\nfetch y", "    fetch x", "this block does not end"),
    "no block": ("  block false_block other\n      data x : f64[3]\n    fetch x\n  end\n", "",
                 "expected `block false_block` of cond"),
    "another name": ("block true_block", "block body_block", "expected `block true_block` of cond"),
    "an unknown variable": ("tanh(X=x)", "tanh(X=q)", "variable 'q' does not exist"),
    "another input": ("other\n      data x : f64[3]", "other\n      data x : f64[4]",
                      "was built for f64.4. as its input 0"),
    "another number": ("    fetch t\n", "    fetch t\n    fetch x\n", "true_block has 2 results, false_block has 1"),
}  # fmt: skip


def test_a_text_is_read():
    program = parse(TEXT)
    assert parse(str(program)).ops[-1].type == "cond"
    np.testing.assert_array_equal(run(program, {"x": np.arange(3.0)}, ["y"])[0], np.arange(3.0))


@pytest.mark.parametrize("what", WRONG_TEXTS)
def test_wrong_texts_are_one_clear_error(what):
    old, new, fact = WRONG_TEXTS[what]
    assert old in TEXT
    with pytest.raises(ProgramError, match=fact):
        parse(TEXT.replace(old, new))


def test_what_is_shown_inside_is_shown_once(capsys):
    x = data("x", [2, 3])
    x.stop_gradient = False
    out = cond(positive(x), lambda: mg.static.Print(mg.exp(x) * 2.0, message="seen", print_phase="forward"), lambda: x)
    (grad,) = gradients([out], [x])
    compiled = CompiledProgram(main(), BuildStrategy.all())
    np.testing.assert_allclose(run(compiled, {"x": X}, [grad])[0], 2 * np.exp(X), rtol=1e-14)
    assert capsys.readouterr().out.count("seen") == 1
    run(compiled, {"x": -X}, [grad])
    assert "seen" not in capsys.readouterr().out


def test_a_block_inside_sees_what_the_block_around_it_has_written():
    x = data("x", [2, 3])
    count = mg.static.create_global_var([1], 1.0, "float64", persistable=True)

    def outer():
        mg.assign(count * 3.0, count)
        return cond(mg.max(x) > 1.0, lambda: x * count, lambda: x)

    def body(i, h):
        mg.assign(count + 1.0, count)
        return [i + 1, cond(mg.max(h) > 0, lambda: h * count, lambda: h)]

    out = cond(positive(x), outer, lambda: x)
    grown = while_loop(lambda i, h: i < 2, body, [mg.full([1], 0, "int64"), x])[1]
    run(mg.static.default_startup_program())
    found, rounds, after = run(main(), {"x": X}, [out, grown, count])
    np.testing.assert_array_equal(found, X * 3.0)
    np.testing.assert_array_equal(rounds, X * 4.0 * 5.0)
    np.testing.assert_array_equal(after, [5.0])
    assert str(parse(str(main()))) == str(main())


def test_a_branch_that_nobody_reads_is_dead_unless_it_acts():
    x = data("x", [2, 3])
    cond(positive(x), lambda: x * 2.0, lambda: x)
    cond(positive(x), lambda: cond(mg.max(x) > 0, lambda: mg.static.Print(x), lambda: x), lambda: x)
    while_loop(lambda v: mg.sum(mg.abs(v)) < 9.0, lambda v: [v * 2.0], [x])
    compiled = CompiledProgram(main(), BuildStrategy(dead_code_elimination=True))
    out = x + 1.0
    assert [op.type for op in compiled.program_for([out.name]).ops if "block" in str(op.attrs)] == ["cond"]
    assert any(b.ops and b.ops[0].type == "print" for b in compiled.after.blocks)


def test_a_while_block_that_never_writes_its_condition_is_refused():
    i = mg.zeros([1], "int64")
    going = mg.less_than(i, mg.full([1], 3, "int64"))
    before = len(mg.static.default_main_program().ops)
    loop = mg.static.nn.control_flow.While(going)
    with pytest.raises(ProgramError, match="does not write its condition"), loop.block():
        mg.increment(i)
    assert len(mg.static.default_main_program().ops) == before
    with pytest.raises(MinigraphError, match="bool"):
        mg.static.nn.control_flow.While(i)
