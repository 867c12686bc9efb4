"""Scripts of strangers: loops that write their variables, betas that change, recommenders, attention over text."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import filled, started


def draws(seed: int = 0) -> np.random.RandomState:
    return np.random.RandomState(seed)


def loop_writes_its_variables(paddle: Any) -> Any:
    n, total, kept = paddle.zeros([1], "int64"), paddle.ones([2]), paddle.full([1], 7, "int64")
    before = total * 3.0

    def outer(n: Any, total: Any) -> Any:
        j = paddle.zeros([1], "int64")
        paddle.static.nn.while_loop(lambda j, total: j < 2, lambda j, total: [j + 1, total + 1.0], [j, total])
        return [n + 1, total]

    paddle.static.nn.while_loop(lambda n, total: n < 3, outer, [n, total])
    paddle.static.nn.while_loop(lambda n: n < kept, lambda n: [n + 2], [n])
    return started(paddle).run(fetch_list=[n, total, before])


def loop_of_growing_rows(paddle: Any) -> Any:
    rows = paddle.zeros([1, 2])
    made = paddle.static.nn.while_loop(
        lambda n, rows: n < 3, lambda n, rows: [n + 1, paddle.concat([rows, rows[-1:] + 1.0], 0)],
        [paddle.zeros([1], "int64"), rows],
    )  # fmt: skip
    return started(paddle).run(fetch_list=[made[1]])


def trained_through_a_written_loop(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    w, n = paddle.static.create_parameter([3, 3], "float32", name="w"), paddle.zeros([1], "int64")
    h = paddle.matmul(x, w)
    paddle.static.nn.while_loop(
        lambda n, h: n < 3, lambda n, h: [n + 1, paddle.tanh(paddle.matmul(h, w))], [n, h]
    )
    loss = paddle.mean(h * h)
    paddle.optimizer.SGD(0.5).minimize(loss)
    exe, feed = filled(paddle), {"x": draws().uniform(-1, 1, (2, 3)).astype("float32")}
    return [exe.run(feed=feed, fetch_list=[loss, n]) for _ in range(4)]


def betas_that_change(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    step = paddle.static.create_global_var([1], 0.0, "float32", True, name="step")
    paddle.increment(step)
    beta = paddle.minimum(step / (step + 9.0), paddle.full([1], 0.9))
    loss = paddle.mean(paddle.square(paddle.static.nn.fc(x, 2)))
    made = paddle.optimizer.AdamW(0.1, beta1=beta, beta2=0.95, weight_decay=0.2).minimize(loss)
    exe, feed = filled(paddle), {"x": draws().uniform(-1, 1, (4, 3)).astype("float32")}
    return [exe.run(feed=feed, fetch_list=[loss, made])[0] for _ in range(4)]


def numbers_of_one_element(paddle: Any) -> Any:
    x = paddle.static.data("x", [2, 3])
    one, two = paddle.full([1], 1, "int32"), paddle.full([1], 2, "int32")
    made = [
        *paddle.topk(x, two), *paddle.split(x, 3, axis=one), paddle.clip(x, paddle.full([1], -0.5), 0.5),
        paddle.linspace(paddle.full([1], 1.0), 2.0, paddle.full([1], 4, "int32")), paddle.assign(3.0),
        paddle.quantile(x, 0.5, axis=[0, 1], keepdim=True), x[[0, 1], [2, 1]],
        x[paddle.arange(2), paddle.to_tensor([1, 0])],
    ]
    return started(paddle).run(feed={"x": draws().uniform(-1, 1, (2, 3)).astype("float32")}, fetch_list=made)


def deep_factorization_machine(paddle: Any) -> Any:
    F, nn = paddle.nn.functional, paddle.static.nn
    ids, y = paddle.static.data("ids", [None, 4], "int64"), paddle.static.data("y", [None, 1], "int64")
    first = paddle.sum(nn.embedding(ids, [30, 1], param_attr="first"), axis=1)
    e = nn.embedding(ids, [30, 3])
    second = 0.5 * paddle.sum(paddle.square(paddle.sum(e, 1)) - paddle.sum(paddle.square(e), 1), 1, keepdim=True)
    deep = nn.fc(nn.fc(paddle.reshape(e, [-1, 12]), 8, activation="relu"), 1)
    p = F.sigmoid(first + second + deep)
    loss = paddle.mean(F.log_loss(p, paddle.cast(y, "float32")))
    auc = paddle.static.auc(paddle.concat([1 - p, p], 1), y, slide_steps=3)
    paddle.optimizer.Adam(0.01).minimize(loss)
    exe, r = filled(paddle), draws()
    names = [v.name for v in paddle.static.default_main_program().all_parameters()]
    feeds = [{"ids": r.randint(0, 30, (8, 4)), "y": r.randint(0, 2, (8, 1))} for _ in range(5)]
    return names, [exe.run(feed=feed, fetch_list=[loss, *auc[:2]]) for feed in feeds]


def interest_network(paddle: Any) -> Any:
    F, nn = paddle.nn.functional, paddle.static.nn
    seen, target = paddle.static.data("seen", [None, 4], "int64"), paddle.static.data("target", [None, 1], "int64")
    mask, y = paddle.static.data("mask", [None, 4]), paddle.static.data("y", [None, 1])
    h, t = (nn.embedding(i, [20, 6], param_attr=paddle.ParamAttr(name="item")) for i in (seen, target))
    wide = paddle.tile(t, [1, 4, 1])
    c = nn.fc(paddle.concat([h, wide, h - wide, h * wide], 2), 8, num_flatten_dims=2, activation="sigmoid")
    weights = F.softmax(paddle.squeeze(nn.fc(c, 1, num_flatten_dims=2), [2]) + (mask - 1) * 1e9)
    pooled = paddle.matmul(weights.unsqueeze(1), h).squeeze(1)
    loss = F.binary_cross_entropy_with_logits(nn.fc(paddle.concat([pooled, t[:, 0]], 1), 1), y)
    rate = paddle.optimizer.lr.PiecewiseDecay([3], [0.2, 0.1])
    paddle.optimizer.SGD(rate).minimize(loss)
    exe, r, found = filled(paddle), draws(), []
    for _ in range(5):
        feed = {"seen": r.randint(0, 20, (6, 4)), "target": r.randint(0, 20, (6, 1))}
        feed |= {"mask": np.tril(np.ones((6, 4), "float32")), "y": r.randint(0, 2, (6, 1)).astype("float32")}
        found.append(exe.run(feed=feed, fetch_list=[loss]))
        rate.step()
    return found


def gradient_penalty(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 4])
    x.stop_gradient = False
    h = paddle.static.nn.fc(paddle.tanh(paddle.static.nn.fc(x, 5)), 1)
    (slope,) = paddle.static.gradients([h], [x])
    loss = paddle.mean(h) + paddle.mean((paddle.sqrt(paddle.sum(slope * slope, 1) + 1e-12) - 1.0) ** 2)
    paddle.optimizer.SGD(0.1).minimize(loss)
    exe, r = filled(paddle), draws()
    return [exe.run(feed={"x": r.rand(4, 4).astype("float32")}, fetch_list=[loss]) for _ in range(5)]


def names_of_layers(paddle: Any) -> Any:
    x = paddle.static.data("x", [2, 4, 3])
    paddle.static.nn.instance_norm(x, param_attr="a", bias_attr="b")
    paddle.static.nn.layer_norm(x)
    layers = [paddle.nn.BatchNorm1D(4), paddle.nn.InstanceNorm2D(4), paddle.nn.Linear(3, 2)]
    return [[p.name for p in layer.parameters()] for layer in layers], [
        p.name for p in paddle.static.default_main_program().all_parameters()
    ]


NEAR = {"deep_factorization_machine": 2e-5}
