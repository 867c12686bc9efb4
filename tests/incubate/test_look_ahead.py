"""LookAhead inside other optimizers: its slow weights step with the updates, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.incubate.optimizer import GradientMergeOptimizer, LookAhead, RecomputeOptimizer
from minigraph.static.amp import decorate

RATE, ALPHA, K = 0.1, 0.25, 2
START = np.array([[0.5], [-1.0], [2.0]])


def recomputed(optimizer: Any, hidden: Any) -> Any:
    outer = RecomputeOptimizer(optimizer)
    outer._set_checkpoints([hidden])
    return outer


def applied(optimizer: Any, hidden: Any) -> Any:
    """`backward` and `apply_gradients` in the place of `minimize`."""
    look = LookAhead(optimizer, ALPHA, K)

    class Applied:
        def minimize(self, loss: Any) -> None:
            look.apply_gradients(look.backward(loss))

    return Applied()


def ahead(optimizer: Any) -> LookAhead:
    return LookAhead(optimizer, ALPHA, K)


MADE: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {  # how many runs make an update, and how
    "alone": (1, lambda sgd, _: ahead(sgd)), "applied": (1, applied),
    "merged": (2, lambda sgd, _: GradientMergeOptimizer(ahead(sgd), 2)),
    "scaled": (1, lambda sgd, _: decorate(ahead(sgd), init_loss_scaling=8.0)),
    "computed again": (1, lambda sgd, hidden: recomputed(ahead(sgd), hidden)),
    "merged and scaled": (2, lambda sgd, _: GradientMergeOptimizer(decorate(ahead(sgd), init_loss_scaling=8.0), 2)),
}


class World:
    """mean((x @ w) ** 2) in float64."""

    def __init__(self, made: Callable[[Any, Any], Any]) -> None:
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        with static.program_guard(self.main, startup), mg.utils.unique_name.guard():
            w = static.create_parameter(
                [3, 1], "float64", name="w", default_initializer=mg.nn.initializer.Assign(START)
            )
            hidden = mg.matmul(static.data("x", [None, 3], "float64"), w)
            made(mg.optimizer.SGD(RATE), hidden).minimize(mg.mean(mg.square(hidden)))
        self.exe = static.Executor(mg.CPUPlace())
        self.exe.run(startup, scope=self.scope)

    def step(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            self.exe.run(self.main, {"x": x}, scope=self.scope)
        return self.scope.read("w")


def batches() -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(size=(8, 4, 3)))


@pytest.mark.parametrize("name", MADE)
def test_slow_weights_step_with_the_updates(name: str):
    runs, made = MADE[name]
    world = World(made)
    fast, slow, count, gradient = START.copy(), START, 0, np.zeros_like(START)
    for i, x in enumerate(batches(), 1):
        gradient = gradient + 2 * x.T @ (x @ fast) / len(x) / runs
        if i % runs == 0:
            fast, gradient, count = fast - RATE * gradient, np.zeros_like(fast), count + 1
            slow = fast if count == 1 else slow
            if count % K == 0:
                fast = slow = ALPHA * fast + (1 - ALPHA) * slow
        np.testing.assert_allclose(world.step(x), fast, rtol=1e-4 if "scaled" in name else 1e-12, err_msg=f"run {i}")


def test_a_step_that_overflows_leaves_no_trace():
    first, *others = batches()
    world, other = (World(lambda sgd, _: decorate(ahead(sgd), init_loss_scaling=8.0)) for _ in "ab")
    world.step(first)
    other.step(first)
    world.step(np.full_like(first, np.inf))
    for x in others:
        np.testing.assert_allclose(world.step(x), other.step(x), rtol=1e-4)
    counted = [w.scope.read("lookahead_step_0") for w in (world, other)]
    assert counted[0] == counted[1] == len(batches())


def test_a_refusal_leaves_an_optimizer_and_what_it_wraps_as_they_were():
    """The gradients were there already, and the checkpoints taken, when the clipping refused."""
    with static.program_guard(static.Program(), static.Program()):
        hidden = mg.nn.Linear(3, 2)(static.data("x", [None, 3]))
        sgd = mg.optimizer.SGD(RATE, grad_clip=lambda pairs: 1 / 0)
        for outer in (RecomputeOptimizer(sgd), GradientMergeOptimizer(RecomputeOptimizer(sgd), 2)):
            inner = getattr(outer, "inner_optimizer", outer)
            inner._set_checkpoints([hidden])
            with pytest.raises(ZeroDivisionError):
                outer.minimize(mg.mean(hidden))
            inner._set_checkpoints([hidden])
        sgd.grad_clip = None
        assert outer.minimize(mg.mean(hidden))


def test_an_interrupt_behind_the_updates_leaves_the_optimizer_free(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with static.program_guard(static.Program(), static.Program()):
        loss, look = mg.mean(mg.nn.Linear(3, 2)(static.data("x", [None, 3]))), ahead(mg.optimizer.SGD(RATE))
        with monkeypatch.context() as patch:
            patch.setattr(LookAhead, "_append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                look.minimize(loss)
        look.inner_optimizer.grad_clip, look.k = None, 3
        assert look.minimize(loss)
