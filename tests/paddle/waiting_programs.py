"""Numbers that are fed: shapes, axes, bounds, counts; and results whose size depends on values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.cases import Call, Case
from tests.paddle.programs import started

X = np.arange(24, dtype="float32").reshape(2, 3, 4) / 10 + 0.05


def fed(call: Call, *numbers: Any, dtype: str = "int32") -> Case:
    """A call of X and of data variables that hold these numbers."""
    return Case(call, (X, *(np.array(n, dtype) for n in numbers)))


def ints(p: Any, *values: int) -> Any:
    return p.assign(np.array(values))


CASES = {
    "reshape_list": fed(lambda p, x, n: p.reshape(x, [n, -1]), 4),
    "reshape_var": fed(lambda p, x, n: p.reshape(x, n), [6, 4]),
    "reshape_two": fed(lambda p, x, n, m: p.reshape(x, [n, m]), 6, 4),
    "expand": fed(lambda p, x, n: p.expand(x[:1, 0, 0], [n]), 5),
    "expand_var": fed(lambda p, x, n: p.expand(x, n), [5, 2, 3, 4]),
    "tile": fed(lambda p, x, n: p.tile(x, [1, n, 1]), 2),
    "tile_var": fed(lambda p, x, n: p.tile(x, n), [2, 1, 3]),
    "full": fed(lambda p, x, n: p.full([n, 2], 1.5), 3),
    "full_var": fed(lambda p, x, n: p.full(n, 1.5), [3, 2]),
    "full_value": fed(lambda p, x, n: p.full([2], n), 3),
    "zeros": fed(lambda p, x, n: p.zeros([n, 2]), 3),
    "ones_var": fed(lambda p, x, n: p.ones(n), [3, 2]),
    "empty": fed(lambda p, x, n: p.shape(p.empty([n, 2])), 3),
    "arange": fed(lambda p, x, n: p.arange(n), 5),
    "arange3": fed(lambda p, x, a, b, c: p.arange(a, b, c), 1, 9, 3),
    "linspace": fed(lambda p, x, n: p.linspace(0, 1, n), 5),
    "linspace3": fed(lambda p, x, a, b: p.linspace(a, b, 5), 1., 5., dtype="float32"),
    "logspace": fed(lambda p, x, n: p.logspace(0, 1, n), 5),
    "slice": fed(lambda p, x, a, b: p.slice(x, [1], [a], [b]), 1, 3),
    "slice_var": fed(lambda p, x, a, b: p.slice(x, [0, 1], a, b), [0, 1], [2, 3]),
    "strided_slice": fed(lambda p, x, a, b, c: p.strided_slice(x, [2], [a], [b], [c]), 0, 4, 2),
    "getitem_stop": fed(lambda p, x, n: x[:, :n], 2),
    "getitem_both": fed(lambda p, x, a, b: x[:, a:b], 1, 3),
    "getitem_step": fed(lambda p, x, a: x[:, :, ::a], 2),
    "getitem_int": fed(lambda p, x, n: x[n], 1),
    "getitem_mixed": fed(lambda p, x, n, m: x[n, :m], 1, 2),
    "topk": fed(lambda p, x, k: p.topk(x, k), 2),
    "topk1": fed(lambda p, x, k: p.topk(x, k), [2]),
    "sum_axes": fed(lambda p, x, a: p.sum(x, a), [0, 1]),
    "mean_axes": fed(lambda p, x, a: p.mean(x, a), [0, 1]),
    "sum_list": fed(lambda p, x, a: p.sum(x, [a]), 1),
    "concat": fed(lambda p, x, a: p.concat([x, x], a), 1),
    "split_sections": fed(lambda p, x, a, b: p.split(x, [a, b], 2)[1], 1, 3),
    "squeeze": fed(lambda p, x, a: p.squeeze(x[:1], a), 0),
    "squeeze_list": fed(lambda p, x, a: p.squeeze(x[:1], [a]), 0),
    "unsqueeze": fed(lambda p, x, a: p.unsqueeze(x, a), 1),
    "unsqueeze_list": fed(lambda p, x, a: p.unsqueeze(x, a), [0, 2]),
    "roll": fed(lambda p, x, a: p.roll(x, a), 1),
    "roll_list": fed(lambda p, x, a: p.roll(x, a, 1), 1),
    "crop": fed(lambda p, x, a, b: p.crop(x, a, b), [1, 2, 2], [0, 1, 1]),
    "crop_list": fed(lambda p, x, a: p.crop(x, [a, 2, 2], [0, 0, 0]), 1),
    "pad": fed(lambda p, x, a: p.nn.functional.pad(x, a, data_format="NCL"), [1, 1]),
    "one_hot": fed(lambda p, x, n: p.nn.functional.one_hot(p.assign(np.array([0, 1, 2])), n), 5),
    "rand": fed(lambda p, x, n: p.shape(p.rand([n, 2])), 3),
    "randn_var": fed(lambda p, x, n: p.shape(p.randn(n)), [3, 2]),
    "randint": fed(lambda p, x, n: p.shape(p.randint(0, 4, [n])), 3),
    "uniform": fed(lambda p, x, n: p.shape(p.uniform([n, 2])), 3),
    "normal": fed(lambda p, x, n: p.shape(p.normal(0., 1., [n, 2])), 3),
    "standard_normal": fed(lambda p, x, n: p.shape(p.standard_normal([n, 2])), 3),
    "bincount": fed(lambda p, x, n: p.bincount(p.assign(np.array([0, 1])), minlength=n), 7),
    "repeat_interleave_v": fed(lambda p, x, n: p.repeat_interleave(x, n, 1), [2, 1, 2]),
    "scale": fed(lambda p, x, n: p.scale(x, n), 2., dtype="float32"),
    "clip": fed(lambda p, x, n, m: p.clip(x, n, m), .2, .5, dtype="float32"),
    "pow": fed(lambda p, x, n: p.pow(x, n), 2., dtype="float32"),
    "glu": fed(lambda p, x, a: p.nn.functional.glu(x, a), 2),
    "sequence_mask": fed(lambda p, x, n: p.nn.functional.sequence_mask(p.assign(np.array([1, 3])), n), 6),
    "cumsum_rev": fed(lambda p, x, a: p.cumsum(x, axis=a), 1),
    "scatter_nd": fed(
        lambda p, x, a: p.scatter_nd(p.assign(np.array([[1]])), p.assign(np.array([2.], "float32")), [a]), 5
    ),
    "masked_select": fed(lambda p, x, a: p.masked_select(x, x > a), .3, dtype="float32"),
    "nonzero": fed(lambda p, x, a: p.nonzero(x > a), .3, dtype="float32"),
    "nonzero_tuple": fed(lambda p, x, a: p.nonzero(x > a, as_tuple=True)[1], .3, dtype="float32"),
    "unique": fed(lambda p, x, a: p.unique(p.cast(x * 3, "int32") + a), 1),
    "unique_consecutive": fed(lambda p, x, a: p.unique_consecutive(p.cast(p.flatten(x) * 3, "int32") + a), 1),
    "bool_index": fed(lambda p, x, a: x[x > a], .3, dtype="float32"),
    "bincount_plain": fed(lambda p, x, a: p.bincount(p.cast(p.flatten(x) * 3, "int32") + a), 1),
    "expand_computed": fed(lambda p, x, n: p.expand(x[:1, 0, 0], [n * 2 - 1]), 3),
    "data_len": fed(lambda p, x, n: x[:, :p.cast(p.sum(x[0, 0]) * 0 + n * 3, "int32")], .9, dtype="float32"),
    "slice_neg": fed(lambda p, x, n: x[:, n:], -2),
    "gather_tree": fed(lambda p, x, n: p.index_sample(x[0], p.full([3, n], 1, "int64")), 2),
    "variable_reshape": fed(lambda p, x, a: x.reshape([a, -1]), 4),
    "variable_tile": fed(lambda p, x, a: x.tile([a]), 2),
    "variable_topk": fed(lambda p, x, a: x.topk(a)[0], 2),
    "setitem_places": fed(lambda p, x: p.static.setitem(x, (0, ints(p, 1, 2)), p.zeros([2, 4]))),
    "setitem_along_an_axis": fed(lambda p, x: p.static.setitem(x, (slice(None), ints(p, 0, 2)), x[:, :2] * 3.0)),
    "setitem_pairs": fed(lambda p, x: p.static.setitem(x, (ints(p, 0, 1), ints(p, 1, 2)), 0.5)),
    "setitem_mask_of_an_axis": fed(
        lambda p, x: p.static.setitem(x, (slice(None), p.assign(np.array([True, False, True]))), 3.0)
    ),
    "setitem_up_to": fed(lambda p, x, n: p.static.setitem(x, (slice(None), slice(0, n)), 3.0), 2),
    "setitem_row": fed(lambda p, x, n: p.static.setitem(x, n, 4.0), 1),
    "shard_index": fed(lambda p, x, ids: p.shard_index(ids, 20, 3, 2, -7), [[3], [11], [19]]),
    "take_clip": fed(lambda p, x: p.take(x, ints(p, 0, 30, -5), mode="clip")),
}  # fmt: skip


def lengths_that_change(paddle: Any) -> Any:
    """One program for several lengths: each row is cut, and what is left is summed."""
    x, n = paddle.static.data("x", [None, 6]), paddle.static.data("n", [1], "int64")
    total = paddle.sum(x[:, :n], axis=1)
    exe, feed = started(paddle), np.arange(12, dtype="float32").reshape(2, 6)
    return [exe.run(feed={"x": feed, "n": np.array([k])}, fetch_list=[total]) for k in (1, 4, 6, 1)]


def trained_on_the_hardest(paddle: Any) -> Any:
    """The loss is the mean of the k largest losses; k is fed."""
    x, k = paddle.static.data("x", [None, 3]), paddle.static.data("k", [], "int32")
    w = paddle.create_parameter([3, 1], "float32", default_initializer=paddle.nn.initializer.Constant(0.5))
    losses = paddle.flatten(paddle.square(paddle.matmul(x, w) - 1.0))
    loss = paddle.mean(paddle.topk(losses, k)[0])
    paddle.optimizer.SGD(0.1).minimize(loss)
    exe, feed = started(paddle), np.random.RandomState(0).uniform(-1, 1, (5, 3)).astype("float32")
    return [exe.run(feed={"x": feed, "k": np.array(n, "int32")}, fetch_list=[loss, w]) for n in (5, 2, 1, 2)]


def trained_on_chosen_rows(paddle: Any) -> Any:
    """Elements that a mask of the data chooses, and rows that a mask of one axis chooses."""
    x = paddle.static.data("x", [None, 3])
    w = paddle.create_parameter([3, 2], "float32", default_initializer=paddle.nn.initializer.Constant(0.5))
    out = paddle.matmul(x, w)
    chosen = paddle.masked_select(out, out > paddle.mean(out))
    rows = paddle.gather(out, paddle.flatten(paddle.nonzero(x[:, 0] > -0.5)))
    loss = paddle.sum(chosen) + paddle.sum(rows * rows)
    paddle.optimizer.SGD(0.01).minimize(loss)
    exe, feed = started(paddle), np.random.RandomState(1).uniform(-1, 1, (5, 3)).astype("float32")
    return [exe.run(feed={"x": feed[:n]}, fetch_list=[loss, w, rows]) for n in (5, 3, 5)]


def decoded_step_by_step(paddle: Any) -> Any:
    """A loop whose body takes as many elements as it has gone rounds."""
    x = paddle.static.data("x", [6])

    def body(i: Any, total: Any) -> Any:
        return [i + 1, total + paddle.sum(paddle.slice(x, [0], [0], [i])) * paddle.mean(x[i:])]

    i, total = paddle.full([1], 1, "int32"), paddle.zeros([1])
    made = paddle.static.nn.while_loop(lambda i, total: i < 5, body, [i, total])
    return started(paddle).run(feed={"x": np.arange(6, dtype="float32") / 3}, fetch_list=list(made))


def computed_from_lengths(paddle: Any) -> Any:
    """Padding masks and positions for the longest text of a batch."""
    lengths = paddle.static.data("lengths", [None], "int64")
    longest = paddle.max(lengths)
    mask = paddle.nn.functional.sequence_mask(lengths, dtype="float32")
    places = paddle.expand(paddle.unsqueeze(paddle.arange(longest), 0), [paddle.shape(lengths)[0], longest])
    bias = paddle.full([longest, longest], -1e4)
    exe = started(paddle)
    feeds = [np.array([1, 3, 2]), np.array([2]), np.array([4, 4])]
    return [exe.run(feed={"lengths": f}, fetch_list=[mask, places, paddle.triu(bias, 1)]) for f in feeds]


def counted(paddle: Any) -> Any:
    """Histogram, vocabulary and runs of ids."""
    ids = paddle.static.data("ids", [None], "int64")
    out = [*paddle.unique(ids, return_index=True, return_inverse=True, return_counts=True), paddle.bincount(ids)]
    out += [*paddle.unique_consecutive(ids, return_inverse=True, return_counts=True), *paddle.where(ids > 2)]
    out += [ids[ids > 2], paddle.nonzero(ids - 3)]
    exe = started(paddle)
    return [exe.run(feed={"ids": np.array(f)}, fetch_list=out) for f in ([3, 1, 1, 5, 3], [7], [2, 2, 2])]
