"""GradientMergeOptimizer: k runs with parts of a batch are one run with all of it."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, ProgramError
from minigraph.incubate.optimizer import GradientMergeOptimizer, RecomputeOptimizer
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram

pytestmark = pytest.mark.usefixtures("in_float64")

OPTIMIZERS = {
    "sgd": lambda: mg.optimizer.SGD(0.1, weight_decay=0.01),
    "adamw": lambda: mg.optimizer.AdamW(1e-2, grad_clip=mg.nn.ClipGradByGlobalNorm(0.05)),
    "momentum": lambda: mg.optimizer.Momentum(0.1, grad_clip=mg.nn.ClipGradByNorm(0.02)),
}


def network(optimizer, dtype="float64"):
    """(program, startup, loss, optimizer) of two layers, trained by what `optimizer(loss)` returns."""
    main, startup = mg.static.Program(), mg.static.Program()
    startup.random_seed = 3
    with mg.static.program_guard(main, startup), mg.utils.unique_name.guard():
        mg.set_default_dtype(dtype)
        x, y = mg.static.data("x", [None, 6], dtype), mg.static.data("y", [None, 1], dtype)
        h = mg.tanh(mg.nn.Linear(6, 8)(x))
        loss = mg.mean((mg.nn.Linear(8, 1)(h) - y) ** 2)
        made = optimizer(h)
        made.minimize(loss)
    return main, startup, loss, made


def batches(count, rows):
    rng = np.random.default_rng(4)
    return [(rng.normal(size=(rows, 6)), rng.normal(size=(rows, 1))) for _ in range(count)]


def trained(made, runs, compiled=False, places=None):
    """(losses, parameters after each run)."""
    main, startup, loss, _ = made
    exe, scope = Executor(mg.CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    program = CompiledProgram(main, BuildStrategy.all()) if compiled else main
    losses, weights = [], []
    for x, y in runs:
        dtype = loss.dtype
        feed = {"x": x.astype(dtype), "y": y.astype(dtype)}
        losses.append(float(exe.run(program, feed, [loss], scope=scope)[0]))
        weights.append([scope.read(p.name) for p in main.all_parameters()])
    return losses, weights


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("compiled", [False, True])
def test_parts_of_a_batch_are_the_whole_batch(name, compiled):
    k, whole = 4, batches(5, 12)
    parts = [(x[i : i + 3], y[i : i + 3]) for x, y in whole for i in range(0, 12, 3)]
    exact, weights = trained(network(lambda h: OPTIMIZERS[name]()), whole)
    found, merged = trained(network(lambda h: GradientMergeOptimizer(OPTIMIZERS[name](), k)), parts, compiled)
    np.testing.assert_allclose(np.mean(np.reshape(found, (5, k)), axis=1), exact, rtol=1e-12)
    for step in range(5):
        for a, b in zip(weights[step], merged[k * step + k - 1], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-14)
    first = merged[0]
    assert all(np.array_equal(a, b) for run in merged[1 : k - 1] for a, b in zip(first, run, strict=True))
    assert not np.array_equal(merged[k - 1][0], first[0])


def test_a_sum_instead_of_a_mean():
    runs = batches(6, 4)
    _, mean = trained(network(lambda h: GradientMergeOptimizer(mg.optimizer.SGD(0.3), 3)), runs)
    _, total = trained(network(lambda h: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 3, avg=False)), runs)
    for a, b in zip(mean[-1], total[-1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_one_run_is_no_merge():
    runs = batches(3, 4)
    plain, _ = trained(network(lambda h: mg.optimizer.Adam(1e-2)), runs)
    merged, _ = trained(network(lambda h: GradientMergeOptimizer(mg.optimizer.Adam(1e-2))), runs)
    assert plain == merged


def test_with_checkpoints():
    def wrapped(h):
        inner = RecomputeOptimizer(mg.optimizer.Adam(1e-2))
        inner._set_checkpoints([h])
        return GradientMergeOptimizer(inner, 2)

    runs = batches(4, 4)
    again = network(wrapped)
    assert again[3].get_lr() == 1e-2
    plain = network(lambda h: GradientMergeOptimizer(mg.optimizer.Adam(1e-2), 2))
    assert trained(again, runs)[0] == trained(plain, runs)[0]


def test_sixteen_bits_are_added_up_in_float32():
    made = network(lambda h: GradientMergeOptimizer(mg.optimizer.SGD(0.1, multi_precision=True), 64), "float16")
    main = made[0]
    sums = [v for v in main.list_vars() if "GradientMerge" in v.name and v.persistable]
    assert {v.dtype for v in sums} == {np.dtype("float32")}
    x, y = np.full((2, 6), 0.01), np.full((2, 1), 1.0)
    _, weights = trained(made, [(x, y)] * 64)
    exact = network(lambda h: mg.optimizer.SGD(0.1, multi_precision=True), "float16")
    _, once = trained(exact, [(x, y)])
    for a, b in zip(weights[-1], once[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gradient_that_overflows_is_forgotten_after_its_update():
    made = network(lambda h: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2))
    x, y = batches(1, 4)[0]
    bad = np.full_like(y, np.inf)
    main, startup, loss, _ = made
    exe, scope = Executor(mg.CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    first = {p.name: scope.read(p.name) for p in main.all_parameters()}
    exe.run(main, {"x": x, "y": bad}, [loss], scope=scope)
    exe.run(main, {"x": x, "y": y}, [loss], scope=scope)
    for name, value in first.items():
        scope.take(name, value)
    for _ in range(2):
        exe.run(main, {"x": x, "y": y}, [loss], scope=scope)
    assert all(np.isfinite(scope.read(p.name)).all() for p in main.all_parameters())


def test_a_flag_of_the_user_skips_too():
    def flagged(h):
        skip = mg.static.data("skip", [1], "bool")
        inner = mg.optimizer.SGD(0.1)
        inner._set_auxiliary_var("found_inf", skip)
        return GradientMergeOptimizer(inner, 1)

    main, startup, loss, made = network(flagged)
    assert made.inner_optimizer._auxiliary_vars["found_inf"].name == "skip"
    exe, scope = Executor(mg.CPUPlace()), Scope()
    exe.run(startup, scope=scope)
    x, y = batches(1, 4)[0]
    name = main.all_parameters()[0].name
    start = scope.read(name)
    exe.run(main, {"x": x, "y": y, "skip": np.array([True])}, [loss], scope=scope)
    assert np.array_equal(scope.read(name), start)
    exe.run(main, {"x": x, "y": y, "skip": np.array([False])}, [loss], scope=scope)
    assert not np.array_equal(scope.read(name), start)


def test_a_saved_state_goes_on_in_the_middle(tmp_path):
    main, startup, loss, _ = network(lambda h: GradientMergeOptimizer(OPTIMIZERS["adamw"](), 3))
    runs = [{"x": x, "y": y} for x, y in batches(6, 4)]
    exe, scope, other = Executor(mg.CPUPlace()), Scope(), Scope()
    exe.run(startup, scope=scope)
    first = [exe.run(main, feed, [loss], scope=scope) for feed in runs[:2]]
    with mg.static.scope_guard(scope):
        mg.static.save(main, str(tmp_path / "half"))
    expected = [exe.run(main, feed, [loss], scope=scope)[0] for feed in runs[2:]]
    with mg.static.scope_guard(other):
        mg.static.load(main, str(tmp_path / "half"))
        found = [exe.run(main, feed, [loss])[0] for feed in runs[2:]]
    assert len(first) == 2
    assert found == expected


@pytest.mark.parametrize(
    ("make", "error", "fact"),
    [
        (lambda: GradientMergeOptimizer("adam", 2), ProgramError, "made of an optimizer of mg.optimizer"),
        (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 0), AttrError, "k_steps must be a positive int"),
        (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 1.5), AttrError, "k_steps must be a positive int"),
        (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2, avg="no"), AttrError, "avg must be a bool"),
        (lambda: GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2).apply_gradients([]), ProgramError, "no gradient"),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, fact):
    with pytest.raises(error, match=fact):
        make()


def test_a_refusal_leaves_both_programs_as_they_were():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        loss = mg.mean(mg.nn.Linear(2, 2)(mg.static.data("x", [2, 2])))
        optimizer = GradientMergeOptimizer(mg.optimizer.SGD(0.1), 2)
        before = dump(main), dump(startup)
        optimizer.inner_optimizer.grad_clip = lambda pairs: 1 / 0
        with pytest.raises(ZeroDivisionError):
            optimizer.minimize(loss)
        assert (dump(main), dump(startup)) == before
        optimizer.inner_optimizer.grad_clip = None
        optimizer.minimize(loss)
