"""Scripts as a stranger writes them: loaders, rates, sequences of any length, constants, numbers for flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.paddle.programs import filled, raised, started


def samples(count: int = 8, width: int = 3) -> np.ndarray:
    return np.random.RandomState(0).uniform(-1, 1, (count, width)).astype("float32")


def loader_in_the_program(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [None, 3]), paddle.static.data("y", [None, 1])
    loader = paddle.base.io.DataLoader.from_generator(feed_list=[x, y], capacity=2, iterable=False)
    loader.set_sample_list_generator(paddle.batch(lambda: ((row, row[:1]) for row in samples()), batch_size=4))
    loss = paddle.mean(paddle.nn.functional.square_error_cost(paddle.static.nn.fc(x, 1), y))
    paddle.optimizer.SGD(0.1).minimize(loss)
    exe, found = filled(paddle), []
    for _ in range(2):
        loader.start()
        try:
            while True:
                found.append(exe.run(fetch_list=[loss]))
        except paddle.base.core.EOFException:
            loader.reset()
    return found


def reader_of_batches(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    reader = paddle.base.io.PyReader(feed_list=[x], capacity=2, iterable=False)
    reader.decorate_batch_generator(lambda: iter([[samples()], [samples() * 2]]))
    exe = started(paddle)
    reader.start()
    found = [exe.run(fetch_list=[paddle.sum(x * x)]) for _ in range(2)]
    return found, raised(lambda: exe.run(fetch_list=[x])) != ""


def counted_rates(paddle: Any) -> Any:
    lr = paddle.optimizer.lr
    makers: list[Callable[[], Any]] = [
        lambda: lr.noam_decay(64, 3, 0.5), lambda: lr.exponential_decay(0.1, 2, 0.5),
        lambda: lr.exponential_decay(0.1, 2, 0.5, staircase=True), lambda: lr.natural_exp_decay(0.1, 3, 0.5),
        lambda: lr.inverse_time_decay(0.1, 2, 0.5, True), lambda: lr.polynomial_decay(0.1, 3, 0.01, 2.0),
        lambda: lr.polynomial_decay(0.1, 2, 0.01, 1.0, cycle=True), lambda: lr.cosine_decay(0.1, 2, 3),
        lambda: lr.piecewise_decay([2, 4], [0.3, 0.2, 0.1]),
        lambda: lr.linear_lr_warmup(lr.piecewise_decay([2, 4], [0.3, 0.2, 0.1]), 3, 0.0, 0.25),
        lambda: lr.autoincreased_step_counter("steps", begin=5),
    ]  # fmt: skip
    found = []
    for make in makers:
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            rate = make()
            exe = started(paddle)
            found.append([exe.run(fetch_list=[rate])[0] for _ in range(6)])
    return found


def sizes_of_a_run(paddle: Any) -> Any:
    x = paddle.static.data("x", [-1, -1, 4])
    b, t = paddle.shape(x)[0], paddle.shape(x)[1]
    h = paddle.static.nn.fc(paddle.reshape(x, [b * t, 4]), 3)
    made = [
        paddle.reshape(h, [b, t, 3]), paddle.expand(paddle.arange(t).unsqueeze(0), [b, t]),
        paddle.zeros([b, 2], "float32"), paddle.full(shape=[b, t], fill_value=7, dtype="int32"),
        paddle.arange(0, t, 2, dtype="float32"), paddle.reshape(paddle.ones([2, t], "bool"), [t, 2]),
    ]
    exe = filled(paddle)
    feeds = [np.arange(24, dtype="float32").reshape(2, 3, 4) / 8, np.ones((1, 5, 4), "float32")]
    return [exe.run(feed={"x": value}, fetch_list=made) for value in feeds]


def encoder_with_positions(paddle: Any) -> Any:
    nn = paddle.nn
    ids = paddle.static.data("ids", [None, None], "int64")
    places = paddle.arange(0, paddle.shape(ids)[1], dtype="int64").unsqueeze(0)
    word, place = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(6, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", normalize_before=True)
    pad = (ids == 0).astype("float32").unsqueeze([1, 2]) * -1e4
    encoded = nn.TransformerEncoder(layer, 1, nn.LayerNorm(8))(word(ids) + place(places), src_mask=pad)
    out = nn.Linear(8, 2)(encoded[:, 0])
    loss = paddle.mean(out * out)
    paddle.optimizer.SGD(0.1).minimize(loss)
    exe = filled(paddle)
    return [exe.run(feed={"ids": np.arange(2 * n).reshape(2, n) % 7}, fetch_list=[loss, out]) for n in (4, 6, 4)]


def constants_decide_sizes(paddle: Any) -> Any:
    x = paddle.to_tensor([2, 3, 3, 1, 5, 3])
    rows = paddle.to_tensor([[2, 1, 3], [3, 0, 1], [2, 1, 3], [2, 1, 3]])
    made = [
        *paddle.unique(x, return_index=True, return_inverse=True, return_counts=True), paddle.unique(rows, axis=0),
        *paddle.unique_consecutive(x, return_inverse=True, return_counts=True),
        paddle.unique_consecutive(rows, axis=0), paddle.nonzero(x - 3), *paddle.where(rows > 1), paddle.bincount(x),
        paddle.masked_select(rows, rows > 1), paddle.repeat_interleave(rows, paddle.to_tensor([2, 0, 1, 1]), 0),
        paddle.scale(x.astype("float32"), scale=paddle.to_tensor([2.0]), bias=1.0),
        paddle.concat([rows, rows], axis=paddle.full([1], 1, "int32")),
    ]
    return started(paddle).run(fetch_list=made)


def initial_values(paddle: Any) -> Any:
    kinds, make = paddle.nn.initializer, paddle.create_parameter
    wide = make([3, 5], "float32", default_initializer=kinds.Orthogonal(2.0))
    tall = paddle.reshape(make([4, 2, 1], "float32", default_initializer=kinds.Orthogonal()), [4, 2])
    products = [paddle.matmul(wide, wide, transpose_y=True), paddle.matmul(tall, tall, transpose_x=True)]
    windows = [make([4, 2, 3], "float32", default_initializer=kinds.Dirac(groups)) for groups in (1, 2)]
    return started(paddle).run(fetch_list=[*(paddle.round(p * 1024) for p in products), *windows])


def interpolation_window(paddle: Any) -> Any:
    window = paddle.create_parameter([1, 1, 3, 3], "float32", default_initializer=paddle.nn.initializer.Bilinear())
    return started(paddle).run(fetch_list=[window])


def hierarchical(paddle: Any, classes: int = 8, short: int = 0) -> Any:
    x, label = paddle.static.data("x", [4, 3]), paddle.static.data("label", [4, 1], "int64")
    table, code = paddle.static.data("table", [4, 3], "int64"), paddle.static.data("code", [4, 3], "int64")
    x.stop_gradient = False
    tree, own = paddle.nn.HSigmoidLoss(3, classes), paddle.nn.HSigmoidLoss(3, 6, is_custom=True)
    losses = [tree(x, label), own(x, label, table, code)]
    grads = paddle.static.gradients([paddle.sum(losses[0] * losses[1])], [x])
    ways = np.array([[0, 1, 2], [0, 3, 4], [1, 2, 3], [0, 1, -1 if short else 5]])
    feed = {"x": samples(4), "label": np.array([[0], [5], [7], [2]]), "table": ways, "code": (ways + 1) % 2}
    return filled(paddle).run(feed=feed, fetch_list=[*losses, *grads])


def hierarchical_of_nine_classes(paddle: Any) -> Any:
    return hierarchical(paddle, 9)[:1]


def hierarchical_by_short_ways(paddle: Any) -> Any:
    return hierarchical(paddle, 8, short=1)[1:2]


def channels_alone(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 3])
    made = [paddle.static.nn.instance_norm(x)]
    made += [paddle.incubate.identity_loss(x, how) for how in ("sum", 1, "none")]
    return started(paddle).run(feed={"x": samples()}, fetch_list=made)


def numbers_for_flags(paddle: Any) -> Any:
    """1 and 0 where a flag is asked for."""
    x = paddle.static.data("x", [3, 4])
    x.stop_gradient = 0
    y = paddle.static.data("y", [3, 1], "int64")
    F, found = paddle.nn.functional, []
    for yes, no in ((1, 0), (True, False)):
        loss = F.cross_entropy(F.softmax(x), y, use_softmax=no, soft_label=no)
        found += [
            paddle.sum(x, 1, None, yes), paddle.mean(x, axis=1, keepdim=no), paddle.std(x, unbiased=no),
            paddle.matmul(x, x, transpose_x=no, transpose_y=yes), paddle.sort(x, descending=yes),
            paddle.topk(x, 2, largest=no)[0], F.dropout(x, 0.5, training=no), F.gelu(x, approximate=yes),
            paddle.scale(x, 2.0, 1.0, bias_after_scale=no), paddle.argmax(x, axis=1, keepdim=yes), loss,
            *paddle.static.gradients([loss], [x]),
        ]  # fmt: skip
    steps = paddle.optimizer.Momentum(0.1, use_nesterov=1, multi_precision=0)
    steps.minimize(paddle.mean(paddle.static.nn.fc(x, 2)))
    test = paddle.static.default_main_program().clone(for_test=1)
    exe = filled(paddle)
    rng = np.random.RandomState(0)
    feed = {"x": rng.uniform(-1, 1, (3, 4)).astype("float32"), "y": np.array([[0], [3], [1]], "int64")}
    values = exe.run(feed=feed, fetch_list=found, return_numpy=1, use_prune=1)
    return values, exe.run(test, feed=feed, fetch_list=found[:11], return_numpy=1)


def pruned_running_averages(paddle: Any) -> Any:
    """A run of loss and minimize's result, and one with use_prune."""
    x = paddle.static.data("x", [4, 3])
    norm = paddle.nn.BatchNorm1D(3)
    loss = paddle.mean(paddle.square(norm(x) + 1.0))
    minimized = paddle.optimizer.SGD(0.1).minimize(loss)
    exe, found = filled(paddle), []
    for fetches, prune in (([loss, minimized], False), ([loss], True)):
        exe.run(feed={"x": samples(4) + 1}, fetch_list=fetches, use_prune=prune)
        found += [np.array(v.get_value()) for v in (norm._mean, norm._variance, norm.weight)]
    return found


NEAR = {"encoder": 2e-5, "counted_rates": 1e-6}
SLIPS = {
    "hierarchical_of_nine_classes": "Paddle adds log(2) for each node that a way has less than the longest one",
    "hierarchical_by_short_ways": "Paddle adds log(2) for each node that a way has less than the longest one",
    "interpolation_window": "Paddle takes rows of the window at fractions of pixels",
}
