"""Learning-rate schedules, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.paddle.programs import raised


def rates(schedule: Any, count: int = 14) -> list[float]:
    found = []
    for _ in range(count):
        found.append(float(schedule()))
        schedule.step()
    return found


def products(paddle: Any) -> Any:
    return rates(paddle.optimizer.lr.MultiplicativeDecay(0.5, lambda epoch: 0.95 - 0.01 * epoch))


def one_cycle(paddle: Any) -> Any:
    cycle: Callable[..., Any] = paddle.optimizer.lr.OneCycleLR
    return [
        [*rates(one := cycle(1.0, 12), 12), one()], rates(cycle(0.5, 12, 10.0, 0.001, 0.4, "linear"), 11),
        rates(line := cycle(0.5, 12, 10.0, 0.2, 0.4, "linear"), 12), line(),
        rates(cycle(1.0, 12, phase_pct=0.25, three_phase=True), 12), raised(lambda: rates(cycle(1.0, 4), 9)),
        raised(lambda: cycle(1.0, 12, phase_pct=0.6, three_phase=True)), raised(lambda: cycle(1.0, 12, phase_pct=2.0)),
        raised(lambda: cycle(1.0, 12, anneal_strategy="none")), raised(lambda: cycle(1.0, 0)),
        raised(lambda: cycle("1", 12)),
    ]  # fmt: skip


def cyclic(paddle: Any) -> Any:
    cycle: Callable[..., Any] = paddle.optimizer.lr.CyclicLR
    return [
        rates(cycle(0.1, 1.0, 3)), rates(cycle(0.1, 1.0, 3, 2, mode="triangular2")),
        rates(cycle(0.1, 1.0, 3, mode="exp_range", exp_gamma=0.9)),
        rates(cycle(0.1, 1.0, 3, scale_fn=lambda n: 1 / (1 + n), scale_mode="iterations")),
        raised(lambda: cycle(0.1, 1.0, 0)), raised(lambda: cycle(0.1, 1.0, 3, mode="none")),
    ]  # fmt: skip


def linear(paddle: Any) -> Any:
    schedule: Callable[..., Any] = paddle.optimizer.lr.LinearLR
    return [
        rates(schedule(0.3, 5)), rates(schedule(0.3, 5, 0.5, 0.25)), raised(lambda: schedule(0.3, 5, 2.0)),
        raised(lambda: schedule(0.3, 5, 0.5, 2.0)), raised(lambda: schedule(0.3, 0)),
    ]  # fmt: skip


def warm_restarts(paddle: Any) -> Any:
    schedule: Callable[..., Any] = paddle.optimizer.lr.CosineAnnealingWarmRestarts
    return [
        rates(schedule(0.5, 3)), rates(schedule(0.5, 2, 2, 0.1)), raised(lambda: schedule(0.5, 0)),
        raised(lambda: schedule(0.5, 2, 0)),
    ]  # fmt: skip


def plateau(paddle: Any) -> Any:
    schedule: Callable[..., Any] = paddle.optimizer.lr.ReduceOnPlateau
    losses = [1.0, 0.9, 0.91, 0.92, 0.93, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]

    def followed(**settings: Any) -> list[float]:
        s, found = schedule(1.0, **settings), []
        for loss in losses:
            s.step(loss)
            found.append(float(s()))
        return found

    return [
        followed(patience=1, factor=0.5), followed(patience=1, factor=0.5, cooldown=2),
        followed(patience=0, factor=0.1, min_lr=0.05), followed(mode="max", patience=2, threshold_mode="abs"),
        followed(patience=1, threshold=0.2, factor=0.5, epsilon=0.2), raised(lambda: schedule(1.0, mode="none")),
        raised(lambda: schedule(1.0, factor=1.0)), raised(lambda: schedule(1.0, threshold_mode="none")),
        raised(lambda: schedule(1)), raised(lambda: schedule(1.0).step("x")),
    ]  # fmt: skip
