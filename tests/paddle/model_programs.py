"""Small models as their users write them: losses of a few steps, from parameters that names decide."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import filled, run


def drawn(*shape: int) -> np.ndarray:
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype("float32")


def trained(lib: Any, optimizer: Any, fetched: list[Any], feeds: list[dict[str, np.ndarray]]) -> Any:
    """What a program gives in a step for each feed; fetched[0] is the loss."""
    optimizer.minimize(fetched[0])
    exe = filled(lib)
    return [exe.run(feed=feed, fetch_list=fetched) for feed in feeds]


def digits(paddle: Any) -> Any:
    image, label = paddle.static.data("image", [None, 1, 4, 4]), paddle.static.data("label", [None, 1], "int64")
    hidden = paddle.static.nn.fc(image, size=8, activation="relu")
    guess = paddle.static.nn.fc(hidden, size=5, activation="softmax")
    cost = paddle.nn.functional.cross_entropy(input=guess, label=label, use_softmax=False, reduction="none")
    loss, right = paddle.mean(cost), paddle.static.accuracy(input=guess, label=label)
    feed = {"image": drawn(6, 1, 4, 4), "label": np.arange(6).reshape(6, 1) % 5}
    return trained(paddle, paddle.optimizer.Adam(learning_rate=0.02), [loss, right], [feed] * 5)


def words(paddle: Any) -> Any:
    places = [paddle.static.data(f"w{i}", [None, 1], "int64") for i in range(3)]
    after = paddle.static.data("after", [None, 1], "int64")
    rows = [paddle.static.nn.embedding(w, size=[9, 4], param_attr="shared") for w in places]
    context = paddle.concat([paddle.flatten(r, 1) for r in rows], axis=1)
    hidden = paddle.static.nn.fc(context, 6, activation="sigmoid")
    guess = paddle.static.nn.fc(hidden, 9, activation="softmax")
    loss = paddle.mean(paddle.nn.functional.cross_entropy(guess, after, use_softmax=False))
    ids = np.arange(5).reshape(5, 1)
    feed = {"w0": ids, "w1": ids + 1, "w2": ids + 2, "after": ids + 3}
    return trained(paddle, paddle.optimizer.SGD(0.5), [loss], [feed] * 5)


def long_short_term_memory(paddle: Any) -> Any:
    x, n = paddle.static.data("x", [None, 4, 3]), 5
    into = paddle.static.create_parameter([3, 4 * n], "float32", name="into")
    again = paddle.static.create_parameter([n, 4 * n], "float32", name="again")
    sigmoid = paddle.nn.functional.sigmoid
    h = paddle.zeros([paddle.shape(x)[0], n])
    c = paddle.zeros_like(h)
    for t in range(4):
        gates = paddle.matmul(x[:, t], into) + paddle.matmul(h, again)
        i, f, o, u = paddle.split(gates, 4, axis=-1)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * paddle.tanh(u)
        h = sigmoid(o) * paddle.tanh(c)
    feeds = [{"x": drawn(k, 4, 3)} for k in (2, 3, 1)]
    return trained(paddle, paddle.optimizer.RMSProp(0.05), [paddle.mean(paddle.square(h)), h], feeds)


def sums_over_ways(paddle: Any) -> Any:
    """The forward pass of a conditional random field, and its gradients."""
    scores = paddle.static.data("scores", [4, 2, 3])
    steps = paddle.create_parameter([3, 3], "float32", name="steps")
    total = scores[0]
    for k in range(1, 4):
        total = paddle.logsumexp(total.unsqueeze(2) + steps.unsqueeze(0), axis=1) + scores[k]
    loss = paddle.sum(paddle.logsumexp(total, axis=-1))
    ((_, grad),) = paddle.static.append_backward(loss)
    return run(paddle, [loss, grad], scores=drawn(4, 2, 3))


def variational(paddle: Any) -> Any:
    x, noise = paddle.static.data("x", [None, 4]), paddle.static.data("noise", [None, 2])
    mean, spread = paddle.static.nn.fc(x, 2), paddle.static.nn.fc(x, 2)
    code = mean + paddle.exp(0.5 * spread) * noise
    again = paddle.static.nn.fc(code, 4, activation="sigmoid")
    fit = paddle.nn.functional.binary_cross_entropy(again, x, reduction="sum")
    near = -0.5 * paddle.sum(1 + spread - paddle.square(mean) - paddle.exp(spread))
    feed = {"x": np.abs(drawn(3, 4)), "noise": drawn(3, 2)}
    return trained(paddle, paddle.optimizer.Adam(0.01), [fit + near, fit, near], [feed] * 5)


def pairs_apart(paddle: Any) -> Any:
    """Each row is to be nearer to its partner than to the others; batches of several sizes."""
    a, b = paddle.static.data("a", [None, 4]), paddle.static.data("b", [None, 4])
    layer, F = paddle.nn.Linear(4, 3), paddle.nn.functional
    near = paddle.matmul(F.normalize(layer(a)), F.normalize(layer(b)), transpose_y=True) / 0.1
    own = paddle.arange(paddle.shape(a)[0])
    loss = (F.cross_entropy(near, own) + F.cross_entropy(near.t(), own)) / 2
    feeds = [{"a": drawn(n, 4), "b": drawn(n, 4) * 0.5 + 0.1} for n in (3, 5, 3)]
    return trained(paddle, paddle.optimizer.SGD(0.1), [loss], feeds)


def focal_with_mask(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [None, 4]), paddle.static.data("y", [None], "int64")
    mask = paddle.static.data("mask", [None], "bool")
    x.stop_gradient = False
    p = paddle.nn.functional.softmax(x)
    own = paddle.sum(p * paddle.nn.functional.one_hot(y, 4), -1)
    each, kept = -((1 - own) ** 2) * paddle.log(own + 1e-8), mask.astype("float32")
    loss = paddle.sum(each * kept) / paddle.clip(paddle.sum(kept), min=1.0)
    grads = paddle.static.gradients(loss, x)
    feed = {"x": drawn(5, 4), "y": np.arange(5) % 4, "mask": np.array([True, False, True, True, False])}
    return run(paddle, [loss, *grads], **feed)


def boxes_that_meet(paddle: Any) -> Any:
    a, b = paddle.static.data("a", [3, 4]), paddle.static.data("b", [2, 4])
    first = paddle.maximum(a[:, None, :2], b[None, :, :2])
    last = paddle.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = paddle.clip(last - first, min=0)
    common = sides[..., 0] * sides[..., 1]
    area_a, area_b = ((v[:, 2] - v[:, 0]) * (v[:, 3] - v[:, 1]) for v in (a, b))
    corner = np.array([0, 0, 1, 1], "float32")
    feed = {"a": np.abs(drawn(3, 4)) + corner, "b": np.abs(drawn(2, 4)) + corner}
    return run(paddle, [common / (area_a[:, None] + area_b - common)], **feed)


def the_likeliest(paddle: Any) -> Any:
    """The words that have four fifths of the probability together."""
    p = paddle.nn.functional.softmax(paddle.static.data("x", [2, 6]) * 3, -1)
    ordered = paddle.sort(p, -1, descending=True)
    before = paddle.cumsum(ordered, -1) - ordered
    count = paddle.sum(paddle.cast(before < 0.8, "int64"), -1, keepdim=True)
    least = paddle.take_along_axis(ordered, count - 1, -1)
    return run(paddle, [paddle.where(p >= least, p, paddle.zeros_like(p)), count], x=drawn(2, 6))


def words_of_one_table(paddle: Any) -> Any:
    """A table that is read, and whose transpose gives the scores; its own weight decay."""
    ids, table = paddle.static.data("ids", [None, 4], "int64"), paddle.nn.Embedding(7, 5)
    scores = paddle.matmul(paddle.tanh(table(ids)), table.weight, transpose_y=True)
    loss = paddle.nn.functional.cross_entropy(scores[:, :-1].reshape([-1, 7]), ids[:, 1:].reshape([-1]))
    optimizer = paddle.optimizer.AdamW(0.05, weight_decay=0.1, apply_decay_param_fun=lambda name: "w_0" in name)
    return trained(paddle, optimizer, [loss], [{"ids": np.arange(12).reshape(3, 4) % 7}] * 5)


def updates_of_two_batches(paddle: Any) -> Any:
    """Gradients that are added up in a variable, and an update in a branch, every second step."""
    x, w = paddle.static.data("x", [None, 2]), paddle.create_parameter([2, 1], "float32", name="w")
    kept = paddle.static.create_global_var([2, 1], 0.0, "float32", persistable=True, name="kept")
    count = paddle.static.create_global_var([1], 0, "int64", persistable=True, name="count")
    loss = paddle.mean(paddle.square(paddle.matmul(x, w) - 1.0))
    ((_, grad),) = paddle.optimizer.SGD(0.5).backward(loss)
    paddle.increment(count)
    paddle.assign(kept + grad, kept)

    def update() -> None:
        paddle.assign(w - 0.25 * kept, w)
        paddle.assign(paddle.zeros_like(kept), kept)

    paddle.static.nn.cond(paddle.equal(count % 2, paddle.zeros([1], "int64")), update, None)
    exe = filled(paddle)
    return [exe.run(feed={"x": drawn(3 + i, 2)}, fetch_list=[loss, w, kept]) for i in range(5)]


NEAR = dict.fromkeys(("digits", "words", "long_short_term_memory", "variational", "pairs_apart"), 2e-5)
