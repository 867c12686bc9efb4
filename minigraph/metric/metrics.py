"""Metrics: counts over batches that are kept on the host, and `accuracy` as operators of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import AttrError, ProgramError, ShapeError, call_site, require
from minigraph.errors.kinds import COUNT, NO_NUMBERS, NOT_OFFERED, RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.static.metrics import accuracy as _accuracy
from minigraph.static.metrics import rank
from minigraph.tensor import arange, argmax, cast
from minigraph.tensor.arguments import variable
from minigraph.types import float32, int64


@whole
def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """static.accuracy: the share of rows whose label is among the k classes with the largest scores."""
    return _accuracy(input, label, k, correct, total)


class Metric:
    """Base: `update` takes in arrays of a batch, `accumulate` gives the result of all since `reset`."""

    def reset(self) -> None:
        """Forget all batches."""
        raise NotImplementedError(f"{type(self).__name__} has no reset")

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Take in a batch, fetched arrays."""
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def accumulate(self) -> Any:
        """The result so far."""
        raise NotImplementedError(f"{type(self).__name__} has no accumulate")

    def name(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no name")

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Operators of the program that prepare what `update` takes; by default none."""
        return args


class Accuracy(Metric):
    """The share of samples whose label is among the k largest scores, for each k of `topk`."""

    def __init__(self, topk: Sequence[int] = (1,), name: str | None = None) -> None:
        require(len(topk) > 0 and min(topk) >= 1, f"topk must hold ints >= 1, is {topk}", AttrError)
        self.topk, self.maxk = tuple(topk), max(topk)
        name = name or "acc"
        self._name = [f"{name}_top{k}" for k in topk] if self.maxk != 1 else [name]
        self.reset()

    @whole
    def compute(self, pred: Variable, label: Variable, *args: Any) -> Variable:
        """Operators: [..., maxk] float32, 1 where the label has that rank among the scores [..., C].

        label  class numbers [...] or [..., 1], or one-hot [..., C]
        """
        x, label = variable(pred, "Accuracy.compute", "pred"), variable(label, "Accuracy.compute", "label")
        if label.ndim == x.ndim and label.shape[-1] != 1:
            label = argmax(label, axis=-1, keepdim=True)
        if label.ndim not in (x.ndim, x.ndim - 1):
            raise ShapeError(f"label {label} does not fit pred {x}", call="Accuracy.compute", site=call_site())
        g = builder_of(x)
        hits = cast(g.equal(rank(x, label), arange(self.maxk, dtype=int64)), float32)
        hits.stop_gradient = True
        return hits

    def update(self, correct: Any, *args: Any) -> Any:
        """What compute() gave, fetched; returns the accuracy of this batch."""
        hits = _array(correct, "correct")
        if hits.ndim < 1 or hits.shape[-1] < self.maxk:
            raise ShapeError(f"correct must be [..., {self.maxk}], has shape {list(hits.shape)}", site=call_site())
        samples = int(np.prod(hits.shape[:-1]))
        found = [float(hits[..., :k].sum()) for k in self.topk]
        self.total = [t + n for t, n in zip(self.total, found, strict=True)]
        self.count = [c + samples for c in self.count]
        return _single([n / samples if samples else 0.0 for n in found])

    def reset(self) -> None:
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def accumulate(self) -> Any:
        """A float, for several k a list of them."""
        return _single([t / c if c else 0.0 for t, c in zip(self.total, self.count, strict=True)])

    def name(self) -> list[str]:
        return self._name


class _OfDecisions(Metric):
    """Counts of right and wrong among samples with a certain answer; probabilities from one half on are a yes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.right = self.wrong = 0

    def accumulate(self) -> float:
        """0 where there was no sample that counts."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 0.0

    def name(self) -> str:
        return self._name

    def count(self, preds: np.ndarray, labels: np.ndarray, chosen: np.ndarray) -> None:
        same = preds == labels
        self.right += int(np.sum(chosen & same))
        self.wrong += int(np.sum(chosen & ~same))


class Precision(_OfDecisions):
    """The share of true ones among what was taken for 1: tp / (tp + fp)."""

    def __init__(self, name: str = "precision") -> None:
        super().__init__(name)

    def update(self, preds: Any, labels: Any) -> None:
        """Probabilities and labels 0 or 1, arrays with one element for each sample."""
        decided = np.floor(_array(preds, "preds").reshape(-1) + 0.5).astype(np.int64)
        self.count(decided, _like(labels, decided), decided == 1)


class Recall(_OfDecisions):
    """The share of the true ones that was taken for 1: tp / (tp + fn)."""

    def __init__(self, name: str = "recall") -> None:
        super().__init__(name)

    def update(self, preds: Any, labels: Any) -> None:
        """Probabilities and labels 0 or 1, arrays with one element for each sample; one half itself is a no."""
        decided = np.rint(_array(preds, "preds").reshape(-1)).astype(np.int64)
        labels = _like(labels, decided)
        self.count(decided, labels, labels == 1)


class Auc(Metric):
    """The area under the ROC curve, of probabilities told apart in steps of 1 / num_thresholds."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc") -> None:
        require(curve == "ROC", f"curve {curve!r} is not there, only ROC", NOT_OFFERED)
        require(num_thresholds >= 1, f"num_thresholds must be at least 1, is {num_thresholds}", AttrError)
        self.num_thresholds, self._name = num_thresholds, name
        self.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Probabilities [N, 2], of the positive class in column 1, and labels 0 or 1."""
        p = _array(preds, "preds")
        if p.ndim != 2 or p.shape[1] != 2:
            raise RANK(f"preds must be [N, 2], has shape {list(p.shape)}", call="Auc.update", site=call_site())
        places = (p[:, 1] * self.num_thresholds).astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() <= self.num_thresholds:
            raise ProgramError("preds are not all in [0, 1]", call="Auc.update", site=call_site())
        positive = _like(labels, places) != 0
        for counts, chosen in ((self.positive, positive), (self.negative, ~positive)):
            counts += np.bincount(places[chosen], minlength=self.num_thresholds + 1)

    def reset(self) -> None:
        self.positive, self.negative = (np.zeros(self.num_thresholds + 1, np.int64) for _ in range(2))

    def accumulate(self) -> float:
        """0 until both labels were seen."""
        pairs = int(self.positive.sum()) * int(self.negative.sum())
        above = self.positive.sum() - np.cumsum(self.positive)
        return float(np.sum(self.negative * (above + self.positive / 2)) / pairs) if pairs else 0.0

    def name(self) -> str:
        return self._name


def _single(values: list[float]) -> Any:
    return values[0] if len(values) == 1 else values


def _array(value: Any, name: str) -> np.ndarray:
    """A fetched array; a Variable has no value yet."""
    if isinstance(value, Variable):
        raise ProgramError(f"{name} must be an array, is the variable {value}", site=call_site(), hint="fetch it first")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" and not np.can_cast(array.dtype, np.float32):
        raise NO_NUMBERS(f"{name} must hold numbers, is {array.dtype}", site=call_site())
    return array


def _like(labels: Any, preds: np.ndarray) -> np.ndarray:
    """Labels as a vector with one element for each prediction."""
    array = _array(labels, "labels").reshape(-1)
    if array.shape != preds.shape:
        raise COUNT(f"{preds.size} predictions have {array.size} labels", site=call_site())
    return array
