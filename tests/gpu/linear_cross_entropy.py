"""GPU checks of the last layer with its loss: options in all types against plain runs, long rows, chunks, labels.

"own kernels" are the same with NumPy's products in the place of cuBLASLt's, so that all that runs is our own and what
compute-sanitizer's tools say means something.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import cuda
from minigraph.errors import MinigraphError
from minigraph.kernels.chunks import WORKSPACE, chunk_rows
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.gpu.check import DTYPES, PLACE, Check, GpuExecutor, each
from tests.support.head_memory import LARGE, ROWS, check, net
from tests.support.language_model import curve, distance
from tests.support.linear_heads import (
    EVERYTHING,
    SPELLINGS,
    STEP,
    F,
    Options,
    assert_twice,
    exact,
    results,
    values,
)

SHAPES = {"small": (4, 47, 31, 123), "even": (5, 24, 64, 256), "one": (1, 8, 1), "tall": (700, 16, 40)}
LONG = ((5, 16, 131072), (3, 16, 50257), (2, 8, 200001), (3, 8, 24577))  # beyond shared memory, odd, unaligned
LIGER = (8, 128, 1024, 4096)
PLAIN, WHOLE = {}, {"bias": True, "transposed": True, **EVERYTHING}
TRACED = {  # for the sanitizer, which takes a second for a kernel: odd sizes, packs, rows beyond shared memory
    (2, 5, 31, 123): (
        {"bias": True, "smoothing": 0.1, "ignore_index": 42}, {"bias": True, "token_weight": True, "reduction": "none"},
        {"softcap": 30.0, "class_weight": True, "z_loss": 1e-3, "reduction": "sum"}, {"bias": True, "trains": False},
    ),
    (12, 64, 256): (PLAIN, WHOLE),
    (2, 8, 131072): (WHOLE,),
}  # fmt: skip


def checks() -> Iterator[Check]:
    for dtype in DTYPES:
        for shape in SHAPES:
            title = f"linear_cross_entropy/{shape}/{dtype}"
            yield Check(title, partial(_options, SHAPES[shape], dtype), product=True)
        yield Check(f"linear_cross_entropy/long/{dtype}", partial(_long_rows, dtype), product=True)
    for dtype in ("float32", "bfloat16", "float16"):
        yield Check(f"linear_cross_entropy/liger/{dtype}", partial(_liger, dtype), product=True)
    for dtype in ("bfloat16", "float16"):
        yield Check(f"linear_cross_entropy/rounded/{dtype}", partial(_rounded, dtype), product=True)
    for dtype in DTYPES:
        yield Check(f"linear_cross_entropy/written/{dtype}", partial(_written, dtype), product=True)
    for dtype in ("bfloat16", "float16"):
        yield Check(f"linear_cross_entropy/mixed/{dtype}", partial(_mixed, dtype), product=True)
    yield Check("linear_cross_entropy/planned memory", _planned, alone=True)
    for dtype in DTYPES:
        yield Check(f"linear_cross_entropy/token scaling/{dtype}", partial(_token_scaling, dtype), product=True)
    for dtype in ("float32", "bfloat16", "float16"):
        yield Check(f"linear_cross_entropy/training/{dtype}", partial(_training, dtype), product=True)
    for run in (_labels, _ignored, _captured, _side_outputs, _frozen):
        yield Check(f"linear_cross_entropy/{run.__name__.strip('_')}", run, product=True)
    for dtype in ("float32", "bfloat16"):
        for shape in TRACED:
            title = f"linear_cross_entropy/own kernels/{dtype}, {shape[-1]} classes"
            yield Check(title, partial(_own_kernels, shape, dtype), sanitize=True)
        yield Check(f"linear_cross_entropy/few/{dtype}", partial(_few, dtype), sanitize=True, product=True)
    yield Check("linear_cross_entropy/own kernels/side outputs", _own_side_outputs, sanitize=True)


@contextmanager
def _products_by_numpy() -> Iterator[None]:
    """Whatever is bound in here computes on the host what cuBLASLt would: only kernels of our own run on the GPU."""
    runtime = cuda.runtime(PLACE)
    if not hasattr(runtime, "products"):  # a stand-in for a GPU: it has no others
        yield
        return
    launcher = importlib.import_module("minigraph.kernels.cuda.device.launcher").Launcher
    bound, launcher.product = launcher.product, lambda self, call: partial(_product, runtime, call)
    try:
        yield
    finally:
        launcher.product = bound


def _product(runtime: Any, call: Gemm) -> None:
    """epilogue(op(A) @ op(B) + beta * C) -> C by NumPy, in float32 at least."""
    assert call.batch == 1 and call.epilogue in ("DEFAULT", "BIAS"), call.epilogue
    real = np.float64 if call.c.dtype == np.float64 else np.float32

    def values_of(buffer: Any, *shape: int) -> np.ndarray:
        found = runtime.fetch(buffer, True)
        runtime.stream.synchronize()
        return found.astype(real).reshape(shape)

    a = values_of(call.a, call.k, call.m).T if call.trans_a else values_of(call.a, call.m, call.k)
    b = values_of(call.b, call.n, call.k).T if call.trans_b else values_of(call.b, call.k, call.n)
    z = a @ b
    if call.beta:
        z += real(call.beta) * values_of(call.c, call.m, call.n)
    if call.bias is not None:
        z += values_of(call.bias, call.n)
    runtime.upload(np.ascontiguousarray(z.astype(call.c.dtype)), call.c)
    runtime.stream.synchronize()


def _own_kernels(shape: tuple[int, ...], dtype: str) -> None:
    """Several chunks with every option. A run for each: a CUDA graph cannot hold what the host computes."""

    def cases():
        for extra in TRACED[shape]:
            o = Options(chunk_bytes=4 * shape[-1] * np.dtype("f4").itemsize, **extra)
            yield f"{shape} {o}", partial(_near, shape, dtype, o, ("rewritten",), 1, Executor)

    with _products_by_numpy():
        each(cases())


def _own_side_outputs() -> None:
    """z-loss, accuracy, a label out of range, all labels ignored."""
    with _products_by_numpy():
        _side_outputs(("bfloat16",))
        _ignored(("float32",))
        _labels((50,), (31,))


def _few(dtype: str) -> None:
    """With cuBLASLt's products, captured."""
    for extra in (PLAIN, WHOLE):
        _near((12, 64, 256), dtype, Options(chunk_bytes=5 * 256 * 4, **extra), ("rewritten",))


def _near(
    shape: tuple[int, ...], dtype: str, o: Options, spellings: tuple[str, ...] = SPELLINGS, times: int = 3,
    plainly: Any = GpuExecutor,
) -> None:  # fmt: skip
    """float64 to rounding; other types err at most twice as much as the plain program, and two steps."""
    arrays = values(shape, o, dtype)
    right = exact(arrays, o)
    plain = results("plain", arrays, o, plainly)
    for spelling in spellings:
        found = results(spelling, arrays, o, GpuExecutor, times=times)
        if dtype == "float64":
            for name, a in right.items():
                np.testing.assert_allclose(found[name], a, rtol=1e-9, atol=1e-11 * max(1, np.abs(a).max(initial=0)))
        else:
            assert_twice(found, plain, right, right, 2 * STEP[dtype])


def _options(shape: tuple[int, ...], dtype: str) -> None:
    def cases():
        classes = shape[-1]
        for bias in (False, True):
            for transposed in (False, True):
                for reduction in ("mean", "sum", "none"):
                    for extra in ({}, {**EVERYTHING, "ignore_index": min(42, classes - 1)}):
                        for rows in (1000, 17):
                            o = Options(bias=bias, transposed=transposed, reduction=reduction,
                                        chunk_bytes=rows * classes * np.dtype("f4").itemsize, **extra)  # fmt: skip
                            yield str(o), partial(_near, shape, dtype, o, SPELLINGS if rows == 17 else SPELLINGS[:1])

    each(cases())


def _written(dtype: str) -> None:
    """Losses out of log_softmax and one_hot, z-losses out of a log-sum-exp: several chunks, ignored rows."""

    def cases():
        for shape in (SHAPES["small"], (3, 8, 24577)):
            for extra in ({"z_loss": 1e-2}, {"z_loss": 1e-2, "written": True}, {"written": True, "smoothing": 0.1}):
                o = Options(bias=True, chunk_bytes=None, chunk_rows=2, **extra)
                yield f"{shape} {extra}", partial(_near, shape, dtype, o, ("rewritten",))

    each(cases())


def _token_scaling(dtype: str) -> None:
    def cases():
        for shape in (SHAPES["small"], (3, 8, 24577)):
            for extra in ({}, {"z_loss": 1e-2, "smoothing": 0.1, "softcap": 5.0}):
                o = Options(bias=True, token_scaling=True, chunk_bytes=None, chunk_rows=5, **extra)
                yield f"{shape} {extra}", partial(_near, shape, dtype, o, ("operator", "apart"))

    each(cases())


def _long_rows(dtype: str) -> None:
    def cases():
        for shape in LONG:
            for extra in ({}, {**EVERYTHING, "ignore_index": 7}):
                o = Options(bias=True, transposed=True, chunk_bytes=2 * shape[-1] * 8, **extra)
                yield f"{shape} {extra}", partial(_near, shape, dtype, o, ("rewritten",))

    each(cases())


def _liger(dtype: str) -> None:
    for reduction in ("mean", "sum"):
        o = Options(bias=True, reduction=reduction, chunk_bytes=3 << 20)
        arrays = values(LIGER, o, dtype)
        plain, right = results("plain", arrays, o, GpuExecutor), exact(arrays, o)
        plain["x"] = _by_chunks(arrays, o)
        found = results("rewritten", arrays, o, GpuExecutor, times=3)
        assert_twice(found, plain, right, right, 2 * STEP[dtype])


def _by_chunks(arrays: dict[str, np.ndarray], o: Options) -> np.ndarray:
    """The plain gradient of x, of as many rows at once as the fused operator takes.

    A product of fewer rows may add 4096 terms in another order, of which some lose twice as much as others in float32.
    """
    rows, label = arrays["x"].reshape(-1, LIGER[-2]), arrays["label"].reshape(-1)
    step = chunk_rows(len(rows), LIGER[-1], arrays["x"].dtype.itemsize, o.chunk_bytes)
    summed = replace(o, reduction="sum")
    found = [
        results("plain", {**arrays, "x": rows[i : i + step], "label": label[i : i + step]}, summed, GpuExecutor)["x"]
        for i in range(0, len(rows), step)
    ]
    counted = np.count_nonzero(label != o.ignore_index) if o.reduction == "mean" else 1
    return (np.concatenate(found).astype(float) / counted).reshape(arrays["x"].shape)


def _labels(labels: tuple[int, ...] = (-1, 50, 2**40), places: tuple[int, ...] = (0, 31, 99)) -> None:
    """A label that is no class is named with its row, in whatever chunk it lies."""
    for label in labels:
        for row in places:
            arrays = values((100, 8, 50), Options(), "float32")
            arrays["label"][row] = label
            said = _refusal(arrays, Options(chunk_bytes=30 * 200))
            assert f"value {label} at row {row} is not a class in [0, 50)" in said, said
            assert "fused_linear_cross_entropy" in said, said


def _refusal(arrays: dict[str, np.ndarray], o: Options) -> str:
    """What a run says that fails."""
    try:
        results("rewritten", arrays, o, GpuExecutor)
    except MinigraphError as problem:
        return str(problem)
    return "nothing was refused"


def _ignored(dtypes: tuple[str, ...] = DTYPES) -> None:
    """All labels ignored: loss and gradients are 0."""
    for dtype in dtypes:
        o = Options(bias=True, ignored=1.0, class_weight=True, z_loss=0.1)
        for name, a in results("rewritten", values((6, 8, 24), o, dtype), o, GpuExecutor).items():
            assert not a.astype(float).any(), name


def _captured() -> None:
    """The third run is a CUDA graph's and repeats the first to the last bit, chunks, bias and all."""
    o = Options(bias=True, transposed=True, chunk_bytes=40 * 512 * 2, **{**EVERYTHING, "ignore_index": 3})
    for dtype in ("float32", "bfloat16"):
        results("operator", values((130, 64, 512), o, dtype), o, GpuExecutor, times=4)


def _side_outputs(dtypes: tuple[str, ...] = ("float64", "bfloat16")) -> None:
    """z-loss and accuracy as on the CPU; the first of equal scores is the prediction."""
    rng = np.random.default_rng(3)
    for dtype in dtypes:
        x = np.round(rng.normal(size=(50, 8))).astype(mg.types.as_dtype(dtype))  # with equal scores
        w = np.round(rng.normal(size=(8, 300))).astype(x.dtype)
        label = (x.astype(float) @ w.astype(float)).argmax(1)
        label[::3] = rng.integers(0, 300, 17)
        main = mg.static.Program()
        with mg.static.program_guard(main, mg.static.Program()):
            v = [mg.static.data(n, a.shape, a.dtype) for n, a in (("x", x), ("w", w), ("y", label))]
            fetches = F.fused_linear_cross_entropy(*v, z_loss=0.3, return_z_loss=True, return_accuracy=True,
                                                   return_predicted_tokens=True)  # fmt: skip
        feed = {"x": x, "w": w, "y": label}
        cpu, gpu = (make().run(main, feed, list(fetches), scope=Scope()) for make in (Executor, GpuExecutor))
        np.testing.assert_allclose(gpu[0], cpu[0], rtol=1e-5)
        np.testing.assert_allclose(gpu[1], cpu[1], rtol=1e-5)
        assert gpu[2] == cpu[2]
        np.testing.assert_array_equal(gpu[3], cpu[3])


def _rounded(dtype: str) -> None:
    """16-bit gradients of all rows at once, and of float32 sums over chunks: captured, plain errors twice at most."""

    def cases():
        for rows in (8192, 40):  # of a chunk, of 188
            for transposed in (False, True):
                o = Options(bias=True, transposed=transposed, reduction="sum", chunk_bytes=rows * 512 * 2)
                yield str(o), partial(_near, (4, 47, 16, 512), dtype, o, SPELLINGS)

    each(cases())


def _mixed(dtype: str) -> None:
    """Rows of 16 bits, weight and bias of float32: gradients are float32 sums, twice the plain errors at most."""

    def near(o: Options) -> None:
        narrow = values((2, 30, 64, 512), o, dtype)
        arrays = {n: a if n == "x" or a.dtype.kind == "i" else a.astype("f4") for n, a in narrow.items()}
        found, plain = results("operator", arrays, o, GpuExecutor, times=3), results("plain", narrow, o, GpuExecutor)
        assert found["w"].dtype == np.float32 == found["bias"].dtype
        right = exact(narrow, o)
        assert_twice(found, plain, right, right, 2 * STEP[dtype])

    each(
        (f"{rows} {transposed}", partial(near, Options(True, transposed, chunk_bytes=None, chunk_rows=rows)))
        for rows in (1000, 7) for transposed in (False, True)
    )  # fmt: skip


def _training(dtype: str) -> None:
    """The curve of a language model's loss lies within the spread of two seeds."""
    for written in (False, True):
        plain, fused = (curve(3, dtype, on, written, GpuExecutor) for on in (False, True))
        assert distance(plain, fused) < distance(plain, curve(4, dtype, False, written, GpuExecutor)) / 20


def _planned() -> None:
    """With this card's own workspaces, which may differ: no more is needed than without the flag, but losses."""

    def cases():
        for rows in ROWS:
            for dtype in ("bfloat16", "float32"):
                for kind in ("plain", "layer", "tied", "two"):
                    for every in (False, True):
                        made = net(rows, LARGE, dtype, "AdamW", kind=kind)
                        yield f"{rows} {dtype} {kind} {every}", partial(check, made, rows, every, room=WORKSPACE[1])

    each(cases())


def _frozen() -> None:
    """Frozen inputs and evaluation."""
    for frozen in (("x",), ("w",), ("w", "bias"), ("x", "bias")):
        _near((40, 16, 96), "float32", Options(bias=True, frozen=frozen, chunk_bytes=1 << 12))
    _near((40, 16, 96), "float32", Options(bias=True, trains=False, chunk_bytes=1 << 12))
