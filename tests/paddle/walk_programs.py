"""Calls beside the ordinary ones: sizes of a run, numbers of rank 0, ties, indices beside slices, two float types."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.cases import Case, Gradients
from tests.paddle.programs import run, started

X, Y = np.array([1.0, 2.0, 3.0], "float32"), np.array([1.0, 3.0, 2.0], "float32")
CUBE = np.sin(np.arange(36.0)).astype("float32").reshape(3, 3, 4)
FIRST, SECOND = np.array([1, 0]), np.array([3, 1])
ZERO_D = np.float32(0.7).reshape(())


def sizes_of_a_run(paddle: Any) -> Any:
    x, v, shift = paddle.static.data("x", [None, 3]), paddle.full([3], 2.0), paddle.static.data("shift", [1], "int64")
    n = paddle.shape(x)[0]
    made = [
        paddle.rand([n, 2]) * 0, paddle.randn([n, 2]) * 0, paddle.normal(0.0, 1.0, [n, 2]) * 0,
        paddle.randint(0, 1, [n, 2]), paddle.tile(paddle.unsqueeze(v, 0), [n, 2]),
        paddle.broadcast_to(v, paddle.shape(x)), paddle.roll(x, 1, 0), paddle.roll(x, [5, -1], [0, 1]),
        paddle.roll(x, shift, 1), paddle.to_tensor([v[0], v[1]]),
    ]  # fmt: skip
    value = np.arange(12, dtype="float32").reshape(4, 3)
    return run(paddle, made, x=value, shift=np.array([2]))


def two_float_types(paddle: Any) -> Any:
    x, wide = paddle.static.data("x", [3]), paddle.full([3], 2.0, "float64")
    constant = paddle.assign(np.array([0.1, 0.2, 0.3]))
    return run(paddle, [x + wide, wide - x, x < wide, x + constant, constant], x=X)


def while_block(paddle: Any) -> Any:
    i, n, total = paddle.full([1], 0, "int64"), paddle.full([1], 10, "int64"), paddle.ones([2])
    going = paddle.less_than(i, n)
    with paddle.static.nn.control_flow.While(cond=going).block():
        paddle.assign(total + paddle.cast(i, "float32"), total)
        paddle.increment(i, 2)
        paddle.assign(paddle.less_than(i, n), going)
    return started(paddle).run(fetch_list=[i, total, going, total * 2])


def values_of_a_state(paddle: Any) -> Any:
    x = paddle.static.data("x", [1, 2])
    out = paddle.static.nn.fc(x, 1, bias_attr=False)
    exe = started(paddle)
    (value,) = paddle.static.default_main_program().state_dict().values()
    value.set(np.array([[2.0], [3.0]], "float32"), paddle.CPUPlace())
    return np.array(value), exe.run(feed={"x": np.ones((1, 2), "float32")}, fetch_list=[out])


CASES = {
    **{name: Gradients(call, (X, Y)) for name, call in {
        "maximum": lambda p, x, y: p.maximum(x, y), "minimum": lambda p, x, y: p.minimum(x, y),
        "fmax": lambda p, x, y: p.fmax(x, y), "fmin": lambda p, x, y: p.fmin(x, y),
        "clip": lambda p, x, y: p.clip(x, 1.0, 2.0) * y,
        "leaky_relu": lambda p, x, y: p.nn.functional.leaky_relu(x - 2) * y,
        "softshrink": lambda p, x, y: p.nn.functional.softshrink(x, 2.0) * y,
    }.items()},
    **{f"index {n}": Gradients(call, (CUBE, FIRST, SECOND)) for n, call in enumerate((
        lambda p, x, i, j: x[:, i, 0], lambda p, x, i, j: x[i, :, j], lambda p, x, i, j: x[:, i, j],
        lambda p, x, i, j: x[1:, i, j], lambda p, x, i, j: x[i, :, 0],
    ))},
    **{f"scalar {n}": Gradients(call, (ZERO_D,)) for n, call in enumerate((
        lambda p, x: p.sort(x), lambda p, x: p.topk(x, 1)[0], lambda p, x: p.cumsum(x, 0), lambda p, x: p.max(x, -1),
        lambda p, x: p.sum(x, 0, keepdim=True), lambda p, x: p.nn.functional.softmax(x), lambda p, x: p.cumprod(x, 0),
    ))},
    "places in a scalar": Case(
        lambda p, x: [p.argsort(x), p.argmax(x, 0), p.kthvalue(x, 1)[1], p.all(x > 0, 0)], (ZERO_D,)
    ),
}  # fmt: skip
