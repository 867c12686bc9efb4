"""GPU checks of arrays with more than 2^31 elements. Everything stays on the GPU, CuPy tells what is right."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.kernels import philox
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.types import as_dtype, tensor_type
from tests.gpu.check import PLACE, Check, GpuExecutor, normal


def checks() -> Iterator[Check]:
    for name, run in HUGE.items():
        yield Check(f"huge/{name}", run, alone=True)


ROWS_OF_HUGE, COLUMNS_OF_HUGE = 1 << 20, 2049  # 2^31 + 2^20 elements
PART = 1 << 26


def _run_all(op_type: str, feeds: dict[str, Any], **attrs: Any) -> list[Any]:
    """The outputs of an operator on device arrays, as device arrays; None for those that it leaves out."""
    block = Program().global_block()
    variables = {
        slot: block.create_var(slot, type=tensor_type(x.shape, as_dtype(x.dtype.name)), is_data=True)
        for slot, x in feeds.items()
    }
    outs = Builder(block).emit(op_type, **variables, **attrs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    wanted = [v for v in outs if v is not None]
    found = iter(GpuExecutor(PLACE).run(block.program, feeds, wanted, scope=Scope(), return_numpy=False))
    return [None if v is None else next(found) for v in outs]


def _run(op_type: str, feeds: dict[str, Any], **attrs: Any) -> Any:
    """The first of them."""
    return _run_all(op_type, feeds, **attrs)[0]


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


def _halves() -> Any:
    """float16 numbers from -3 to 3 in as many rows and columns."""
    x = _bytes().reshape(ROWS_OF_HUGE, COLUMNS_OF_HUGE).astype("float16")
    x /= 16
    return x


LOOKED_AT = (0, 1, ROWS_OF_HUGE // 2, (1 << 31) // COLUMNS_OF_HUGE, ROWS_OF_HUGE - 1)  # rows


def _rows_near(found: Any, expected: Callable[[int], Any], tolerance: float, rows: Sequence[int] = LOOKED_AT) -> None:
    for row in rows:
        error = float(abs(found[row].astype("float64") - expected(row)).max())
        assert error <= tolerance, f"row {row} is off by {error}"


def huge_running_sums() -> None:
    """Each sum is the one before and its element; the last one is the sum of all, in 8 bits."""
    cupy = importlib.import_module("cupy")
    for shape, axis in (((3, (1 << 31) // 3 + 11), 1), ((ROWS_OF_HUGE, COLUMNS_OF_HUGE), 0)):
        x = _bytes(shape[0] * shape[1]).reshape(shape)
        out = _run("cumsum", {"X": x}, axis=axis)
        lines, sums = (x, out) if axis else (x.T, out.T)
        assert bool((sums[:, 0] == lines[:, 0]).all())
        total = cupy.sum(lines, axis=1, dtype=cupy.int64).astype(out.dtype)
        assert bool((sums[:, -1] == total).all()), "the last sums differ"
        step = PART // shape[0] + 1 if axis else PART // shape[1]
        for start in range(1, lines.shape[1], step):
            part = slice(start, min(start + step, lines.shape[1]))
            before = sums[:, part.start - 1 : part.stop - 1]
            assert bool((sums[:, part] - before == lines[:, part]).all()), f"sums from {start} of {shape} differ"


def huge_layer_norm() -> None:
    cupy = importlib.import_module("cupy")
    x, scale, bias = _halves(), *(cupy.asarray(normal(COLUMNS_OF_HUGE, seed=s).astype("float16")) for s in (1, 2))
    y, mean, variance = _run_all(
        "layer_norm", {"X": x, "Scale": scale, "Bias": bias}, begin_norm_axis=1, needs=["Y", "Mean", "Variance"]
    )

    def normalised(row: int) -> Any:
        wide = x[row].astype("float64")
        return (wide - wide.mean()) / cupy.sqrt(wide.var() + 1e-5)

    _rows_near(y, lambda row: normalised(row) * scale.astype("float64") + bias.astype("float64"), 0.02)
    given = {"X": x, "Mean": mean, "Variance": variance, "Y_grad": y, "Scale": scale, "Bias": bias}
    wanted = ["X_grad", "Scale_grad", "Bias_grad"]
    X_grad, _, Bias_grad = _run_all("layer_norm_grad", given, begin_norm_axis=1, needs=wanted)

    def gradient(row: int) -> Any:
        h, d = normalised(row), y[row].astype("float64") * scale.astype("float64")
        return (d - d.mean() - h * (d * h).mean()) / cupy.sqrt(x[row].astype("float64").var() + 1e-5)

    _rows_near(X_grad, gradient, 0.05)
    total = sum(y[i : i + 4096].sum(0, dtype="float64") for i in range(0, ROWS_OF_HUGE, 4096))
    error = float(abs(Bias_grad.astype("float64") - total)[abs(total) < 6e4].max())
    assert error <= 2e-3 * float(abs(total).max()), f"Bias_grad is off by {error}"


def huge_cross_entropy() -> None:
    cupy = importlib.import_module("cupy")
    x = _halves()
    label = (cupy.arange(ROWS_OF_HUGE, dtype="int64") * 7919 % COLUMNS_OF_HUGE).reshape(-1, 1)
    feeds = {"Logits": x, "Label": label}
    softmax, loss = _run_all("softmax_with_cross_entropy", feeds, needs=["Softmax", "Loss"])

    def probabilities(row: int) -> Any:
        e = cupy.exp(x[row].astype("float64"))
        return e / e.sum()

    _rows_near(softmax, probabilities, 1e-4)
    _rows_near(loss, lambda row: -cupy.log(probabilities(row)[label[row]]), 0.02)
    given = {"Label": label, "Softmax": softmax, "Loss_grad": loss}
    found = _run("softmax_with_cross_entropy_grad", given)

    def gradient(row: int) -> Any:
        p = softmax[row].astype("float64")
        p[label[row]] -= 1
        return p * loss[row].astype("float64")

    _rows_near(found, gradient, 0.01)


def huge_dropout() -> None:
    """Elements far behind are drawn from their own words, not from those of the front."""
    cupy = importlib.import_module("cupy")
    x = _halves().reshape(-1)
    out, mask = _run_all("dropout", {"X": x}, p=0.3, seed=5, needs=["Out", "Mask"])
    for first in (0, 1 << 31, x.size - 4096):
        part = slice(first, first + 4096)
        kept = philox.keep_mask((5, 0, 0, first), (4096,), 0.3)
        assert (cupy.asnumpy(mask[part]) == kept).all(), f"the mask from {first} on differs"
        exact = cupy.asnumpy(x[part]).astype(float) * kept / 0.7
        assert np.abs(cupy.asnumpy(out[part]).astype(float) - exact).max() < 0.01, f"elements from {first} on differ"


def huge_gradient_of_rows() -> None:
    """A table of more than 2^31 elements from few rows, and one of few rows from more than 2^31 elements."""
    cupy = importlib.import_module("cupy")
    x, ids = _halves(), cupy.asarray(np.arange(ROWS_OF_HUGE) * 5 % 7, dtype="int64")
    found = _run("embedding_grad", {"Ids": ids, "W": x[:7], "Out_grad": x})
    for v in range(7):
        total = sum(x[i : i + (1 << 17)][ids[i : i + (1 << 17)] == v].sum(0, dtype="float64") for i in
                    range(0, ROWS_OF_HUGE, 1 << 17))  # fmt: skip
        error = float(abs(found[v].astype("float64") - total)[abs(total) < 6e4].max())
        assert error <= 2e-3 * float(abs(total).max()), f"row {v} is off by {error}"
    for where in (cupy.asarray([3, ROWS_OF_HUGE - 1, 3]), cupy.arange(ROWS_OF_HUGE)[::-1].copy()):
        rows = x[: where.size]
        out = _run("embedding_grad", {"Ids": where, "W": x, "Out_grad": rows})
        if where.size == 3:
            assert bool((out[3] == (rows[0].astype("float32") + rows[2]).astype("float16")).all())
            assert bool((out[-1] == rows[1]).all()) and not bool(out[4:-1].any()) and not bool(out[:3].any())
        else:
            _rows_near(out, lambda row: x[ROWS_OF_HUGE - 1 - row].astype("float64"), 0.0)
        del out


def huge_one_hot_and_triangle() -> None:
    cupy = importlib.import_module("cupy")
    at = cupy.arange(ROWS_OF_HUGE, dtype="int64") * 7919 % COLUMNS_OF_HUGE
    out = _run("one_hot", {"X": at}, depth=COLUMNS_OF_HUGE)
    assert bool((out.argmax(1) == at).all()) and bool((out.sum(1) == 1).all())
    del out
    shape = (46349, 46337)
    x = _bytes(shape[0] * shape[1]).reshape(shape)
    out = _run("tril_triu", {"X": x}, diagonal=-5)
    for start in range(0, shape[0], 1024):
        part = x[start : start + 1024]
        assert bool((out[start : start + 1024] == cupy.tril(part, start - 5)).all()), f"rows from {start} differ"


def huge_odd_rows_of_16_bits() -> None:
    shape = (46349, 46337)
    x = _bytes(shape[0] * shape[1]).reshape(shape).astype("int16")
    x *= 257
    out = _run("transpose", {"X": x}, perm=(1, 0))
    for start in range(0, shape[1], 1024):
        assert bool((out[start : start + 1024] == x[:, start : start + 1024].T).all()), f"rows from {start} differ"


def huge_tile() -> None:
    few = _bytes(3 * ((1 << 30) // 3 + 700)).reshape(-1, 3)
    out = _run("tile", {"X": few}, repeat_times=(2, 1))
    assert bool((out[: few.shape[0]] == few).all()) and bool((out[few.shape[0] :] == few).all())


HUGE: dict[str, Callable[[], None]] = {
    "add": huge_add, "broadcast": huge_broadcast, "relu": huge_relu_in_16_bits, "max": huge_max, "sums": huge_sums,
    "transpose": huge_transpose, "slice_concat": huge_slice_and_concat, "softmax": huge_softmax,
    "embedding": huge_embedding, "matmul": huge_product, "cumsum": huge_running_sums, "layer_norm": huge_layer_norm,
    "cross_entropy": huge_cross_entropy, "dropout": huge_dropout, "embedding_grad": huge_gradient_of_rows,
    "one_hot_tril": huge_one_hot_and_triangle, "odd_rows": huge_odd_rows_of_16_bits, "tile": huge_tile,
}  # fmt: skip
