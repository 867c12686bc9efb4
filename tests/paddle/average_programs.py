"""Averages of parameters beside training."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import started


def kept_and_restored(average: Any, exe: Any, w: Any) -> list[np.ndarray]:
    """w behind a block that leaves the average there, and after it is brought back."""
    with average.apply(exe, need_restore=False):
        pass
    kept = np.array(w.get_value())
    average.restore(exe)
    return [kept, np.array(w.get_value())]


def averages(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 2])
    one = paddle.nn.initializer.Constant(1.0)
    w = paddle.create_parameter([2, 1], "float32", name="w", default_initializer=one)
    loss = paddle.mean(paddle.matmul(x, w))
    test = paddle.static.default_main_program().clone(for_test=True)
    paddle.optimizer.SGD(0.5).minimize(loss)
    ema = paddle.static.ExponentialMovingAverage(0.75)
    ema.update()
    exe, found = started(paddle), []
    feed = {"x": np.array([[1, 2], [3, -4]], "float32")}
    for _ in range(4):
        exe.run(feed=feed, fetch_list=[loss])
        with ema.apply(exe):
            found.append((np.array(w.get_value()), exe.run(test, feed=feed, fetch_list=[loss])))
        found.append(np.array(w.get_value()))
    return [*found, *kept_and_restored(ema, exe, w)]


def model_average(paddle: Any) -> Any:
    """A window of 2 to 4 updates that is full twice."""
    x = paddle.static.data("x", [None, 2])
    w = paddle.create_parameter([2, 1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    loss = paddle.mean(paddle.square(paddle.matmul(x, w)))
    paddle.optimizer.SGD(0.1).minimize(loss)
    average = paddle.incubate.ModelAverage(0.5, min_average_window=2, max_average_window=4)
    exe, found = started(paddle), []
    feed = {"x": np.array([[1, 2], [3, -4]], "float32")}
    for _ in range(11):
        exe.run(feed=feed, fetch_list=[loss])
        with average.apply(exe):
            found.append(np.array(w.get_value()))
    return [*found, *kept_and_restored(average, exe, w)]
