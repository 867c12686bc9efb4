"""Optimizers around optimizers: losses and weights run by run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import started


def network(p: Any) -> tuple[Any, Any]:
    """(loss, hidden value) of two layers without random numbers."""
    x, y = p.static.data("x", [None, 3]), p.static.data("y", [None, 1])
    half, third = (p.ParamAttr(initializer=p.nn.initializer.Constant(c)) for c in (0.5, 0.3))
    hidden = p.tanh(p.nn.Linear(3, 4, weight_attr=half)(x))
    return p.mean((p.nn.Linear(4, 1, weight_attr=third)(hidden) - y) ** 2), hidden


def curve(p: Any, loss: Any, runs: int) -> Any:
    """The loss of each run, and a weight after it."""
    exe, main = started(p), p.static.default_main_program()
    weight, found = main.all_parameters()[0], []
    for n in range(runs):
        x = np.sin(np.arange(12.0) + n).reshape(4, 3).astype("float32")
        feed = {"x": x, "y": x[:, :1] * 0.5}
        found.append([*exe.run(main, feed=feed, fetch_list=[loss]), np.array(weight.get_value())])
    return found


def merged_mean(paddle: Any) -> Any:
    loss, _ = network(paddle)
    paddle.incubate.optimizer.GradientMergeOptimizer(paddle.optimizer.SGD(0.5), k_steps=3).minimize(loss)
    return curve(paddle, loss, 7)


def merged_sum(paddle: Any) -> Any:
    loss, _ = network(paddle)
    adam = paddle.optimizer.Adam(0.1)
    paddle.incubate.optimizer.GradientMergeOptimizer(adam, k_steps=2, avg=False).minimize(loss)
    return curve(paddle, loss, 5)


def recomputed(paddle: Any) -> Any:
    loss, hidden = network(paddle)
    optimizer = paddle.incubate.optimizer.RecomputeOptimizer(paddle.optimizer.Adam(0.1))
    optimizer._set_checkpoints([hidden])
    optimizer.minimize(loss)
    return curve(paddle, loss, 4)


def look_ahead(paddle: Any) -> Any:
    loss, _ = network(paddle)
    paddle.incubate.LookAhead(paddle.optimizer.Momentum(0.3, 0.9), alpha=0.4, k=3).minimize(loss)
    return curve(paddle, loss, 8)
