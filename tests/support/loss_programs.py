"""Programs of a cross entropy and its gradient, for the tests that these become one kernel."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.types import as_dtype
from tests.support.random_chains import Chain, Feeds

KINDS = ("mean", "sum", "none", "soft", "ignored", "flat", "deep", "beside", "scaled", "scores")


def cross_entropy_step(kind: str, dtype: str, shape: tuple[int, ...], fetch_loss: bool = True) -> Chain:
    """The cross entropy of tanh(x) + y, and the gradients of x and y.

    mean, sum, none   reductions of hard labels
    soft              class weights; their gradient is not asked for
    ignored           some rows are; flat: labels without the axis of classes; deep: int32 labels of [.., rows, classes]
    beside            the probabilities are fetched, too
    scaled            the loss is multiplied by what is fed; scores: so are the scores' gradients, by an operator
    """
    main, rng = mg.static.Program(kind), np.random.default_rng(len(kind))
    rows, classes = shape[:-1], shape[-1]
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y, factor = (mg.static.data(n, list(s), dtype) for n, s in (("x", shape), ("y", shape), ("factor", (1,))))
        for v in (x, y):
            v.stop_gradient = False
        numbers = rng.integers(0, classes, (*rows, 1))
        if kind == "soft":
            weights = rng.uniform(size=shape)
            weights[..., 1:2] = 0
            numbers = (weights / weights.sum(axis=-1, keepdims=True)).astype(as_dtype(dtype))
        elif kind == "ignored":
            numbers[::3] = 2
        elif kind == "flat":
            numbers = numbers[..., 0]
        elif kind == "deep":
            numbers = numbers.astype(np.int32)
        label = mg.static.data("label", list(numbers.shape), numbers.dtype.name)
        scores = mg.tanh(x) * 3 + y
        how = {"soft_label": kind == "soft", "ignore_index": 2 if kind == "ignored" else -100}
        if kind in ("mean", "soft", "ignored", "flat", "deep", "scaled"):
            loss = mg.nn.functional.cross_entropy(scores, label, **how)
        elif kind in ("sum", "none"):
            loss = mg.nn.functional.cross_entropy(scores, label, reduction=kind, **how)
        else:
            loss, p = mg.nn.functional.softmax_with_cross_entropy(scores, label, return_softmax=True)
        if kind == "scaled":
            loss = loss * factor
        total = mg.sum(loss)
        found = mg.static.gradients([total], [x, y])
        fetches = [*([total.name] if fetch_loss else []), *(g.name for g in found)]
        if kind == "beside":
            fetches.append(p.name)
        if kind == "scores":
            fetches.append(mg.cumsum(p, axis=0).name)
    feeds = {n: rng.normal(size=shape).astype(as_dtype(dtype)) for n in ("x", "y")} | {"label": numbers}
    if kind == "scaled":
        feeds["factor"] = np.full((1,), 0.25, as_dtype(dtype))
    return Chain(main, feeds, fetches)


def random_loss(seed: int, dtype: str = "float64", shape: tuple[int, ...] = (23, 7)) -> Chain:
    """One or two cross entropies of scores that may be shared, with what surrounds losses; the same seed, the same one.

    Scores, probabilities and losses may be fetched, kept in the Scope, read by others, read for their shape only;
    losses may be weighed by rows, squared, summed, left as they are.
    """
    r, rng = random.Random(seed), np.random.default_rng(seed)
    main, rows, classes = mg.static.Program(f"loss {seed}"), shape[:-1], shape[-1]
    feeds = Feeds(dtype)
    data = feeds.data
    fetches: list[str] = []

    def expose(v: Any) -> None:
        chance = r.random()
        if chance < 0.15:
            fetches.append(v.name)
        elif chance < 0.25:
            v.persistable = True
            fetches.append(v.name)
        elif chance < 0.35:
            fetches.append(mg.cumsum(v, axis=0).name)
        elif chance < 0.45:
            fetches.append(mg.full_like(v, 0.5).name)

    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        inputs = [data(rng.normal(size=shape)), data(rng.normal(size=(classes,)), wanted=r.random() < 0.7)]
        weight = rng.normal(size=(classes, classes))
        scores = inputs[0] + inputs[1] if r.random() < 0.5 else mg.matmul(inputs[0], data(weight, wanted=False))
        if r.random() < 0.5:
            scores = mg.tanh(scores) * 2
        expose(scores)
        parts = []
        for _ in range(r.choice((1, 1, 2))):
            soft = r.random() < 0.25
            axis = [1] if r.random() < 0.6 else []
            label = rng.uniform(size=shape) if soft else rng.integers(0, classes, (*rows, *axis))
            ignored = r.choice((-100, 1))
            loss, p = mg.nn.functional.softmax_with_cross_entropy(
                scores, data(label, wanted=False), soft_label=soft, ignore_index=ignored, return_softmax=True
            )
            expose(p)
            expose(loss)
            if r.random() < 0.3:
                loss = loss * data(rng.uniform(0.5, 1.5, (*rows, 1)), wanted=False)
            if r.random() < 0.2:
                loss = mg.square(loss)
            how = r.choice(("sum", "mean", "none", "scaled"))
            loss = {"sum": mg.sum, "mean": mg.mean}.get(how, lambda v: v)(loss)
            parts.append(mg.scale(mg.sum(loss), 0.125) if how == "scaled" else loss)
        wanted = [v for v in inputs if any(v.name in op.input_arg_names for op in main.ops)]
        found = mg.static.gradients(parts, wanted)
    fetches += [v.name for v in (*parts, *found) if (v is not None and r.random() < 0.9) or v is found[0]]
    return Chain(main, feeds.read_by(main), list(dict.fromkeys(fetches)))
