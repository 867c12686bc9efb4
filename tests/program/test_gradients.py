"""Which variables get a gradient, and that it is the one that Paddle 2.6.2 finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import FetchError, ProgramError
from tests.support import gpu_stub
from tests.support.gradient_programs import PROGRAMS, Box, run
from tests.support.pruned_runs import with_passes

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "paddle_gradients.json").read_text(encoding="utf-8"))
X = np.arange(6.0).reshape(2, 3) - 2


@pytest.fixture(params=["CPU", pytest.param("GPU", marks=pytest.mark.skipif(
    gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++"))])  # fmt: skip
def place(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A place; that of the GPU is the stub."""
    if request.param == "CPU":
        return mg.CPUPlace()
    gpu_stub.installed(monkeypatch)
    return mg.CUDAPlace(0)


def test_every_program_is_recorded() -> None:
    assert list(RECORDED) == list(PROGRAMS) and len(PROGRAMS) > 30


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_paddle(name: str, passes: bool) -> None:
    found = run(mg, PROGRAMS[name], *[with_passes] * passes)
    for array, expected in zip(found, RECORDED[name], strict=True):
        assert list(array.shape) == expected["shape"]
        np.testing.assert_allclose(array.ravel(), expected["values"], rtol=1e-11, atol=1e-12)


def loss_of(live: bool, layers: int = 2) -> tuple[static.Program, Any, Any]:
    """A small net over data that is live or not."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        box = Box(mg, "net")
        h = x = box.data("x", [2, 3], live)
        for i in range(layers):
            h = mg.tanh(mg.matmul(h, box.param(f"w{i}", [3, 3])))
        loss = mg.mean(h)
        box.backward(loss)
    return main, x, loss


def test_what_needs_no_gradient_costs_nothing() -> None:
    frozen, live = loss_of(False)[0], loss_of(True)[0]
    assert "x@GRAD" not in frozen.vars
    assert [op.type for op in live.ops if "x@GRAD" in op.output_arg_names] == ["matmul_grad"]
    assert [op.type for op in live.ops] == [op.type for op in frozen.ops]
    assert len(live.vars) == len(frozen.vars) + 1


def test_a_gradient_is_fetched_with_every_pass_on(place: Any) -> None:
    main, _, loss = loss_of(True)
    feed, scope = {"x": X}, static.Scope()
    for i in range(2):
        scope.write(f"w{i}", np.random.default_rng(i).normal(size=(3, 3)))
    fetches = [loss, "x@GRAD", f"{loss.name}@GRAD", "w0@GRAD"]
    plain = static.Executor().run(main, feed, fetches, scope=scope)
    found = static.Executor(place).run(with_passes(main), feed, fetches, scope=scope)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_gradient_that_nobody_asked_for_is_refused() -> None:
    main, _, _ = loss_of(False)
    with pytest.raises(FetchError, match="'x@GRAD' is not in program"):
        static.Executor().run(main, {"x": X}, ["x@GRAD"])


def test_whole_numbers_have_no_gradient() -> None:
    box = Box(mg, "ids")
    ids, table = box.labels("ids", [3], 4), box.param("table", [4, 2])
    ids.stop_gradient = False
    box.backward(mg.mean(box.F.embedding(ids, table)))
    assert "ids@GRAD" not in static.default_main_program().vars
    with pytest.raises(ProgramError, match="which has no gradient"):
        static.append_backward(mg.mean(table * 2.0), parameter_list=[ids])


def test_data_that_the_loss_does_not_need_has_no_gradient() -> None:
    box = Box(mg, "unused")
    x, other = box.data("x", [2, 3]), box.data("other", [2, 3])
    box.backward(mg.mean(x * x))
    mg.mean(other)
    assert "other@GRAD" not in static.default_main_program().vars


def test_an_inner_value_that_is_kept_is_no_start_of_a_gradient() -> None:
    box = Box(mg, "kept")
    h = mg.tanh(box.data("x", [2, 3], live=False))
    h.persistable = True
    box.backward(mg.mean(h * box.param("w", [2, 3])))
    assert f"{h.name}@GRAD" not in static.default_main_program().vars


@pytest.mark.parametrize("absent", [None, [], ()])
def test_paddles_other_arguments_are_taken_where_they_ask_for_nothing(absent: Any) -> None:
    box = Box(mg, "absent")
    assert len(box.backward(mg.mean(box.param("w", [3])), callbacks=absent, checkpoints=absent)) == 1


def test_callbacks_are_refused_whatever_holds_them() -> None:
    box = Box(mg, "callbacks")
    with pytest.raises(ProgramError, match="takes no callbacks"):
        box.backward(mg.mean(box.param("w", [3])), callbacks=np.array([1, 2]))


def test_the_loss_must_depend_on_something_that_gets_a_gradient() -> None:
    box = Box(mg, "nothing")
    x = box.data("x", [2, 3], live=False)
    with pytest.raises(ProgramError, match="no trainable parameter and on no data with stop_gradient=False"):
        box.backward(mg.mean(x))
    x.stop_gradient = False
    assert box.backward(mg.mean(x)) == []


@pytest.mark.parametrize("live", [False, True])
def test_an_optimizer_updates_parameters_only(live: bool) -> None:
    box = Box(mg, "data")
    x, w = box.data("x", [2, 3], live), box.param("w", [3])
    loss = mg.mean(x * w)
    for refused in (
        lambda: mg.optimizer.SGD(0.1, parameters=[x]).minimize(loss),
        lambda: mg.optimizer.SGD(0.1).minimize(loss, parameters=[x, w]),
        lambda: mg.optimizer.SGD(0.1).apply_gradients([(x, w)]),
    ):
        with pytest.raises(ProgramError, match=r"x: f64.* is no parameter"):
            refused()
    assert len(static.default_main_program().ops) == 2


def test_the_page_on_gradients_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gradients.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert code.count("exe.run") > 5
    exec(compile(code, "docs/gradients.md", "exec"), {})  # its own assertions


@pytest.mark.parametrize("how", ["stop_gradient", "no_grad_set"])
@pytest.mark.parametrize("passes", [False, True], ids=["plain", "passes"])
def test_nothing_flows_through_an_input_that_is_blocked(how: str, passes: bool) -> None:
    """The gradient of x is the same, whether that of h is asked for, too."""
    box = Box(mg, "blocked")
    x, stopped = box.data("x", [2, 3]), how == "stop_gradient"
    h = mg.tanh(x)
    h.stop_gradient = stopped
    y = mg.sum(h * h * mg.exp(x))
    (alone,) = static.gradients(y, [x], no_grad_set=None if stopped else [h])
    beside, inner = static.gradients(y, [x, h], no_grad_set=None if stopped else [h])
    fetches = [alone, beside, inner] if stopped else [alone, beside]
    program: Any = with_passes(static.default_main_program()) if passes else static.default_main_program()
    numbers = box.feed["x"]
    dense, slopes = np.tanh(numbers), np.exp(numbers)
    expected = [dense**2 * slopes, dense**2 * slopes, 2 * dense * slopes]
    for array, numbers in zip(static.Executor().run(program, box.feed, fetches), expected, strict=False):
        np.testing.assert_allclose(array, numbers, rtol=1e-12)
    assert (inner is not None) == stopped  # no_grad_set says that it has none, as in Paddle 2.6.2


# clone(for_test=True)


def for_test(build: Callable[[Box], Any]) -> tuple[static.Program, static.Program, Any, dict[str, Any]]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        box = Box(mg, "test")
        targets = build(box)
        static.Executor().run(startup)
        return main, main.clone(for_test=True), targets, box.feed


def test_a_test_clone_leaves_out_what_reads_a_gradient() -> None:
    def build(b: Box) -> Any:
        x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
        h = mg.matmul(x, w)
        loss = mg.mean(h * h)
        (grad,) = b.backward(loss)
        norm = mg.sqrt(mg.sum(grad * grad))  # a forward operator, as the user wrote it
        return loss, mg.mean(h), norm, norm * 2.0

    main, test, (loss, mean, norm, twice), feed = for_test(build)
    exe = static.Executor()
    assert exe.run(test, feed, [loss, mean]) == exe.run(main, feed, [loss, mean])
    assert {op.role for op in test.ops} == {"forward"}
    for left_out in (norm, twice, "w@GRAD"):
        with pytest.raises(FetchError, match="is not in program"):
            exe.run(test, feed, [left_out])


def test_a_test_clone_does_not_read_what_training_left_in_the_scope() -> None:
    def build(b: Box) -> Any:
        w = b.param("w", [3, 2])
        loss = mg.mean(w * w)
        (grad,) = b.backward(loss)
        grad.persistable = True
        return loss, mg.sum(grad)

    main, test, (_, total), feed = for_test(build)
    static.Executor().run(main, feed, [total])
    with pytest.raises(FetchError, match="is not in program"):
        static.Executor().run(test, feed, [total])


def test_gradients_without_training_are_values_of_a_test_clone() -> None:
    def build(b: Box) -> Any:
        x = b.data("x", [2, 3])
        (grad,) = static.gradients(mg.sum(mg.tanh(x)), x)
        return grad, mg.sum(grad)

    main, test, targets, feed = for_test(build)
    found, expected = (static.Executor().run(p, feed, list(targets)) for p in (test, main))
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1] and len(test.ops) == len(main.ops)


def test_a_penalty_on_gradients_is_a_value_of_a_test_clone() -> None:
    def build(b: Box) -> Any:
        x, w = b.data("x", [2, 3]), b.param("w", [3, 2])
        loss = mg.mean(mg.tanh(mg.matmul(x, w)))
        (grad,) = static.gradients(loss, x)
        total = loss + mg.sum(grad * grad)
        mg.optimizer.SGD(0.1).minimize(total)
        return loss, total

    main, test, targets, feed = for_test(build)
    before = main.state_dict()
    found = static.Executor().run(test, feed, list(targets))
    assert all((before[n] == v).all() for n, v in main.state_dict().items())
    assert found == static.Executor().run(main, feed, list(targets))
    assert not any(op.role == "optimize" for op in test.ops) and len(test.ops) < len(main.ops)


def test_a_test_clone_keeps_what_reads_a_parameter_after_its_update() -> None:
    def build(b: Box) -> Any:
        w = b.param("w", [3, 2])
        mg.optimizer.SGD(0.1).minimize(mg.sum(w * w))
        return mg.sum(w)

    main, test, total, _ = for_test(build)
    before = main.state_dict()["w"]
    assert static.Executor().run(test, fetch_list=[total])[0] == pytest.approx(before.sum())
    assert (main.state_dict()["w"] == before).all() and all(op.role == "forward" for op in test.ops)


def test_a_test_clone_of_a_program_whose_passes_join_forward_and_backward() -> None:
    """An operator that computes a forward value beside gradients stays, with what it reads; no update does."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        box = Box(mg, "net")
        x, label = box.data("x", [4, 3], live=False), box.labels("label", [4, 1], 5)
        h = mg.tanh(mg.matmul(x, box.param("w", [3, 3])))
        scores = mg.matmul(h, box.param("v", [3, 5])) + box.param("c", [5])
        losses = mg.nn.functional.softmax_with_cross_entropy(scores, label)
        loss = mg.mean(losses)
        mg.optimizer.Adam(0.1).minimize(loss)
        scaled = loss * 3.0
    exe = static.Executor()
    exe.run(startup)
    before = main.state_dict()
    expected = exe.run(main.clone(for_test=True), box.feed, [loss, losses, scaled])
    for all_flags in (False, True):
        strategy = static.BuildStrategy.all() if all_flags else static.BuildStrategy(fuse_elementwise=True)
        joined = static.CompiledProgram(main, strategy).program_for([v.name for v in (loss, losses, scaled)])
        assert all_flags or any(op.role == "backward" and losses.name in op.output_arg_names for op in joined.ops)
        test = joined.clone(for_test=True)
        assert not any(op.role == "optimize" for op in test.ops) and len(test.ops) < len(joined.ops)
        found = exe.run(test, box.feed, [loss, losses, scaled])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    assert all((before[n] == v).all() for n, v in main.state_dict().items())


@pytest.mark.parametrize("flag", ["fuse_gemm_epilogue", "constant_folding", "fuse_all_optimizer_ops"])
def test_a_test_clone_of_a_program_whose_passes_join_no_roles(flag: str) -> None:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        box = Box(mg, "net")
        x = box.data("x", [2, 3], live=False)
        h = mg.nn.functional.relu(mg.matmul(x, box.param("w", [3, 4])) + box.param("c", [4]))
        loss = mg.mean(h)
        mg.optimizer.Adam(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(startup)
    compiled = static.CompiledProgram(main, static.BuildStrategy(**{flag: True}))
    test = compiled.after.clone(for_test=True)
    before = main.state_dict()
    values = [exe.run(p, box.feed, [loss])[0] for p in (test, main.clone(for_test=True))]
    np.testing.assert_allclose(*values, rtol=1e-12)
    assert all((before[n] == v).all() for n, v in main.state_dict().items())


@pytest.mark.parametrize("flag", ["fuse_elementwise", "fuse_foreach"])
def test_a_test_clone_of_a_program_whose_passes_join_elementwise_operators(flag: str) -> None:
    """What is inside of a fused operator drops nothing, and leaves running statistics alone."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    main.random_seed = 3
    with static.program_guard(main, startup):
        x = static.data("x", [8, 4])
        h = static.nn.batch_norm(mg.nn.functional.dropout(mg.tanh(x) * 2.0, 0.5))
        out = mg.mean(mg.square(mg.nn.functional.dropout(h + x, 0.5)))
    fused = static.CompiledProgram(main, build_strategy=static.BuildStrategy(**{flag: True})).program_for([out.name])
    inside = {"fuse_elementwise": "dropout(", "fuse_foreach": "running_average("}[flag]
    assert any(inside in line for op in fused.ops for line in op.attrs.get("body", ()))
    exe, feed = static.Executor(), {"x": np.random.default_rng(0).normal(size=(8, 4)).astype("float32")}
    exe.run(startup, scope=scope)
    exe.run(main, feed, [out], scope=scope)  # the statistics are no longer those of the beginning
    before = {name: scope.read(name).tobytes() for name in scope.list_names()}
    (expected,) = exe.run(main.clone(for_test=True), feed, [out.name], scope=scope)
    for _ in range(2):
        (found,) = exe.run(fused.clone(for_test=True), feed, [out.name], scope=scope)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert before == {name: scope.read(name).tobytes() for name in scope.list_names()}
