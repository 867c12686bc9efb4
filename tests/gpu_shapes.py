"""GPU checks of sizes: one, zero, primes, many rows, wide rows, more than 2^31 elements."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from gpucheck import PLACE, Check, GpuExecutor, call_of, check_call, each, normal

from minigraph.builder import Builder
from minigraph.program import Program
from minigraph.scope import Scope
from minigraph.types import as_dtype, tensor_type

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
    for name, run in HUGE.items():
        yield Check(f"huge/{name}", run, alone=True)


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


def drops(x: np.ndarray, dtype: str) -> Cases:
    yield _one("dropout", dtype, "dropout", {"X": x}, p=0.4, seed=5)


CASES: dict[str, Callable[[np.ndarray, str], Cases]] = {
    "reduce": reductions, "cumsum": running_sums, "softmax": softmaxes, "cross_entropy": cross_entropies,
    "layer_norm": norms, "pointwise": pointwise, "movement": movement, "embedding": rows_by_index, "dropout": drops,
}  # fmt: skip

# more than 2^31 elements; everything stays on the GPU, CuPy tells what is right

ROWS_OF_HUGE, COLUMNS_OF_HUGE = 1 << 20, 2049  # 2^31 + 2^20 elements
PART = 1 << 26


def _run(op_type: str, feeds: dict[str, Any], **attrs: Any) -> Any:
    """The first output of an operator on device arrays, as a device array."""
    block = Program().global_block()
    variables = {
        slot: block.create_var(
            slot, type=tensor_type(x.shape, as_dtype(x.dtype.name)), is_data=True
        )
        for slot, x in feeds.items()
    }
    out = Builder(block).emit(op_type, **variables, **attrs)
    out = out if not isinstance(out, tuple) else out[0]
    return GpuExecutor(PLACE).run(block.program, feeds, [out], scope=Scope(), return_numpy=False)[0]


def _bytes(size: int = ROWS_OF_HUGE * COLUMNS_OF_HUGE) -> Any:
    """int8 numbers with a period that is no power of two."""
    cupy = importlib.import_module("cupy")
    x = cupy.empty(size, cupy.int8)
    for start in range(0, size, PART):
        stop = min(start + PART, size)
        x[start:stop] = cupy.arange(start, stop, dtype=cupy.int64) % 97 - 48
    return x


def _same(found: Any, expected: Callable[[int, int], Any]) -> None:
    """found[start:stop] == expected(start, stop) in pieces of the flattened array."""
    flat = found.reshape(-1)
    for start in range(0, flat.size, PART):
        stop = min(start + PART, flat.size)
        wrong = int((flat[start:stop] != expected(start, stop)).sum())
        assert not wrong, f"{wrong} elements from {start} to {stop} differ"


def huge_add() -> None:
    x = _bytes()
    _same(_run("elementwise_add", {"X": x, "Y": x}), lambda a, b: x[a:b] + x[a:b])


def huge_broadcast() -> None:
    x = _bytes().reshape(ROWS_OF_HUGE, COLUMNS_OF_HUGE)
    y = x[5] % 7
    out = _run("elementwise_add", {"X": x, "Y": y})
    rows = PART // COLUMNS_OF_HUGE
    for start in range(0, ROWS_OF_HUGE, rows):
        assert bool((out[start : start + rows] == x[start : start + rows] + y).all()), (
            f"rows from {start} differ"
        )


def huge_relu_in_16_bits() -> None:
    x = _bytes().astype("float16")
    _same(_run("relu", {"X": x}), lambda a, b: x[a:b].clip(0, None))


def huge_max() -> None:
    x = _bytes()
    for place in (x.size - 1, 0, (1 << 31) + 5):
        x[place] = 100
        out = _run("reduce_max", {"X": x})
        at = _run("arg_max", {"X": x})
        assert int(out) == 100 and int(at) == place, (
            f"max {int(out)} at {int(at)}, it is 100 at {place}"
        )
        x[place] = 0


def huge_sums() -> None:
    """Along both axes, one of which is longer than 2^31 / 3."""
    cupy = importlib.import_module("cupy")
    for shape in (
        (ROWS_OF_HUGE, COLUMNS_OF_HUGE),
        (3, (1 << 31) // 3 + 11),
        ((1 << 31) // 3 + 11, 3),
    ):
        x = _bytes(shape[0] * shape[1]).reshape(shape)
        for axis in (0, 1):
            out = _run("reduce_sum", {"X": x}, axis=(axis,))
            expected = cupy.sum(x, axis=axis, dtype=cupy.int64)
            assert bool((out == expected).all()), (
                f"axis {axis} of {shape}: {int((out != expected).sum())} sums differ"
            )


def huge_transpose() -> None:
    shape = (46349, 46337)
    x = _bytes(shape[0] * shape[1]).reshape(shape)
    out = _run("transpose", {"X": x}, perm=(1, 0))
    for start in range(0, shape[1], 1024):
        assert bool((out[start : start + 1024] == x[:, start : start + 1024].T).all()), (
            f"rows from {start} differ"
        )


def huge_slice_and_concat() -> None:
    x = _bytes()
    _same(_run("slice", {"X": x}, axes=(0,), starts=(1,), ends=(x.size,)), lambda a, b: x[1:][a:b])
    half = x[: x.size // 2 + 3]
    block = Program().global_block()
    v = block.create_var("x", type=tensor_type(half.shape, "int8"), is_data=True)
    out = Builder(block).concat([v, v], axis=0)
    joined = GpuExecutor(PLACE).run(
        block.program, {"x": half}, [out], scope=Scope(), return_numpy=False
    )[0]
    assert bool((joined[: half.size] == half).all()) and bool((joined[half.size :] == half).all())


def huge_softmax() -> None:
    """Rows are looked at from the front, the middle and the end."""
    cupy = importlib.import_module("cupy")
    x = _bytes().reshape(ROWS_OF_HUGE, COLUMNS_OF_HUGE).astype("float16")
    x /= 16
    out = _run("softmax", {"X": x}, axis=-1)
    for row in (0, ROWS_OF_HUGE // 2, ROWS_OF_HUGE - 1):
        e = cupy.exp(x[row].astype("float64"))
        assert float(abs(out[row].astype("float64") - e / e.sum()).max()) < 1e-4, (
            f"row {row} differs"
        )


def huge_embedding() -> None:
    cupy = importlib.import_module("cupy")
    w = _bytes().reshape(ROWS_OF_HUGE, COLUMNS_OF_HUGE).astype("float16")
    ids = cupy.asarray([0, ROWS_OF_HUGE - 1, ROWS_OF_HUGE // 2 + 1], dtype="int64")
    assert bool((_run("embedding", {"Ids": ids, "W": w}) == w[ids]).all())


def huge_product() -> None:
    x, w = (normal(*shape).astype("float16") for shape in ((ROWS_OF_HUGE, 8), (8, COLUMNS_OF_HUGE)))
    cupy = importlib.import_module("cupy")
    out = _run("matmul", {"X": cupy.asarray(x), "Y": cupy.asarray(w)})
    for row in (0, ROWS_OF_HUGE // 2, ROWS_OF_HUGE - 1):
        exact = x[row].astype(float) @ w.astype(float)
        assert float(np.abs(out[row].get().astype(float) - exact).max()) < 0.02, (
            f"row {row} differs"
        )


HUGE: dict[str, Callable[[], None]] = {
    "add": huge_add, "broadcast": huge_broadcast, "relu": huge_relu_in_16_bits, "max": huge_max, "sums": huge_sums,
    "transpose": huge_transpose, "slice_concat": huge_slice_and_concat, "softmax": huge_softmax,
    "embedding": huge_embedding, "matmul": huge_product,
}  # fmt: skip
