"""Calls that wait for numbers which only a run knows: values, gradients, text, clones, ranks, GPU plans, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, DTypeError, ProgramError, ShapeError
from minigraph.ir.text import parse
from minigraph.program import unique_name
from minigraph.program.blocks import deferred
from minigraph.program.scope import Scope
from minigraph.runtime.control import waiting
from minigraph.runtime.control.plan import ControlPlan
from minigraph.tensor.waiting import calls as waiting_calls
from tests.support import cuda_host, gpu_stub

X = np.random.default_rng(0).normal(size=(4, 6))
KS = (2, 5, 1, 2)


@pytest.fixture(autouse=True)
def in_float64():
    mg.set_default_dtype("float64")
    yield
    mg.set_default_dtype("float32")


def hardest() -> tuple[Any, Any, list[Any]]:
    """Training on the k largest of a row's squares, in a window [:, k - 1:]: main, startup, (loss, w, slope of x)."""
    main, startup = static.Program("main"), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        x, k = static.data("x", [None, 6]), static.data("k", [1], "int32")
        x.stop_gradient = False
        w = mg.create_parameter([6], "float64", name="w", default_initializer=mg.nn.initializer.Constant(0.5))
        largest, _ = mg.topk(mg.square(x * w), k)
        loss = mg.mean(largest) + mg.sum((x * w)[:, k - 1 :])
        mg.optimizer.SGD(0.1).minimize(loss)
    return main, startup, [loss, w, main.global_block().var("x@GRAD")]


def by_hand(rows: int = 4) -> list[list[np.ndarray]]:
    """What runs of `hardest` with KS give: the loss before, w after each update, the slope of x."""
    w, x, out = np.full(6, 0.5), X[:rows], []
    for k in KS:
        square = (x * w) ** 2
        kept = np.argsort(np.argsort(-square, 1), 1) < k
        loss = square[kept].mean() + (x * w)[:, k - 1 :].sum()
        slope = 2 * x * w * kept / kept.sum()  # of x * w
        slope[:, k - 1 :] += 1
        x_grad, w = slope * w, w - 0.1 * (slope * x).sum(0)
        out.append([loss, w, x_grad])
    return out


def runs(program: Any, startup: Any, fetches: Any, place: Any = None) -> list[list[np.ndarray]]:
    exe, scope = static.Executor(place), Scope()
    exe.run(startup, scope=scope)
    feeds = [{"x": X, "k": np.array([k], "int32")} for k in KS]
    return [exe.run(program, feed=feed, fetch_list=fetches, scope=scope) for feed in feeds]


def assert_trained(found: list[list[np.ndarray]]) -> None:
    for own, expected in zip(found, by_hand(), strict=True):
        for a, b in zip(own, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_values_and_gradients_for_numbers_that_change():
    assert_trained(runs(*hardest()))


def test_a_compiled_program():
    main, startup, fetches = hardest()
    assert_trained(runs(static.CompiledProgram(main, static.BuildStrategy.all(verify="each_pass")), startup, fetches))


def test_text_is_complete():
    main, startup, fetches = hardest()
    again = parse(str(main))
    assert str(again) == str(main)
    assert_trained(runs(again, startup, [v.name for v in fetches]))


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
def test_on_a_gpu(monkeypatch):
    gpu_stub.installed(monkeypatch)
    assert_trained(runs(*hardest(), mg.CUDAPlace(0)))


def test_ranks_of_data_parallel_training():
    main, startup, (loss, *_) = hardest()
    exe, scope = static.Executor(mg.CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    ranks = static.CompiledProgram(main).with_data_parallel(loss.name, places=static.cpu_places(2))
    exe.run(ranks, feed={"x": X[:2].repeat(2, 0), "k": np.array([2, 2], "int32")}, fetch_list=[loss], scope=scope)
    exe.close()
    single = Scope()
    exe.run(startup, scope=single)
    slopes = []
    for rows in (X[[0, 0]], X[[1, 1]]):
        single.write("w", np.full(6, 0.5))
        exe.run(main, feed={"x": rows, "k": np.array([2], "int32")}, scope=single)
        slopes.append(0.5 - single.read("w"))
    np.testing.assert_allclose(scope.read("w"), 0.5 - np.mean(slopes, 0), rtol=1e-12)


def test_a_test_program_and_an_inference_model(tmp_path):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x, k = static.data("x", [None, 6]), static.data("k", [], "int64")
        out = mg.sum(mg.topk(mg.square(x), k)[0], 1) * mg.create_parameter([1], "float64")
        test = main.clone(for_test=True)
        mg.optimizer.SGD(0.1).minimize(mg.mean(out))
    exe = static.Executor()
    exe.run(startup)
    static.save_inference_model(str(tmp_path / "model"), [x, k], [out], exe, program=main)
    loaded, feeds, fetches = static.load_inference_model(str(tmp_path / "model"), exe)
    assert feeds == ["x", "k"]
    for n in (1, 3):
        feed = {"x": X, "k": np.array(n)}
        (expected,) = exe.run(test, feed=feed, fetch_list=[out])
        assert expected.shape == (4,)
        np.testing.assert_array_equal(exe.run(loaded, feed=feed, fetch_list=fetches)[0], expected)


def test_random_numbers_in_a_shape_that_is_fed():
    n = static.data("n", [], "int64")
    a, b = mg.rand([n, 3]), mg.rand([n, 3])
    exe = static.Executor()
    found = [exe.run(feed={"n": np.array(4)}, fetch_list=[a, b]) for _ in range(2)]
    drawn = [v for values in found for v in values]
    assert all(v.shape == (4, 3) and (v >= 0).all() and (v < 1).all() for v in drawn)
    assert len({v.tobytes() for v in drawn}) == 4, "operators and runs draw other numbers"


def test_a_gradient_has_the_random_numbers_of_its_forward_call(monkeypatch):
    monkeypatch.setattr(deferred, "FUNCTIONS", dict(deferred.FUNCTIONS))
    monkeypatch.setattr(waiting_calls, "FUNCTIONS", deferred.FUNCTIONS)
    noisy = waiting_calls.waiting("n", "noisy")(lambda x, n: x[:n] * mg.rand([n, 6]))
    x, n = static.data("x", [4, 6]), static.data("n", [], "int64")
    x.stop_gradient = False
    out, other = noisy(x, n), noisy(x, n)
    slopes = static.gradients([mg.sum(out)], [x])
    values = static.Executor().run(feed={"x": X, "n": np.array(3)}, fetch_list=[out, other, *slopes])
    np.testing.assert_allclose(values[0], (X * values[2])[:3], rtol=1e-12)
    assert not np.allclose(values[0], values[1])


def test_turns_that_are_fed():
    x, k = static.data("x", [2, 3, 4]), static.data("k", [1], "int32")
    a, out, exe = np.arange(24.0).reshape(2, 3, 4), mg.rot90(x, k), static.Executor()
    assert out.shape == (-1, -1, 4)
    for n in (0, 1, 2, 3, -1, 6):
        (value,) = exe.run(feed={"x": a, "k": np.array([n], "int32")}, fetch_list=[out])
        np.testing.assert_array_equal(value, np.rot90(a, n))


@pytest.mark.parametrize(("mode", "kept", "tested"), [
    ("upscale_in_train", lambda p: 1 / (1 - p), lambda p: 1.0), ("downscale_in_infer", lambda p: 1.0, lambda p: 1 - p),
])  # fmt: skip
def test_a_rate_of_dropout_that_is_fed(mode, kept, tested):
    """A test program drops nothing, as where the rate is a number."""
    x, p = static.data("x", [40, 50]), static.data("p", [], "float64")
    x.stop_gradient = False
    out = mg.nn.functional.dropout(x, p, mode=mode)
    (slope,) = static.gradients([mg.sum(out)], [x])
    main, exe = static.default_main_program(), static.Executor()
    test = main.clone(for_test=True)
    again = parse(str(test))
    ones = np.ones((40, 50))
    for rate in (0.25, 0.75):
        feed = {"x": ones, "p": np.array(rate)}
        value, factor = exe.run(main, feed=feed, fetch_list=[out, slope])
        assert set(np.unique(value)) == {0.0, kept(rate)}
        assert abs((value == 0).mean() - rate) < 0.05
        np.testing.assert_array_equal(factor, value)
        for program in (test, again):
            (value,) = exe.run(program, feed=feed, fetch_list=[out.name])
            np.testing.assert_array_equal(value, ones * tested(rate))


def test_gradients_and_references_of_a_test_program_drop_nothing():
    x, p = static.data("x", [40, 50]), static.data("p", [], "float64")
    x.stop_gradient = False
    out = mg.nn.functional.dropout(x, p, mode="downscale_in_infer")
    test = static.default_main_program().clone(for_test=True)
    with static.program_guard(test):
        (slope,) = static.gradients([mg.sum(test.global_block().var(out.name))], [test.global_block().var("x")])
    ones, rate = np.ones((40, 50)), np.array(0.25)
    (value,) = static.Executor().run(test, feed={"x": ones, "p": rate}, fetch_list=[slope])
    np.testing.assert_array_equal(value, ones * 0.75)
    (op,) = (op for op in test.ops if op.type == "deferred")
    (value,) = op.opdef.reference([ones], [rate], **op.attrs)
    np.testing.assert_array_equal(value, ones * 0.75)


def test_a_rate_that_is_no_probability_is_refused_in_the_run():
    x, p = static.data("x", [4, 5]), static.data("p", [], "float64")
    out = mg.nn.functional.dropout(x, p)
    with pytest.raises(AttrError, match=r"p must lie in \[0, 1\], is 1.5"):
        static.Executor().run(feed={"x": np.ones((4, 5)), "p": np.array(1.5)}, fetch_list=[out])


@pytest.mark.parametrize("perm", [(2, 0, 1, 3), (3, 1, 2, 0), (0, 2, 1, 3)])
def test_no_order_of_axes_is_taken_for_all(perm):
    """Sizes that stay for most orders are not those of all."""
    x, p = static.data("x", [2, 2, 5, 2]), static.data("p", [4], "int64")
    a = np.arange(40.0).reshape(2, 2, 5, 2)
    (value,) = static.Executor().run(feed={"x": a, "p": np.array(perm)}, fetch_list=[mg.transpose(x, p)])
    np.testing.assert_array_equal(value, a.transpose(perm))


@pytest.mark.parametrize(("call", "numbers", "shape"), [
    (lambda x, n: mg.reshape(x, [n, 7, -1]), 11, (11, 7, 1)),
    (lambda x, n: mg.unflatten(x, 0, [n, -1]), 7, (7, 1, 11)),
    (lambda x, n: mg.reshape(x, n), (11, 1, 7), (11, 1, 7)),
    (lambda x, n: mg.unsqueeze(x, n), (1, 2, 4), (7, 1, 1, 11, 1)),
    (lambda x, n: mg.expand(mg.unsqueeze(x, 0), [n, -1, 11]), 5, (5, 7, 11)),
])  # fmt: skip
def test_sizes_that_no_trial_has(call, numbers, shape):
    numbers = np.array(numbers)
    x, n = static.data("x", [7, 11]), static.data("n", list(numbers.shape), "int64")
    out = call(x, n)
    a = np.arange(77.0).reshape(7, 11)
    (value,) = static.Executor().run(feed={"x": a, "n": numbers}, fetch_list=[out])
    assert value.shape == shape and (value.reshape(-1)[:77] == a.reshape(-1)).all()


def test_sizes_that_a_function_needs_to_know():
    """It is tried with two sizes in the place of each unknown one, so neither is declared."""
    x, places = static.data("x", [None, None, None]), mg.assign(np.array([1]))
    out = static.setitem(x, (places, places), 0.5)
    assert "deferred" in str(static.default_main_program()) and out.shape == (-1, -1, -1)
    for sizes in ((4, 7, 3), (2, 2, 2)):
        a = np.ones(sizes)
        (value,) = static.Executor().run(feed={"x": a}, fetch_list=[out])
        a[1, 1] = 0.5
        np.testing.assert_array_equal(value, a)


def test_a_result_that_was_not_declared_is_refused():
    n = static.data("n", [], "int64")
    out = mg.full([n, 2], 1.0)
    other = parse(str(static.default_main_program()).replace("f64[-1,2]", "f64[3,2]"))
    with pytest.raises(ShapeError, match=r"result 0 of full is f64\[4,2\] for these numbers, declared is f64\[3,2\]"):
        static.Executor().run(other, feed={"n": np.array(4)}, fetch_list=[out.name])


def test_the_default_data_type_is_that_of_the_call():
    n = static.data("n", [], "int64")
    out = mg.full([n, 2], 1.5)
    mg.set_default_dtype("float32")
    assert static.Executor().run(feed={"n": np.array(3)}, fetch_list=[out])[0].dtype == np.float64


def test_names_that_a_run_builds_do_not_count():
    n = static.data("n", [], "int64")
    out = mg.full([n], 1.0)
    static.Executor().run(feed={"n": np.array(3)}, fetch_list=[out])
    assert mg.full([2], 1.0).name == "fill_constant_0.tmp_0"


def test_a_loop_takes_a_longer_piece_in_each_round():
    x = static.data("x", [6])
    made = static.nn.while_loop(
        lambda i, s: i < 5, lambda i, s: [i + 1, s + mg.sum(x[:i])], [mg.full([], 1, "int64"), mg.zeros([])]
    )
    (total,) = static.Executor().run(feed={"x": X[0]}, fetch_list=[made[1]])
    np.testing.assert_allclose(total, sum(X[0, :i].sum() for i in range(1, 5)), rtol=1e-12)


def test_gradients_where_several_numbers_are_fed():
    main = static.Program()
    with static.program_guard(main):
        x, start, end = static.data("x", [4, 6]), static.data("start", [1], "int32"), static.data("end", [1], "int32")
        x.stop_gradient = False
        (grad,) = static.gradients(mg.sum(mg.square(x[:, start:end])), x)
    exe = static.Executor()
    for a, b in ((0, 2), (1, 6), (3, 3)):
        feed = {"x": X, "start": np.array([a], "int32"), "end": np.array([b], "int32")}
        wanted = np.zeros_like(X)
        wanted[:, a:b] = 2 * X[:, a:b]
        np.testing.assert_allclose(exe.run(main, feed, [grad])[0], wanted, rtol=0, atol=1e-12)


def test_the_sign_of_zero_is_part_of_a_number():
    main = static.Program()
    with static.program_guard(main):
        filled = mg.full([2], static.data("value", [1]))
    exe = static.Executor()
    for value in (-0.0, 0.0, -0.0, np.nan, 1.0):
        found = exe.run(main, {"value": np.array([value])}, [filled])[0]
        np.testing.assert_array_equal(np.signbit(found), np.signbit(value))
        np.testing.assert_array_equal(found, np.full(2, value))


def test_what_is_kept_for_many_numbers_is_bounded(monkeypatch):
    plans = []
    monkeypatch.setattr(waiting, "KEPT", 3)
    monkeypatch.setattr(ControlPlan, "_tell", lambda self: plans.append(self))
    x, n = static.data("x", [6]), static.data("n", [], "int64")
    out, exe = mg.sum(x[:n]), static.Executor()
    for k in (*range(1, 7), 2):
        (value,) = exe.run(feed={"x": X[0], "n": np.array(k)}, fetch_list=[out])
        np.testing.assert_allclose(value, X[0, :k].sum(), rtol=1e-12)
    (plan,) = set(plans)
    assert [len(blocks) for blocks in plan.waiting.blocks.values()] == [3]
    kept = {id(block) for blocks in plan.waiting.blocks.values() for block in blocks.values()}
    assert len(kept & plan.plans.keys()) == 3
    assert len(plan.plans) == 3 + 1, "the plan of a block goes with it"


def test_numbers_that_are_known_are_put_in():
    x = static.data("x", [2, 6])
    mg.topk(x, mg.assign(np.array([1])) + 1)
    assert "deferred" not in str(static.default_main_program())


def test_sizes_that_no_operator_takes_wait():
    x = static.data("x", [None, 6])
    out = mg.tile(mg.assign(X), [mg.shape(x)[0] - 1, 1])
    (value,) = static.Executor().run(feed={"x": X}, fetch_list=[out])
    np.testing.assert_array_equal(value, np.tile(X, [3, 1]))


@pytest.mark.parametrize(("call", "number", "error", "text"), [
    (lambda x, n: mg.topk(x, n)[0], 7, AttrError, "k 7 is not in [1, 6]"),
    (lambda x, n: mg.reshape(x, [n, -1]), 5, ShapeError, "5"),
    (lambda x, n: mg.sum(x, n), 4, ShapeError, "axis 4 is out of range for rank 2"),
])  # fmt: skip
def test_an_error_in_a_run_names_the_call_and_its_line(call, number, error, text):
    x, n = static.data("x", [4, 6]), static.data("n", [], "int64")
    out = call(x, n)
    with pytest.raises(error) as info:
        static.Executor().run(feed={"x": X, "n": np.array(number)}, fetch_list=[out])
    assert text in str(info.value)
    assert __file__.split("/")[-1] in str(info.value), "the user's line is missing"


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda x, n, v: mg.split(x, n), ProgramError, "split: how many results split has"),
    (lambda x, n, v: mg.reshape(x, v), ProgramError, "and only a run knows how many"),
    (lambda x, n, v: mg.concat([x, x], x), AttrError, "concat: x: f64[4,6] stands where a number"),
    (lambda x, n, v: mg.full(x, 1.0), AttrError, "full: x: f64[4,6] stands where a number is needed"),
    (lambda x, n, v: x[:n, object()], ProgramError, "an index is an int"),
    (lambda x, n, v: mg.reshape(x, [n, 5]), ShapeError, "24 elements"),
])  # fmt: skip
def test_refused(call, error, text):
    x, n, v = static.data("x", [4, 6]), static.data("n", [], "int64"), static.data("v", [None], "int64")
    before = str(static.default_main_program())
    with pytest.raises(error) as info:
        call(x, n, v)
    assert text in str(info.value)
    assert str(static.default_main_program()) == before, "nothing stays of what is refused"


def test_floats_are_no_sizes():
    x, n = static.data("x", [4, 6]), static.data("n", [])
    with pytest.raises(DTypeError, match=r"concat: axis takes ints, not n: f64\[\]"):
        mg.concat([x, x], n)


def test_arguments_that_are_no_list_are_refused():
    main = static.Program()
    with static.program_guard(main):
        n = static.data("n", [], "int64")
        out = mg.full([n], 1.0)
    for text in ("shape=open('x')", "f(", "shape=Number[3]", "Number[0]", "shape=[Number[0]", "shape=name"):
        other = parse(str(main).replace('shape=[Number[0]], fill_value=1.0', text.replace('"', "'")))
        with pytest.raises(AttrError, match="are no list such as"):
            static.Executor().run(other, feed={"n": np.array(1)}, fetch_list=[out.name])
