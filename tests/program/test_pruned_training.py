"""A pruned run steps what goes with its updates: loss scales, counters of runs, slow weights, running averages."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.incubate.optimizer import GradientMergeOptimizer, LookAhead
from minigraph.program import unique_name
from minigraph.program.scope import Scope
from tests.support.grades import graded

RUNS = 6


def momentum():
    return mg.optimizer.Momentum(0.1)


def scaled(optimizer, level, scale):
    """With a loss scale that overflows at first, or that grows."""
    return static.amp.decorate(
        optimizer, level=level, dtype="float16", init_loss_scaling=scale, incr_every_n_steps=2,
        decr_every_n_nan_or_inf=1,
    )  # fmt: skip


OPTIMIZERS = {
    "momentum": momentum,
    "merged": lambda: GradientMergeOptimizer(momentum(), 2),
    "look ahead": lambda: LookAhead(momentum(), alpha=0.5, k=2),
    "overflow": lambda: scaled(momentum(), "O1", 2.0**24),
    "overflow O2": lambda: scaled(mg.optimizer.AdamW(0.1), "O2", 2.0**24),
    "growing": lambda: scaled(mg.optimizer.AdamW(0.1), "O2", 1.0),
    "merged overflow": lambda: GradientMergeOptimizer(scaled(momentum(), "O1", 2.0**24), 2),
    "look ahead in 16 bits": lambda: LookAhead(scaled(momentum(), "O2", 4.0), alpha=0.5, k=2),
    "counted rate": lambda: mg.optimizer.SGD(mg.optimizer.lr.noam_decay(16, 2, 1.0)),
}


def trained(name, fetches, compiled=False, prune=False):
    """All states after some runs with this fetch_list of loss and of what minimize returned."""
    main, startup, scope = static.Program(), static.Program(), Scope()
    main.random_seed = startup.random_seed = 5
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [4, 3])
        h = nn.functional.relu(nn.BatchNorm1D(4)(nn.Linear(3, 4)(x)))
        loss = mg.mean(mg.square(nn.Linear(4, 1)(h) - 1.0))
        minimized = OPTIMIZERS[name]().minimize(loss)
    exe = static.Executor()
    exe.run(startup, scope=scope)
    program = static.CompiledProgram(main, static.BuildStrategy.all()) if compiled else main
    for i in range(RUNS):
        feed = {"x": np.random.default_rng(i).normal(size=(4, 3)).astype("float32")}
        exe.run(program, feed, fetches(loss, minimized), scope=scope, use_prune=prune)
    return {n: np.array(a) for n, a in main.state_dict(scope=scope).items()}


CASES = [(name, compiled) for name in OPTIMIZERS for compiled in (False, True)]


@pytest.mark.parametrize(("name", "compiled"), graded(CASES, now=lambda name, compiled: not compiled))
def test_pruned_runs_train_as_whole_ones_do(name, compiled):
    whole = trained(name, lambda loss, _: [loss], compiled)
    for fetches, prune in ((lambda loss, minimized: [loss, minimized], False), (lambda loss, _: [loss], True)):
        pruned = trained(name, fetches, compiled, prune)
        assert whole.keys() == pruned.keys()
        for state, value in whole.items():
            np.testing.assert_array_equal(pruned[state], value, err_msg=state)
    start = trained(name, lambda loss, _: [loss.block.program.all_parameters()[0]], prune=False)
    assert any("w_1" in state for state in start)


def test_they_would_stand_still(monkeypatch):
    """A planted defect: what is beside the updates is left out."""
    monkeypatch.setattr("minigraph.program.prune._beside", lambda ops, kept: set())
    for name, state in (("merged", "gradient_merge_step_0"), ("overflow", "loss_scaling_0"),
                        ("momentum", "batch_norm1d_0.w_1")):  # fmt: skip
        whole, pruned = (
            trained(name, fetches) for fetches in (lambda loss, _: [loss], lambda loss, minimized: [loss, minimized])
        )
        moved = [n for n in whole if not np.array_equal(whole[n], pruned[n])]
        assert state in moved or name == "merged", moved
        assert moved


def test_one_update_takes_its_counter_along_and_no_other_update():
    main, startup, scope = static.Program(), static.Program(), Scope()
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [4, 3])
        loss = mg.mean(mg.square(nn.Linear(3, 1)(x)))
        updates, pairs = GradientMergeOptimizer(momentum(), 2).minimize(loss)
    exe = static.Executor()
    exe.run(startup, scope=scope)
    before = {p.name: np.array(scope.read(p.name)) for p, _ in pairs}
    for _ in range(2):
        exe.run(main, {"x": np.ones((4, 3), "float32")}, [loss, [updates[0]]], scope=scope)
    moved = [n for n, value in before.items() if not np.array_equal(scope.read(n), value)]
    assert moved == [updates[0].inputs["Param"][0].name]


def test_a_value_alone_steps_nothing():
    main, startup, scope = static.Program(), static.Program(), Scope()
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [4, 3])
        norm = nn.BatchNorm1D(3)
        y = norm(x)
        inference = static.normalize_program(main, [x], [y])
    assert "running_average" not in [op.type for op in inference.ops]
    exe = static.Executor()
    exe.run(startup, scope=scope)
    exe.run(main, {"x": np.ones((4, 3), "float32")}, [y], scope=scope, use_prune=True)
    assert np.all(scope.read(norm._mean.name) > 0)


@pytest.mark.parametrize("trains", [True, False])
def test_an_average_of_batches_that_are_not_computed_stays(trains: bool):
    """A generator trains with what a discriminator gives for its own batch; the real one is not fed."""
    main, startup, scope = static.Program(), static.Program(), Scope()
    with static.program_guard(main, startup), unique_name.guard():
        z, real, norm = static.data("z", [None, 3]), static.data("real", [None, 3]), nn.BatchNorm1D(3)
        hidden = nn.Linear(3, 3)(z)
        loss, other = mg.mean(mg.square(norm(hidden) - 1.0)), mg.mean(norm(real))
        minimized = mg.optimizer.SGD(0.1).minimize(loss) if trains else None
    exe, batch = static.Executor(), np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    exe.run(startup, scope=scope)
    values = exe.run(main, {"z": batch}, [loss, hidden, *[minimized][:trains]], scope=scope, use_prune=not trains)
    expected = values[1].astype("float64").mean(0) * (1 - 0.9)
    np.testing.assert_allclose(scope.read(norm._mean.name), expected, rtol=1e-5, atol=1e-7)
    feed = {"z": batch, "real": np.ones((4, 3), "float32")}
    values = exe.run(main, feed, [loss, hidden, other, *[minimized][:trains]], scope=scope, use_prune=not trains)
    both = (expected * 0.9 + values[1].astype("float64").mean(0) * 0.1) * 0.9 + 0.1
    np.testing.assert_allclose(scope.read(norm._mean.name), both, rtol=1e-5)
