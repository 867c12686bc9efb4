"""GPU checks of sizes: one, zero, primes, many rows, wide rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.gpu.check import Check, call_of, check_call, each, normal

MANY = 1 << 20
ROWS = {
    "many": (MANY, 3), "wide": (3, MANY), "one": (1, MANY + 1), "column": (MANY + 1, 1), "prime": (257, 1021),
    "odd": (33, 4099), "rank3": (17, 1031, 5), "single": (1, 1),
}  # fmt: skip
TYPES = ("float32", "bfloat16")


def checks() -> Iterator[Check]:
    for shape in ROWS:
        for dtype in TYPES:
            for name in CASES:
                yield Check(f"shapes/{name}/{shape}/{dtype}", partial(_case, name, shape, dtype))
    for dtype in (*TYPES, "float64"):
        yield Check(f"shapes/spread/{dtype}", partial(_spread, dtype, 20000, 15000))
    yield Check("shapes/spread/few", partial(_spread, "float32", 400, 300), sanitize=True)
    yield Check("shapes/spread/crowd", _crowd, sanitize=True)
    for dtype in TYPES:
        yield Check(f"shapes/tiles/{dtype}", partial(_tiles, dtype), sanitize=True)


def _case(name: str, shape: str, dtype: str) -> None:
    each(CASES[name](normal(*ROWS[shape]), dtype))


# cases: {name: (array, dtype) -> (title, check)}

Cases = Iterator[tuple[str, Callable[[], None]]]


def _one(
    title: str,
    dtype: str,
    op_type: str,
    inputs: dict[str, Any],
    scale: float | dict[str, float] | None = None,
    **attrs: Any,
) -> tuple[str, Callable[[], None]]:
    return title, partial(check_call, call_of(op_type, inputs, **attrs), dtype, scale)


def reductions(x: np.ndarray, dtype: str) -> Cases:
    for axis in (None, (0,), (x.ndim - 1,), *([(0, 2), (1,)] if x.ndim > 2 else [])):
        count = x.size if axis is None else int(np.prod([x.shape[a] for a in axis]))
        scale = 4 * max(1.0, count**0.5)
        yield _one(f"sum {axis}", dtype, "reduce_sum", {"X": x}, scale, axis=axis)
        yield _one(f"mean {axis}", dtype, "reduce_mean", {"X": x}, axis=axis, keepdim=True)
        yield _one(f"max {axis}", dtype, "reduce_max", {"X": x}, axis=axis)
        if axis is None or len(axis) == 1:
            yield _one(
                f"arg_max {axis}",
                dtype,
                "arg_max",
                {"X": x},
                axis=None if axis is None else axis[0],
            )


def running_sums(x: np.ndarray, dtype: str) -> Cases:
    for axis in range(x.ndim):
        scale = 8 * x.shape[axis] ** 0.5
        yield _one(f"axis {axis}", dtype, "cumsum", {"X": x}, scale, axis=axis)
        yield _one(
            f"axis {axis} back",
            dtype,
            "cumsum",
            {"X": x},
            scale,
            axis=axis,
            exclusive=True,
            reverse=True,
        )


def softmax64(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmaxes(x: np.ndarray, dtype: str) -> Cases:
    """Probabilities of long rows are small: errors are measured by the largest of them."""
    d = normal(*x.shape, seed=1)
    for axis in (-1, 0):
        y = softmax64(x, axis)
        peak, long = float(y.max(initial=0)), 8 * x.shape[axis] ** 0.5
        yield _one(f"softmax {axis}", dtype, "softmax", {"X": x}, peak, axis=axis)
        yield _one(f"log_softmax {axis}", dtype, "log_softmax", {"X": x}, axis=axis)
        inputs = {"Out": y, "Out_grad": d}
        yield _one(f"softmax_grad {axis}", dtype, "softmax_grad", inputs, 8 * peak, axis=axis)
        inputs = {"Out": np.log(y), "Out_grad": d}
        yield _one(
            f"log_softmax_grad {axis}",
            dtype,
            "log_softmax_grad",
            inputs,
            max(8.0, peak * long),
            axis=axis,
        )


def cross_entropies(x: np.ndarray, dtype: str) -> Cases:
    labels = np.random.default_rng(3).integers(0, x.shape[-1], (*x.shape[:-1], 1))
    labels.reshape(-1)[::7] = -100
    y = softmax64(x, -1)
    peak = float(y.max(initial=0))
    scale = {"Softmax": peak, "Loss": 16.0}
    yield _one("hard", dtype, "softmax_with_cross_entropy", {"Logits": x, "Label": labels}, scale)
    inputs = {"Logits": x, "Label": y}
    yield _one("soft", dtype, "softmax_with_cross_entropy", inputs, scale, soft_label=True)
    inputs = {"Label": labels, "Softmax": y, "Loss_grad": normal(*labels.shape, seed=2)}
    yield _one("gradient", dtype, "softmax_with_cross_entropy_grad", inputs, 8 * peak)


def norms(x: np.ndarray, dtype: str) -> Cases:
    n, scale = x.shape[-1], 16.0 * max(x.shape) ** 0.5
    weights = {"Scale": normal(n, seed=1), "Bias": normal(n, seed=2)}
    begin = x.ndim - 1
    yield _one("forward", dtype, "layer_norm", {"X": x, **weights}, begin_norm_axis=begin)
    rows = x.reshape(-1, n)
    made = {
        "X": x,
        "Scale": weights["Scale"],
        "Mean": rows.mean(1),
        "Variance": rows.var(1),
        "Y_grad": normal(*x.shape, seed=4),
    }
    if n > 1:  # the variance of one element is 0, the gradient is magnified by epsilon's root
        yield _one("gradient", dtype, "layer_norm_grad", made, scale, begin_norm_axis=begin)


def pointwise(x: np.ndarray, dtype: str) -> Cases:
    row, column = normal(x.shape[-1], seed=5), normal(*x.shape[:-1], 1, seed=6)
    yield _one("relu", dtype, "relu", {"X": x})
    yield _one("gelu", dtype, "gelu", {"X": x})
    yield _one("gelu tanh", dtype, "gelu", {"X": x}, approximate=True)
    for other, y in (
        ("same", normal(*x.shape, seed=7)),
        ("row", row),
        ("column", column),
        ("one", normal(1, seed=8)),
    ):
        yield _one(f"add {other}", dtype, "elementwise_add", {"X": x, "Y": y})
        yield _one(f"mul {other}", dtype, "elementwise_mul", {"X": x, "Y": y})
        grads = {"X": x, "Y": y, "Out_grad": normal(*x.shape, seed=9)}
        yield _one(
            f"mul_grad {other}",
            dtype,
            "elementwise_mul_grad",
            grads,
            16 * (x.size / max(1, y.size)) ** 0.5,
        )


def movement(x: np.ndarray, dtype: str) -> Cases:
    perm = tuple(range(x.ndim))
    yield _one("transpose", dtype, "transpose", {"X": x}, perm=perm[::-1])
    if x.ndim > 2:
        for p in ((0, 2, 1), (1, 0, 2), (2, 0, 1), (1, 2, 0)):
            yield _one(f"transpose {p}", dtype, "transpose", {"X": x}, perm=p)
    for axis in (0, x.ndim - 1):
        yield _one(f"concat {axis}", dtype, "concat", {"X": [x, x]}, axis=axis)
        if x.shape[axis] > 2:
            yield _one(
                f"slice {axis}",
                dtype,
                "slice",
                {"X": x},
                axes=(axis,),
                starts=(1,),
                ends=(x.shape[axis] - 1,),
            )
            yield _one(
                f"slice {axis} by 2",
                dtype,
                "slice",
                {"X": x},
                axes=(axis,),
                starts=(1,),
                ends=(x.shape[axis],),
                steps=(2,),
            )
    yield _one("stack", dtype, "stack", {"X": [x, x]}, axis=1)
    yield _one("tril", dtype, "tril_triu", {"X": x}, diagonal=1)


def rows_by_index(x: np.ndarray, dtype: str) -> Cases:
    """A table of few rows, so that many indices meet in one, and one with a row for each."""
    rng, table = np.random.default_rng(4), x.reshape(-1, x.shape[-1])
    for rows in sorted({1, 7, table.shape[0]}):
        ids, w = rng.integers(0, rows, (table.shape[0],)), normal(rows, x.shape[-1], seed=1)
        scale = 16 * (1 + table.shape[0] / rows) ** 0.5
        yield _one(
            f"embedding of {rows}",
            dtype,
            "embedding",
            {"Ids": ids, "W": w},
            padding_idx=0 if rows > 1 else None,
        )
        grads = {"Ids": ids, "W": w, "Out_grad": table}
        yield _one(f"gradient of {rows}", dtype, "embedding_grad", grads, scale)


def _spread(dtype: str, n: int, rows: int) -> None:
    """Gradients of embeddings whose tables have about as many rows as there are ids, however these are spread."""
    rng = np.random.default_rng(5)
    power = np.minimum(rng.zipf(1.2, n) - 1, rows - 1)
    spread = {"even": rng.integers(0, rows, n), "skewed": rng.permutation(rows)[power], "sorted": np.sort(power),
              "one": np.full(n, 7), "two": rng.integers(0, 2, n), "all": rng.permutation(n) % rows}  # fmt: skip
    for name, ids in spread.items():
        for width in (64, 328, 1040):  # short rows are sorted, others lie in bins
            grads = {"Ids": ids, "W": np.zeros((rows, width)), "Out_grad": normal(n, width, seed=2)}
            scale = 16 * float(np.bincount(ids).max()) ** 0.5
            title, check = _one(f"{name} {width}", dtype, "embedding_grad", grads, scale, padding_idx=3)
            each(iter([(title, check)]))


def _crowd() -> None:
    """So many ids are the same that their sums are added up in two steps."""
    ids = np.full(4500, 7)
    grads = {"Ids": ids, "W": np.zeros((1200, 128)), "Out_grad": normal(len(ids), 128, seed=2)}
    _, check = _one("crowd", "float32", "embedding_grad", grads, 16 * len(ids) ** 0.5)
    check()


def _tiles(dtype: str) -> None:
    """Small transposes through tiles: rows on boundaries, of even and of odd pitch."""
    for shape in ((2, 64, 96), (2, 66, 130), (2, 67, 131), (1, 90, 303)):
        each(iter([_one(f"transpose of {shape}", dtype, "transpose", {"X": normal(*shape)}, perm=(0, 2, 1))]))


def drops(x: np.ndarray, dtype: str) -> Cases:
    yield _one("dropout", dtype, "dropout", {"X": x}, p=0.4, seed=5)


CASES: dict[str, Callable[[np.ndarray, str], Cases]] = {
    "reduce": reductions, "cumsum": running_sums, "softmax": softmaxes, "cross_entropy": cross_entropies,
    "layer_norm": norms, "pointwise": pointwise, "movement": movement, "embedding": rows_by_index, "dropout": drops,
}  # fmt: skip
