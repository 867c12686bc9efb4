"""Ordinary scripts, as they stand in repositories of users: rankers, decoders, quantised weights, graphs, windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import filled, started


def draws(seed: int = 0) -> np.random.RandomState:
    return np.random.RandomState(seed)


def two_towers(paddle: Any) -> Any:
    F = paddle.nn.functional
    u, v = paddle.static.data("u", [None, 6]), paddle.static.data("v", [None, 6])
    tower = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 4))
    a, b = F.normalize(tower(u), axis=-1), F.normalize(tower(v), axis=-1)
    logits = paddle.matmul(a, b, transpose_y=True) / 0.1
    labels = paddle.arange(paddle.shape(u)[0], dtype="int64")
    loss = F.cross_entropy(logits, paddle.unsqueeze(labels, 1))
    acc = paddle.metric.accuracy(F.softmax(logits), paddle.unsqueeze(labels, 1))
    paddle.optimizer.Momentum(0.05, 0.9, use_nesterov=True, weight_decay=1e-3).minimize(loss)
    exe, r = filled(paddle), draws(2)
    out = []
    for n in (4, 3, 5):
        feed = {"u": r.randn(n, 6).astype("float32"), "v": r.randn(n, 6).astype("float32")}
        out.append(exe.run(feed=feed, fetch_list=[loss, acc]))
    return out


def straight_through_quantization(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 4])
    w = paddle.create_parameter([4, 2], "float32", name="w")
    scale = paddle.max(paddle.abs(w)) / 7.0
    q = paddle.clip(paddle.round(w / scale), -8, 7) * scale
    q = w + (q - w).detach()
    loss = paddle.mean(paddle.square(paddle.matmul(x, q) - 1.0))
    paddle.optimizer.SGD(0.2).minimize(loss)
    exe, feed = filled(paddle), {"x": draws(5).randn(5, 4).astype("float32")}
    return [exe.run(feed=feed, fetch_list=[loss, w]) for _ in range(3)]


def gradients_of_steps(paddle: Any) -> Any:
    """Parameters that only steps lead to get the gradient 0, and decay all the same."""
    x = paddle.static.data("x", [None, 3])
    x.stop_gradient = False
    w = paddle.create_parameter([3, 2], "float32", name="w")
    out = paddle.floor(x) + paddle.ceil(x) + paddle.sign(x) + paddle.trunc(x) + paddle.round(x)
    loss = paddle.sum(paddle.sign(paddle.matmul(out, w)))
    pairs = paddle.static.append_backward(loss)
    paddle.optimizer.SGD(0.1, weight_decay=0.5).apply_gradients(pairs)
    exe, feed = filled(paddle), {"x": draws(6).randn(2, 3).astype("float32")}
    return [exe.run(feed=feed, fetch_list=[loss, w, "x@GRAD"]) for _ in range(2)]


def scaled_dot_product_by_hand(paddle: Any) -> Any:
    q = paddle.static.data("q", [None, None, 8])
    length = paddle.static.data("length", [None], "int32")
    b, t = paddle.shape(q)[0], paddle.shape(q)[1]
    heads = paddle.transpose(paddle.reshape(paddle.static.nn.fc(q, 8, num_flatten_dims=2), [b, t, 2, 4]), [0, 2, 1, 3])
    scores = paddle.matmul(heads, heads, transpose_y=True) * 4**-0.5
    pad = paddle.cast(paddle.nn.functional.sequence_mask(length, maxlen=t, dtype="int32"), "float32")
    causal = paddle.triu(paddle.full([t, t], -1e9), 1)
    scores = scores + (1.0 - paddle.unsqueeze(pad, [1, 2])) * -1e9 + causal
    out = paddle.matmul(paddle.nn.functional.softmax(scores), heads)
    out = paddle.reshape(paddle.transpose(out, [0, 2, 1, 3]), [b, t, 8])
    loss = paddle.sum(out * paddle.unsqueeze(pad, -1)) / paddle.sum(pad)
    paddle.optimizer.AdamW(0.01).minimize(loss)
    exe, r = filled(paddle), draws(7)
    return [
        exe.run(feed={"q": r.randn(len(n), max(n), 8).astype("float32"), "length": np.array(n, "int32")},
                fetch_list=[loss, out]) for n in ([3, 2], [4, 1, 2])
    ]  # fmt: skip


def greedy_decoding(paddle: Any) -> Any:
    """A loop that appends the best next token until all have ended."""
    start = paddle.static.data("start", [2, -1], "int64")
    table = paddle.create_parameter([5, 5], "float32", name="table")

    def cond(i: Any, ids: Any, done: Any) -> Any:
        return paddle.logical_and(i < 6, paddle.logical_not(paddle.all(done)))

    def body(i: Any, ids: Any, done: Any) -> Any:
        last = paddle.squeeze(ids[:, -1:], 1)
        best = paddle.argmax(paddle.gather(table, last), axis=-1)
        best = paddle.where(done, paddle.full_like(best, 4), best)
        return [i + 1, paddle.concat([ids, paddle.unsqueeze(best, 1)], 1), paddle.logical_or(done, best == 4)]

    loop = [paddle.full([1], 0, "int64"), start, paddle.zeros([2], "bool")]
    i, ids, _ = paddle.static.nn.while_loop(cond, body, loop)
    return filled(paddle).run(feed={"start": np.array([[0], [2]])}, fetch_list=[i, ids])


def positional_encoding(paddle: Any) -> Any:
    n = paddle.static.data("n", [1], "int64")
    place = paddle.unsqueeze(paddle.cast(paddle.arange(n), "float32"), 1)
    rate = paddle.exp(paddle.arange(0, 6, 2, dtype="float32") * (-np.log(10000.0) / 6))
    table = paddle.reshape(paddle.stack([paddle.sin(place * rate), paddle.cos(place * rate)], axis=2), [n, 6])
    relative = paddle.clip(paddle.unsqueeze(paddle.arange(n), 0) - paddle.unsqueeze(paddle.arange(n), 1), -2, 2) + 2
    exe = started(paddle)
    return [exe.run(feed={"n": np.array([k])}, fetch_list=[table, relative]) for k in (3, 5)]


def histogram_of_errors(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [8]), paddle.static.data("y", [8])
    error = paddle.abs(x - y)
    bins = paddle.histogram(error, bins=4, min=0, max=2)
    edges = paddle.bucketize(error, paddle.to_tensor(np.array([0.25, 0.5, 1.0], "float32")))
    worst = paddle.masked_select(x, error > paddle.quantile(error, 0.75).astype("float32"))
    r = draws(17)
    feed = {"x": r.randn(8).astype("float32"), "y": r.randn(8).astype("float32")}
    return started(paddle).run(feed=feed, fetch_list=[bins, edges, worst, paddle.median(error), paddle.std(error)])


def graph_convolution(paddle: Any) -> Any:
    """Messages along edges: gather, scatter_nd_add, degrees that a run counts."""
    x, src, dst = (paddle.static.data("x", [None, 3]), paddle.static.data("src", [None], "int64"),
                   paddle.static.data("dst", [None], "int64"))  # fmt: skip
    h = paddle.static.nn.fc(x, 2)
    zeros = paddle.zeros_like(h)
    total = paddle.scatter_nd_add(zeros, paddle.unsqueeze(dst, 1), paddle.gather(h, src))
    degree = paddle.scatter_nd(paddle.unsqueeze(dst, 1), paddle.ones_like(paddle.cast(dst, "float32")),
                               [paddle.shape(x)[0]])  # fmt: skip
    out = total / paddle.clip(paddle.unsqueeze(degree, 1), min=1.0)
    loss = paddle.mean(out * out)
    paddle.optimizer.SGD(0.5).minimize(loss)
    exe = filled(paddle)
    feed = {"x": draws(18).randn(4, 3).astype("float32"), "src": np.array([0, 1, 2, 3, 0]),
            "dst": np.array([1, 2, 2, 0, 1])}  # fmt: skip
    return [exe.run(feed=feed, fetch_list=[loss, out]) for _ in range(3)]


def segment_means(paddle: Any) -> Any:
    """Means over groups whose number the data decides."""
    x, group = paddle.static.data("x", [None]), paddle.static.data("group", [None], "int64")
    ids, inverse, count = paddle.unique(group, return_inverse=True, return_counts=True)
    total = paddle.scatter_nd(paddle.unsqueeze(inverse, 1), x, paddle.shape(ids))
    feed = {"x": np.arange(6, dtype="float32"), "group": np.array([7, 3, 3, 9, 7, 3])}
    return started(paddle).run(feed=feed, fetch_list=[ids, total / paddle.cast(count, "float32")])


def cropped_windows(paddle: Any) -> Any:
    x, at = paddle.static.data("x", [None, 8]), paddle.static.data("at", [1], "int32")
    window = paddle.slice(x, axes=[1], starts=[at], ends=[at + 3])
    padded = paddle.nn.functional.pad(window, [0, 0, 1, 2], value=-1.0)
    rolled = paddle.roll(x, shifts=2, axis=1)
    step = paddle.strided_slice(rolled, axes=[1], starts=[7], ends=[0], strides=[-3])
    cut = paddle.crop(x, shape=[2, 4], offsets=[0, 2])
    feed = {"x": np.arange(16, dtype="float32").reshape(2, 8), "at": np.array([4], "int32")}
    return started(paddle).run(feed=feed, fetch_list=[window, padded, step, cut, paddle.flip(x, [0, 1])])


def saved_and_served(paddle: Any, folder: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    k = paddle.static.data("k", [1], "int32")
    h = paddle.nn.functional.swish(paddle.static.nn.fc(x, 4))
    best, at = paddle.topk(h, k)
    exe = filled(paddle)
    paddle.static.save_inference_model(str(folder / "m"), [x, k], [best, at], exe)
    program, feeds, fetches = paddle.static.load_inference_model(str(folder / "m"), exe)
    data = draws(20).randn(2, 3).astype("float32")
    return [feeds, *(exe.run(program, feed={"x": data, "k": np.array([n], "int32")}, fetch_list=fetches)
                     for n in (1, 3))]  # fmt: skip


def gated_experts(paddle: Any) -> Any:
    """A mixture of experts: the best k of them for each row, k fed."""
    x, k = paddle.static.data("x", [None, 4]), paddle.static.data("k", [], "int64")
    gate = paddle.nn.functional.softmax(paddle.static.nn.fc(x, 3))
    value, index = paddle.topk(gate, k)
    experts = paddle.stack([paddle.static.nn.fc(x, 2) for _ in range(3)], 1)
    rows = paddle.take_along_axis(experts, paddle.expand(paddle.unsqueeze(index, -1), [-1, -1, 2]), 1)
    out = paddle.sum(paddle.unsqueeze(value, -1) * rows, 1)
    loss = paddle.mean(out * out)
    paddle.optimizer.SGD(0.5).minimize(loss)
    exe, feed = filled(paddle), draws(25).randn(4, 4).astype("float32")
    return [exe.run(feed={"x": feed, "k": np.array(n)}, fetch_list=[loss, out]) for n in (1, 2, 3, 1)]
