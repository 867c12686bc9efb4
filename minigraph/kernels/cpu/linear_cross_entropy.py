"""Linear layer and cross entropy on a CPU, a few rows at a time: the scores of all rows never exist together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph.errors.kinds import INDEX
from minigraph.kernels.chunks import Chunking

from .product import product

PART_BYTES = 16 << 20  # of a weight gradient that is added at a time
CACHED_BYTES = 1 << 20  # of scores that go through all steps together

BY_ROW = ("Loss", "ZLoss", "Square", "Prediction")  # outputs of one number for each row

Parts = dict[str, Any]


def forward(X, W, Label, Bias=None, DLoss=None, DSquare=None, *, needs, out=None, **attrs):
    """Loss and what `needs` names of ZLoss, Prediction, DX, DW, DBias, Square."""
    names = ("Loss", "ZLoss", "Prediction", "DX", "DW", "DBias", "Square")
    made: Parts = dict(zip(names, out or (), strict=False))
    parts = _chunked(X, W, Label, Bias, (DLoss, DSquare), {"Loss", *needs}, made, attrs)
    return tuple(parts.get(name) for name in names)


def backward(X, W, Label, DLoss, Bias=None, DSquare=None, *, needs, out=None, **attrs):
    """DX, DW and DBias, as far as `needs` names them; the scores are computed again."""
    names = ("DX", "DW", "DBias")
    parts = _chunked(
        X, W, Label, Bias, (DLoss, DSquare), needs, dict(zip(names, out or (), strict=False)), attrs
    )
    return tuple(parts.get(name) for name in names)


def _chunked(
    X: np.ndarray, W: np.ndarray, Label: np.ndarray, Bias: np.ndarray | None, seeds: tuple[np.ndarray | None, ...],
    needs: Collection[str], out: Parts, attrs: Mapping[str, Any],
) -> Parts:  # fmt: skip
    """The outputs that are needed, each written chunk by chunk."""
    rows, trans_w = math.prod(X.shape[:-1]), attrs["trans_w"]
    x, w, labels = X.reshape(rows, X.shape[-1]), W.T if trans_w else W, Label.reshape(rows)
    classes = w.shape[1]
    made = _outputs(X, W, classes, np.dtype(attrs["accumulate_dtype"] or X.dtype), needs, out)
    flat = {n: a.reshape(rows, a.shape[-1]) for n, a in made.items() if n not in ("DW", "DBias")}
    loss = _RowLoss(
        _kept(labels, classes, attrs["ignore_index"]), labels, Bias,
        [None if seed is None else seed.reshape(rows) for seed in seeds], flat,
        bool({"DX", "DW", "DBias"} & made.keys()), attrs["label_smoothing"], attrs["z_loss"], attrs["softcap"],
        attrs["token_scaling"],
    )  # fmt: skip
    step = Chunking(attrs["chunk_bytes"], attrs["chunk_rows"]).step(rows, classes, X.itemsize)
    few = max(1, CACHED_BYTES // max(1, classes * X.itemsize))

    for start in range(0, rows, step):
        at = slice(start, start + step)
        z = product(x[at], w)
        for first in range(0, len(z), few):  # as many as stay in a cache from one step to the next
            part = z[first : first + few]
            loss.finish(part, slice(start + first, start + first + len(part)))
        if "DW" in made:
            _add_product(made["DW"], *((z, x[at]) if trans_w else (x[at], z)), first=start == 0)
        if "DX" in flat:  # it may lie where X does
            product(z, w.T, flat["DX"][at])
        if "DBias" in made:
            made["DBias"][...] = z.sum(axis=0) + (made["DBias"].astype(z.dtype) if start else 0)
    if rows == 0:
        for name in made.keys() & {"DW", "DBias"}:
            made[name][...] = 0
    return made


def _outputs(
    X: np.ndarray, W: np.ndarray, classes: int, total: Any, needs: Collection[str], out: Parts
) -> Parts:
    """Arrays for the outputs that are needed: those in `out`, new ones for the others."""
    types = {**dict.fromkeys(BY_ROW, X.dtype), "Prediction": np.int64, "DX": X.dtype, "DW": total, "DBias": total}
    shapes = dict.fromkeys(BY_ROW, (*X.shape[:-1], 1))
    shapes |= {"DX": X.shape, "DW": W.shape, "DBias": (classes,)}
    wanted = [name for name in shapes if name in needs]
    return {n: np.empty(shapes[n], types[n]) if out.get(n) is None else out[n] for n in wanted}


@dataclass
class _RowLoss:
    """The loss of some rows at a time and its gradient, from their scores.

    kept, labels  of all rows: whether they count, and their classes
    seeds         gradients of the losses of all rows, None for 1; of their squared log-sum-exps, None for 0
    flat          where outputs of all rows are written; those that are needed
    trains        whether gradients are needed
    """

    kept: np.ndarray
    labels: np.ndarray
    Bias: np.ndarray | None
    seeds: Sequence[np.ndarray | None]
    flat: Parts
    trains: bool
    smoothing: float
    z_loss: float
    softcap: float | None
    token_scaling: bool

    def finish(self, z: np.ndarray, at: slice) -> None:
        """What is wanted of the rows `at`, whose scores `z` become their gradients."""
        kept, flat = self.kept[at], self.flat
        numbers = np.where(kept, self.labels[at], 0).astype(np.intp)
        if self.Bias is not None:
            z += self.Bias
        slope = _cap(z, self.softcap, self.trains) if self.softcap is not None else None
        if "Prediction" in flat:
            flat["Prediction"][at, 0] = z.argmax(axis=1)
        loss, square, lse, total_exp = _losses(z, numbers, kept, self.smoothing, self.z_loss)
        scaling = np.where(kept, z[np.arange(len(z)), numbers] / total_exp, 0) if self.token_scaling else 1
        loss, square = loss * scaling, square * scaling
        if "Loss" in flat:
            flat["Loss"][at, 0] = loss
        if "ZLoss" in flat:
            flat["ZLoss"][at, 0] = square
        if "Square" in flat:
            flat["Square"][at, 0] = lse * lse
        if not self.trains:
            return
        d_loss, d_square = self.seeds
        seed = np.where(kept, 1 if d_loss is None else d_loss[at], 0).astype(z.dtype) * scaling
        factor, used = seed * (1 + 2 * self.z_loss * lse), kept
        if d_square is not None:
            used = kept | (d_square[at] != 0)
            factor += 2 * lse * d_square[at].astype(z.dtype)
        z *= (factor / total_exp)[:, None]
        if self.smoothing:
            z -= (seed * (self.smoothing / z.shape[1]))[:, None]
        z[np.arange(len(z)), numbers] -= seed * (1 - self.smoothing)
        if slope is not None:
            z *= slope
        z[~used] = 0  # also where a score is infinite


def _kept(labels: np.ndarray, classes: int, ignore_index: int) -> np.ndarray:
    """Which rows are not ignored; a label that is no class is refused."""
    kept = labels != ignore_index
    wrong = np.flatnonzero(kept & ((labels < 0) | (labels >= classes)))
    if wrong.size:
        raise INDEX(
            f"label {labels[wrong[0]]} of row {wrong[0]} is not a class in [0, {classes})"
            f" and not ignore_index {ignore_index}"
        )
    return kept


def _cap(z: np.ndarray, softcap: float, trains: bool) -> np.ndarray | None:
    """z = softcap * tanh(z / softcap); returns the derivative where it is needed."""
    z /= softcap
    np.tanh(z, out=z)
    slope = 1 - z * z if trains else None
    z *= softcap
    return slope


def _losses(
    z: np.ndarray, numbers: np.ndarray, kept: np.ndarray, smoothing: float, z_loss: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(loss, its part z_loss * lse^2, lse, sum of what is left in z: exp(z - max)) of each row."""
    top = z.max(axis=1, keepdims=True)
    z -= top
    own = z[np.arange(len(z)), numbers]
    mean = z.mean(axis=1) if smoothing else None
    np.exp(z, out=z)
    total = z.sum(axis=1)
    log_total = np.log(total)
    lse = log_total + top[:, 0]
    square = np.where(kept, z_loss * lse * lse, 0)
    loss = log_total - ((1 - smoothing) * own + smoothing * mean if mean is not None else own)
    return np.where(kept, loss, 0) + square, square, lse, total


def _add_product(total: np.ndarray, a: np.ndarray, b: np.ndarray, first: bool) -> None:
    """total = or += a^T @ b, some rows at a time, so that nothing else of its size is made."""
    step = max(1, PART_BYTES // max(1, total.shape[1] * b.itemsize))
    for start in range(0, total.shape[0], step):
        rows = slice(start, start + step)
        if first and total.dtype == b.dtype:
            product(a[:, rows].T, b, total[rows])
        else:  # a 16-bit total is rounded after each chunk, as on a GPU
            part = product(a[:, rows].T, b)
            total[rows] = part if first else part + total[rows].astype(part.dtype, copy=False)
