"""Metrics on the host and in programs, against counting and against what Paddle 2.6.2 gave for the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import metric, static
from minigraph.errors import AttrError, KernelError, MinigraphError, ProgramError, ShapeError

SCORES = np.array([[0.1, 0.9, 0.9], [0.5, 0.3, 0.5], [0.2, 0.2, 0.1]], "float32")
LABELS = np.array([[2], [2], [1]])
P = np.array([[0.3, 0.7], [0.6, 0.4], [0.2, 0.8], [0.9, 0.1], [0.35, 0.65]], "float32")
CLICKS = np.array([[1], [0], [0], [0], [1]])
PADDLES_AUC = 2 / 3  # of P and CLICKS, by static.auc and by metric.Auc


def area(p: np.ndarray, clicks: np.ndarray) -> float:
    """The share of pairs in order, equal ones half."""
    positive, negative = p[clicks != 0][:, None], p[clicks == 0]
    return float(np.mean((positive > negative) + 0.5 * (positive == negative)))


def built(*arrays: np.ndarray) -> tuple[static.Program, static.Program, list[Any]]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        return main, startup, [static.data(f"x{i}", [None, *a.shape[1:]], a.dtype) for i, a in enumerate(arrays)]


def run(main: static.Program, arrays: Any, fetches: list[Any]) -> list[np.ndarray]:
    return static.Executor(mg.CPUPlace()).run(main, {f"x{i}": a for i, a in enumerate(arrays)}, fetches)


@pytest.mark.parametrize(("k", "expected"), [(1, 0.0), (2, 1.0), (3, 1.0)])
@pytest.mark.parametrize("function", [static.accuracy, metric.accuracy])
def test_accuracy_takes_the_first_of_equal_scores(function: Any, k: int, expected: float) -> None:
    """As Paddle does: it gave 0 and 1."""
    main, startup, (x, y) = built(SCORES, LABELS)
    with static.program_guard(main, startup):
        share = function(x, y, k=k)
    (found,) = run(main, (SCORES, LABELS), [share])
    assert (found.shape, found.dtype) == ((), np.float32)
    assert found == expected


def test_accuracy_of_many_rows_is_numpys() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 9)), rng.integers(0, 9, size=200)
    main, startup, (x, y) = built(scores, labels)
    with static.program_guard(main, startup):
        correct, total = (mg.full([1], 0, "int32") for _ in range(2))
        share = static.accuracy(x, y, 3, correct, total)
    hits = [label in np.argsort(-row)[:3] for row, label in zip(scores, labels, strict=True)]
    found, right, of = run(main, (scores, labels), [share, correct, total])
    assert found == pytest.approx(np.mean(hits), rel=1e-6)
    assert (right.tolist(), of.tolist()) == ([sum(hits)], [200])
    nowhere = np.full_like(scores, np.nan)
    assert run(main, (nowhere, labels), [share])[0] == 0
    with pytest.raises(KernelError, match="class"):
        run(main, (scores, labels + 1), [share])


def test_accuracy_over_batches() -> None:
    counted = metric.Accuracy(topk=(1, 2))
    assert counted.name() == ["acc_top1", "acc_top2"]
    main, startup, (x, y) = built(SCORES, LABELS)
    with static.program_guard(main, startup):
        hits = counted.compute(x, y)
    (found,) = run(main, (SCORES, LABELS), [hits])
    np.testing.assert_array_equal(found, [[0, 1], [0, 1], [0, 1]])
    assert counted.update(found) == [0.0, 1.0]
    assert counted.update(np.array([[1.0, 0.0]])) == [1.0, 1.0]
    assert counted.accumulate() == [0.25, 1.0]
    counted.reset()
    assert counted.accumulate() == [0.0, 0.0]


@pytest.mark.parametrize("num_thresholds", [7, 100, 4095])
def test_auc_in_a_program_adds_up(num_thresholds: int) -> None:
    rng = np.random.default_rng(1)
    main, startup, (x, y) = built(P, CLICKS)
    with static.program_guard(main, startup):
        total, of_batch, states = static.auc(x, y, num_thresholds=num_thresholds)
        _, of_two, _ = static.auc(x, y, num_thresholds=num_thresholds, slide_steps=2)
    exe = static.Executor(mg.CPUPlace())
    exe.run(startup)
    batches = []
    for _ in range(3):
        clicks = rng.integers(0, 2, size=(40, 1))
        p = np.floor(rng.uniform(size=40) * num_thresholds) / num_thresholds + 1e-4 / num_thresholds
        batches.append((p, clicks[:, 0]))
        feed = {"x0": np.stack([1 - p, p], 1).astype("float32"), "x1": clicks}
        found = exe.run(main, feed, [total, of_batch, of_two])
        wanted = [area(*map(np.concatenate, zip(*batches[-n:], strict=True))) for n in (3, 1, 2)]
        assert [float(v) for v in found] == pytest.approx(wanted, rel=1e-12)
        assert found[0].dtype == np.float64
    counts = main.state_dict()
    clicked = sum(c.sum() for _, c in batches)
    assert [counts[s.name].sum() for s in states[2:]] == [clicked, 120 - clicked]


def test_auc_is_paddles() -> None:
    main, startup, (x, y) = built(P, CLICKS)
    with static.program_guard(main, startup):
        total, _, states = static.auc(x, y, num_thresholds=7)
    exe = static.Executor(mg.CPUPlace())
    exe.run(startup)
    found, positive, negative = exe.run(main, {"x0": P, "x1": CLICKS}, [total, *states[2:]])
    assert found == pytest.approx(PADDLES_AUC)
    np.testing.assert_array_equal(positive, [[0, 0, 0, 0, 2, 0, 0, 0]])  # Paddle's counts
    np.testing.assert_array_equal(negative, [[1, 0, 1, 0, 0, 1, 0, 0]])
    counted = metric.Auc(num_thresholds=7)
    counted.update(P, CLICKS)
    assert counted.accumulate() == pytest.approx(PADDLES_AUC)
    counted.reset()
    assert counted.accumulate() == 0.0
    counted.update(P[:1], CLICKS[:1])
    assert counted.accumulate() == 0.0


def test_precision_and_recall() -> None:
    """Paddle gave 2/3 and 1/2: its Recall takes one half for a no."""
    preds, labels = np.array([0.1, 0.5, 0.6, 0.7]), np.array([0, 1, 1, 0])
    for counted, expected in ((metric.Precision(), 2 / 3), (metric.Recall(), 0.5)):
        assert counted.accumulate() == 0.0
        counted.update(preds[:, None], labels)
        assert counted.accumulate() == pytest.approx(expected)
        counted.reset()
        assert counted.accumulate() == 0.0
        with pytest.raises(ShapeError, match="4 predictions have 1 labels"):
            counted.update(preds, labels[:1])


def test_what_does_not_fit_is_refused() -> None:
    main, startup, (x, y) = built(P, CLICKS)
    with static.program_guard(main, startup):
        refusals: list[tuple[type[MinigraphError], str, Any]] = [
            (AttrError, "k must be an int", lambda: static.accuracy(x, y, k=0)),
            (ShapeError, r"input .* must be \[N, C\]", lambda: static.accuracy(y.reshape([-1]), y)),
            (AttrError, "curve 'PR' is not there", lambda: static.auc(x, y, curve="PR")),
            (AttrError, "num_thresholds must be", lambda: static.auc(x, y, num_thresholds=0)),
            (AttrError, "slide_steps must not be", lambda: static.auc(x, y, slide_steps=-1)),
            (ProgramError, "ins_tag_weight is not there", lambda: static.auc(x, y, ins_tag_weight=x)),
            (MinigraphError, "label must be an int", lambda: static.auc(x, x)),
            (ShapeError, r"input must be \[N, 2\]", lambda: static.auc(mg.concat([x, x], 1), y)),
            (AttrError, "topk must hold", lambda: metric.Accuracy(topk=(0,))),
            (ProgramError, "fetch it first", lambda: metric.Precision().update(x, y)),
            (ProgramError, r"not all in \[0, 1\]", lambda: metric.Auc().update(P + 1, CLICKS)),
        ]
        for error, message, call in refusals:
            with pytest.raises(error, match=message):
                call()
    assert all(op.type == "reshape" or op.type == "concat" for op in main.ops)
    with pytest.raises(NotImplementedError, match="Metric has no update"):
        metric.Metric().update()
