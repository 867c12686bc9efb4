"""A linear layer with its loss in three spellings, with all options: for CPU tests, GPU checks and the bench.

    plain      matmul, bias, softcap, cast to float32, cross_entropy and what belongs to the options, run as written
    rewritten  the same program with fuse_linear_cross_entropy
    operator   nn.functional.fused_linear_cross_entropy, forward and backward joined by the pass
    apart      the same without the pass: the gradients compute the scores again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.program.backward import gradients
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import as_dtype, float16, float32

F = mg.nn.functional
TRAINED = ("x", "w", "bias")
SPELLINGS = ("rewritten", "operator", "apart")


@dataclass(frozen=True)
class Options:
    """What a last layer may have; `frozen` names of x, w, bias that need no gradient."""

    bias: bool = False
    transposed: bool = False
    class_weight: bool = False
    token_weight: bool = False
    smoothing: float = 0.0
    ignore_index: int = -100
    ignored: float = 0.2  # share of the rows
    z_loss: float = 0.0
    softcap: float | None = None
    reduction: str = "mean"
    accumulate: str | None = None
    chunk_bytes: int | None = 1 << 30
    chunk_rows: int | None = None
    token_scaling: bool = False  # not of the spelling "rewritten"
    written: bool = False  # plainly: out of log_softmax and one_hot
    frozen: tuple[str, ...] = ()
    trains: bool = True


EVERYTHING = {"class_weight": True, "smoothing": 0.1, "ignore_index": 42, "z_loss": 1e-4, "softcap": 30.0}


@dataclass
class Net:
    """A program with the names of loss and gradients, in this order."""

    program: Any
    fetches: list[str]
    wanted: list[str]


def values(shape: tuple[int, ...], o: Options, dtype: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a layer from H to V; floats rounded to `dtype`."""
    *rows, inner, classes = shape
    rng = np.random.default_rng([seed, *shape])
    w = rng.normal(size=(inner, classes)) * inner**-0.5
    label = rng.integers(0, classes, rows)
    label[rng.random(rows) < o.ignored] = o.ignore_index
    found = {
        "x": rng.normal(size=(*rows, inner)), "w": w.T if o.transposed else w, "bias": rng.normal(size=classes),
        "class_weight": rng.uniform(0.5, 1.5, classes), "token_weight": rng.uniform(0.5, 1.5, rows),
        "factors": rng.normal(size=rows),
    }  # fmt: skip
    low = as_dtype(dtype)
    rounded = {name: np.ascontiguousarray(a.astype(low)) for name, a in found.items()}
    for name in ("class_weight", "token_weight", "factors"):
        if low.itemsize == 2:
            rounded[name] = rounded[name].astype(float32)
    return {**rounded, "label": label}


def build(spelling: str, arrays: dict[str, np.ndarray], o: Options) -> Net:
    """The program of one spelling on inputs of these shapes; all are persistable, so that a Scope holds them."""
    main, startup = mg.static.Program(), mg.static.Program()
    block = main.global_block()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        v = {
            name: block.create_var(name, a.shape, a.dtype, persistable=True, stop_gradient=name not in TRAINED)
            for name, a in arrays.items()
        }
        loss = _operator(v, o) if spelling in ("operator", "apart") else _plain(v, o)
        target = loss if o.reduction != "none" else mg.sum(mg.multiply(loss, v["factors"]))
        wanted = [n for n in TRAINED if n not in o.frozen and (n != "bias" or o.bias)] if o.trains else []
        found = gradients([target], [v[n] for n in wanted]) if wanted else []
        fetches = [loss.name, *(g.name for g in found)]
    if spelling in ("rewritten", "operator"):
        strategy = mg.static.BuildStrategy(
            fuse_linear_cross_entropy=True, linear_cross_entropy_chunk_bytes=o.chunk_bytes,
            linear_cross_entropy_chunk_rows=o.chunk_rows,
        )
        main = mg.static.CompiledProgram(main, build_strategy=strategy)
    return Net(main, fetches, ["loss", *wanted])


def _operator(v: dict[str, Any], o: Options) -> Any:
    return F.fused_linear_cross_entropy(
        v["x"], v["w"], v["label"], v["bias"] if o.bias else None,
        class_weight=v["class_weight"] if o.class_weight else None,
        token_weight=v["token_weight"] if o.token_weight else None, ignore_index=o.ignore_index,
        reduction=o.reduction, label_smoothing=o.smoothing, z_loss=o.z_loss, softcap=o.softcap,
        transpose_weight=o.transposed, accumulate_dtype=o.accumulate, chunk_bytes=o.chunk_bytes,
        chunk_rows=o.chunk_rows, use_token_scaling=o.token_scaling,
    )  # fmt: skip


def _plain(v: dict[str, Any], o: Options) -> Any:
    z = mg.matmul(v["x"], v["w"], transpose_y=o.transposed)
    if o.bias:
        z = mg.add(z, v["bias"])
    if z.dtype.itemsize == 2:
        z = mg.cast(z, "float32")
    if o.softcap is not None:
        z = o.softcap * mg.tanh(z / o.softcap)
    kept = mg.cast(mg.not_equal(v["label"], mg.full_like(v["label"], o.ignore_index)), z.dtype)
    if o.written:
        numbers = mg.where(mg.cast(kept, "bool"), v["label"], mg.zeros_like(v["label"]))
        target = mg.cast(F.one_hot(numbers, z.shape[-1]), z.dtype)
        target = F.label_smooth(target, epsilon=o.smoothing) if o.smoothing else target
        rows = -mg.sum(target * F.log_softmax(z), axis=-1)
    else:
        rows = F.cross_entropy(
            z, v["label"], ignore_index=o.ignore_index, reduction="none", label_smoothing=o.smoothing
        )
    if o.z_loss:
        top = mg.max(z, axis=-1, keepdim=True)
        top.stop_gradient = True
        lse = mg.log(mg.sum(mg.exp(z - top), axis=-1)) + mg.squeeze(top, axis=-1)
        rows = rows + o.z_loss * lse * lse * kept
    if o.token_scaling:
        scaling = mg.exp(-F.cross_entropy(z, v["label"], ignore_index=o.ignore_index, reduction="none"))
        scaling.stop_gradient = True
        rows = rows * scaling
    factors = kept
    if o.class_weight:
        numbers = mg.where(mg.cast(kept, "bool"), v["label"], mg.zeros_like(v["label"]))
        own = mg.squeeze(F.embedding(numbers, mg.unsqueeze(v["class_weight"], axis=-1)), axis=-1)
        factors = factors * ((1 - o.smoothing) * own + o.smoothing * mg.mean(v["class_weight"]))
    if o.token_weight:
        factors = factors * v["token_weight"]
    rows = rows * factors
    if o.reduction == "none":
        return rows
    total = mg.sum(rows)
    return total if o.reduction == "sum" else total / mg.clip(mg.sum(factors), min=1e-30)


def results(
    spelling: str, arrays: dict[str, np.ndarray], o: Options, make: Any = None, times: int = 1
) -> dict[str, np.ndarray]:
    """{loss and names of inputs: loss and gradients}; of several runs the last, which must repeat the first."""
    net = build(spelling, arrays, o)
    scope, exe = Scope(), (make or Executor)()
    for name, a in arrays.items():
        scope.write(name, a.copy())
    runs = [exe.run(net.program, {}, net.fetches, scope=scope) for _ in range(times)]
    for name, first, last in zip(net.fetches, runs[0], runs[-1], strict=True):
        assert first.tobytes() == last.tobytes(), f"{name} differs from run to run"
    return dict(zip(net.wanted, runs[-1], strict=True))


def exact(arrays: dict[str, np.ndarray], o: Options) -> dict[str, np.ndarray]:
    """Loss and gradients in float64, plainly."""
    wide = {n: a if a.dtype.kind == "i" else a.astype(float) for n, a in arrays.items()}
    return results("plain", wide, o)


def largest_error(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.max(np.abs(found.astype(float) - right), initial=0.0))


def assert_twice(
    found: dict[str, np.ndarray], plain: dict[str, np.ndarray], right: dict[str, np.ndarray], names: Iterable[str],
    step: float,
) -> None:  # fmt: skip
    """Each largest error is at most twice the plain one's, and one step of the largest number."""
    for name in names:
        size = float(np.max(np.abs(right[name]), initial=0.0))
        own, mine = largest_error(plain[name], right[name]), largest_error(found[name], right[name])
        assert np.isfinite(found[name].astype(float)).all(), f"{name} is not finite"
        assert mine <= 2 * own + step * size, f"{name} errs by {mine:.3g}, plainly by {own:.3g}, largest {size:.3g}"


STEP = {"float64": 1e-12, "float32": 2.0**-23, "float16": float(np.finfo(float16).eps), "bfloat16": 2.0**-7}
