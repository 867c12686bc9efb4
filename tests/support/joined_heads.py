"""Programs whose last layer is narrow, for the tests of kernels/cuda/joined.py: the same seed, the same program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import minigraph as mg
from minigraph.runtime.cuda import joins
from tests.support.random_chains import Chain, Feeds


@contextmanager
def apart() -> Iterator[None]:
    """Plans in which every call stays a launch of its own."""
    kept, joins.heads = joins.heads, lambda calls: iter(())
    try:
        yield
    finally:
        joins.heads = kept


def random_head(
    seed: int, dtype: str = "float64", rows: tuple[int, ...] = (9,), inner: int = 20, classes: int = 0,
    alone: bool = False,
) -> Chain:  # fmt: skip
    """activation(x) -> a layer of few columns -> a loss of each row -> gradients of all that is fed.

    The weight may lie transposed or be read twice; the scores may be fetched or read by others; rows may be ignored,
    weighed, have soft labels or no loss but what a softmax makes of them; with bias and without.

    alone   what the activation reads is fed, else it comes from another layer
    """
    r, rng = random.Random(seed), np.random.default_rng(seed)
    classes = classes or r.choice((1, 3, 7, 10, 13))
    main = mg.static.Program(f"head {seed}")
    feeds = Feeds(dtype)
    data = feeds.data
    fetches: list[str] = []

    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        F = mg.nn.functional
        x, turned = data(rng.normal(size=(*rows, inner if alone else 5))), r.random() < 0.3
        h = x if alone else mg.matmul(x, data(rng.normal(size=(5, inner)) * 0.5))
        if r.random() < 0.7 and not alone:
            h = h + data(rng.normal(size=(inner,)) * 0.1)
        h = {"relu": F.relu, "tanh": mg.tanh, "none": lambda v: v}[r.choice(("relu", "relu", "tanh", "none"))](h)
        w = data(rng.normal(size=(classes, inner) if turned else (inner, classes)) * 0.3)
        z = mg.matmul(h, w, transpose_y=turned)
        if r.random() < 0.7:
            z = z + data(rng.normal(size=(classes,)) * 0.1)
        what = r.choice(("hard", "hard", "hard", "ignored", "soft", "weighed", "softmax"))
        if what == "softmax":
            loss = mg.sum(F.softmax(z) * data(rng.normal(size=(*rows, classes)), wanted=False), axis=-1, keepdim=True)
        else:
            label = rng.integers(0, classes, (*rows, 1))
            if what == "ignored":
                label[..., ::3, :] = -100
            if what == "soft":
                label = rng.uniform(size=(*rows, classes))
            loss, p = F.softmax_with_cross_entropy(
                z, data(label, wanted=False), soft_label=what == "soft", return_softmax=True
            )
            if r.random() < 0.2:
                fetches.append(p.name)
        if what == "weighed":
            loss = loss * data(rng.uniform(0.5, 1.5, (*rows, 1)), wanted=False)
        loss = {"mean": mg.mean, "sum": mg.sum}[r.choice(("mean", "sum"))](loss)
        seen = r.random()
        if seen < 0.15:
            fetches.append(z.name)
        elif seen < 0.3:
            fetches.append(mg.cumsum(z, axis=0).name)
        if r.random() < 0.2:
            loss = loss + mg.mean(mg.square(w))
        wanted = [v for v in map(main.global_block().var, feeds) if not v.stop_gradient and r.random() < 0.9]
        found = mg.static.gradients([loss], wanted or [x])
    if r.random() < 0.7:
        fetches.append(loss.name)
    fetches += [v.name for v in found]
    return Chain(main, feeds.read_by(main), list(dict.fromkeys(fetches)))
