"""Data sets, samplers and loaders."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.paddle.programs import raised, started


def squares(package: Any, count: int = 5) -> Any:
    """A data set of (i, i * i)."""

    class Squares(package.io.Dataset):
        def __getitem__(self, i: int) -> Any:
            return np.array([i], "float32"), np.array(i * i, "int64")

        def __len__(self) -> int:
            return count

    return Squares()


def arrays(batch: Any) -> Any:
    return [np.asarray(part) for part in batch]


def loading(paddle: Any) -> Any:
    x, y = paddle.static.data("x", [None, 1]), paddle.static.data("y", [None], "int64")
    named = {"feed_list": [x, y], "return_list": False, "places": [paddle.CPUPlace()]}
    loader = paddle.io.DataLoader(squares(paddle), batch_size=2, **named)
    out = x * 2.0
    exe = started(paddle)
    return len(loader), [exe.run(feed=feed, fetch_list=[out, y]) for feed in loader()]


def samplers(paddle: Any) -> Any:
    io, data = paddle.io, squares(paddle)
    return {
        "batches": list(io.BatchSampler(data, batch_size=2)),
        "dropped": list(io.BatchSampler(data, batch_size=2, drop_last=True)),
        "lengths": [len(io.BatchSampler(data, batch_size=2)), len(io.BatchSampler(data, batch_size=2, drop_last=True))],
        "of a sampler": list(io.BatchSampler(sampler=io.SequenceSampler(data), batch_size=3)),
        "all": sorted(io.RandomSampler(data)), "sequence": list(io.SequenceSampler(data)),
        "weighted": list(io.WeightedRandomSampler(np.array([0.0, 0.0, 1.0]), 4)),
    }  # fmt: skip


def datasets(paddle: Any) -> Any:
    io, data = paddle.io, squares(paddle)
    joined, both = io.ConcatDataset([data, squares(paddle, 2)]), io.ComposeDataset([data, data])
    return {
        "concat": [len(joined), arrays(joined[6]), arrays(joined[-1])], "compose": [len(both), arrays(both[2])],
        "subset": arrays(io.Subset(data, [4, 0])[0]),
        "wrong": raised(lambda: io.random_split(data, [3, 3])),
        "iterable": raised(lambda: io.IterableDataset()[0]), "no length": raised(lambda: len(io.IterableDataset())),
    }  # fmt: skip


def feeding(paddle: Any) -> Any:
    x = paddle.static.data("x", [None, 2])
    paddle.static.data("y", [None, 1], "int64")
    feeder = paddle.base.DataFeeder([x, "y"], paddle.CPUPlace())
    feed = feeder.feed([([1, 2], [3]), ([4, 5], [6])])
    return {name: np.array(value) for name, value in feed.items()}
