"""Branches and loops in training: gradients of the branch that ran, results in lists, loops that end by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.model_programs import drawn
from tests.paddle.programs import filled, started


def number(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array([value], dtype)


def trained_in_two_branches(paddle: Any) -> Any:
    x, which = paddle.static.data("x", [None, 3]), paddle.static.data("which", [1])
    w = paddle.create_parameter([3, 2], "float32", name="w")
    y = paddle.matmul(x, w)
    out = paddle.static.nn.cond(paddle.mean(which) > 0, lambda: y * 2.0, lambda: paddle.tanh(y) - which)
    loss = paddle.mean(out * out)
    paddle.optimizer.SGD(0.2).minimize(loss)
    exe = filled(paddle)
    feeds = [{"x": drawn(4, 3), "which": number(v)} for v in (1, -1, 1, -2, -1)]
    return [exe.run(feed=feed, fetch_list=[loss, out, "w@GRAD"]) for feed in feeds]


def results_in_lists(paddle: Any) -> Any:
    a, b = paddle.static.data("a", [1]), paddle.static.data("b", [1])
    first, (second, third) = paddle.static.nn.cond(
        a < b,
        lambda: [a + 1, (b * 2, paddle.full([2], 1, "int64"))],
        lambda: [a - 1, (b / 2, paddle.full([2], 5, "int64"))],
    )
    exe = started(paddle)
    feeds = [{"a": number(x), "b": number(y)} for x, y in ((1, 2), (2, 1))]
    return [exe.run(feed=feed, fetch_list=[first, second, third]) for feed in feeds]


def a_branch_in_a_branch(paddle: Any) -> Any:
    x, cond = paddle.static.data("x", []), paddle.static.nn.cond
    x.stop_gradient = False
    out = cond(
        x > 0,
        lambda: cond(x > 1, lambda: x * x, lambda: x * 3),
        lambda: cond(x < -1, lambda: x**3, lambda: -x),
    )
    grads, exe = paddle.static.gradients(out, x), started(paddle)
    return [exe.run(feed={"x": np.float32(v).reshape(())}, fetch_list=[out, *grads]) for v in (2, 0.5, -0.5, -2)]


def trained_through_a_loop(paddle: Any) -> Any:
    x, w = paddle.static.data("x", [4, 2, 3]), paddle.create_parameter([3, 3], "float32", name="w")
    i, steps, h = paddle.zeros([1], "int64"), paddle.full([1], 4, "int64"), paddle.zeros([2, 3])
    h.stop_gradient = False

    def body(i: Any, h: Any) -> Any:
        return i + 1, paddle.tanh(paddle.matmul(h, w) + paddle.squeeze(paddle.gather(x, i, axis=0), 0))

    _, out = paddle.static.nn.while_loop(lambda i, h: i < steps, body, (i, h))
    loss = paddle.mean(out * out)
    paddle.optimizer.SGD(0.5).minimize(loss)
    exe = filled(paddle)
    return [exe.run(feed={"x": drawn(4, 2, 3)}, fetch_list=[loss, out]) for _ in range(4)]


def steps_to_one(paddle: Any) -> Any:
    """Half of an even number, three times an odd one and one more, until it is 1."""
    n = paddle.static.data("n", [1], "int64")

    def body(n: Any, count: Any) -> Any:
        return paddle.static.nn.cond(paddle.equal(n % 2, 0), lambda: n // 2, lambda: n * 3 + 1), count + 1

    zero = paddle.zeros([1], "int64")
    going = lambda n, count: paddle.not_equal(n, paddle.ones_like(n))  # noqa: E731
    _, count = paddle.static.nn.while_loop(going, body, [n, zero])
    exe = started(paddle)
    return [exe.run(feed={"n": number(k, "int64")}, fetch_list=[count]) for k in (1, 6, 27)]


def powers_of_a_matrix(paddle: Any) -> Any:
    a, n = paddle.static.data("a", [2, 2]), paddle.static.data("n", [1], "int64")

    def body(i: Any, p: Any, total: Any) -> Any:
        return [i + 1, paddle.matmul(p, a), total + paddle.sum(p)]

    first = [paddle.full([1], 0, "int64"), paddle.eye(2), paddle.zeros([])]
    made = paddle.static.nn.while_loop(lambda i, p, total: i < n, body, first)
    exe = started(paddle)
    return [exe.run(feed={"n": number(k, "int64"), "a": drawn(2, 2)}, fetch_list=list(made)) for k in (0, 1, 5)]


def square_root(paddle: Any) -> Any:
    a = paddle.static.data("a", [1])
    made = paddle.static.nn.while_loop(
        lambda x, k: paddle.logical_and(paddle.abs(x * x - a) > 1e-4, k < 50),
        lambda x, k: [(x + a / x) / 2, k + 1], [paddle.ones([1]), paddle.zeros([1], "int32")],
    )  # fmt: skip
    exe = started(paddle)
    return [exe.run(feed={"a": number(v)}, fetch_list=list(made)) for v in (2, 9, 1)]


def first_case_that_holds(paddle: Any) -> Any:
    x, case = paddle.static.data("x", [1]), paddle.static.nn.case
    x.stop_gradient = False
    out = case([(x < 0, lambda: -x), (x < 1, lambda: x * x)], default=lambda: paddle.exp(x))
    last = case(pred_fn_pairs=[(x > 5, lambda: x), (x > 100, lambda: x * 2)])
    grads, exe = paddle.static.gradients(out, x), started(paddle)
    return [exe.run(feed={"x": number(v)}, fetch_list=[out, last, *grads]) for v in (-2, 0.5, 3, 7)]


def case_of_a_number(paddle: Any) -> Any:
    i, x = paddle.static.data("i", [1], "int32"), paddle.static.data("x", [2, 2])
    x.stop_gradient, switch = False, paddle.static.nn.switch_case
    out = switch(i, {1: lambda: x + 1, 3: lambda: x * x}, default=lambda: x.sum() * paddle.ones([2, 2]))
    listed = switch(i, [lambda: x, lambda: x * 2, lambda: x * 3])
    grads, exe = paddle.static.gradients(out, x), started(paddle)
    feeds = [{"i": number(k, "int32"), "x": drawn(2, 2)} for k in (0, 1, 2, 3, 9)]
    return [exe.run(feed=feed, fetch_list=[out, listed, *grads]) for feed in feeds]


def a_branch_without_results(paddle: Any) -> Any:
    flag = paddle.static.data("flag", [1], "bool")
    count = paddle.static.create_global_var([1], 0.0, "float32", persistable=True, name="count")

    def update() -> None:
        paddle.assign(count + 1, count)

    paddle.static.nn.cond(flag, update, None)
    exe = started(paddle)
    return [exe.run(feed={"flag": np.array([v])}, fetch_list=[count]) for v in (True, False, True)]


NEAR = {"trained_through_a_loop": 2e-5}
