"""GPU checks of fuse_elementwise against float64 on a CPU: random chains of several shapes as one kernel, and what
meets at a loss, forward and backward in one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.program import Program
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import as_dtype, float64
from tests.gpu.check import Check, GpuExecutor, each
from tests.support.loss_programs import KINDS, cross_entropy_step, random_loss
from tests.support.random_chains import Chain, random_chain
from tests.support.residual_blocks import residual_blocks

AHEAD = ((9000, 72), (1300, 776))  # more rows than a GPU works on at a time: they are fetched ahead
SHAPES = ((37, 1024), (3, 11, 768), (700, 48), (5, 4096), (2, 9, 50), (1, 300), *AHEAD)
SEEDS = 12
ALONE, EVERY = BuildStrategy(fuse_elementwise=True), BuildStrategy.all()
KEPT = BuildStrategy.all(recompute_norms=False)
MANY_ROWS = 16  # whose sums' roundings, each of them luck, make a mean: chains of fewer have several inputs
ROUNDED = 0.25  # units: the mean error of what is rounded once, where the unfused run is exact
Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]
Pair = tuple[float, float]  # root mean squares of a value's errors, unfused and fused, in UNITs of its peak
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def checks() -> Iterator[Check]:
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        yield Check(f"fusion/float64/{name}", partial(_exact, shape), sanitize=shape == SHAPES[4])
        for dtype in UNIT:
            yield Check(f"fusion/{dtype}/{name}", partial(_rounded, dtype, shape))
    yield Check("fusion/rounding/layer_norm", _many_rows)
    for dtype in ("float64", *UNIT):
        for before in (True, False):
            name = f"fusion/blocks/{'norm before' if before else 'norm behind'}/{dtype}"
            yield Check(name, partial(_blocks, dtype, before, EVERY), product=True)
            yield Check(f"{name}/norms kept", partial(_blocks, dtype, before, KEPT), product=True)
    for kind in LOSSES:
        for dtype in ("float64", *UNIT):
            yield Check(f"fusion/loss/{kind}/{dtype}", partial(_loss, kind, dtype), sanitize=dtype == "float32")
    for kind in KINDS:
        for dtype in ("float64", *UNIT):
            sanitize = dtype == "float32" and kind in ("soft", "flat")
            yield Check(f"fusion/cross_entropy/{kind}/{dtype}", partial(_cross_entropy, kind, dtype), sanitize=sanitize)
    yield Check("fusion/cross_entropy/random", _random_losses)
    yield Check("fusion/cross_entropy/no class", _no_class, sanitize=True)


def _runs(chain: Any, strategy: BuildStrategy = ALONE) -> tuple[Run, Run]:
    """What run the chain on the GPU, without passes and with them: the fetched values from feeds."""
    after = CompiledProgram(chain.program, strategy).program_for(chain.fetches, place=mg.CUDAPlace(0))

    def runner(program: Program) -> Run:
        executor = GpuExecutor()
        return lambda feeds: executor.run(program, feeds, chain.fetches, scope=Scope())

    return runner(chain.program), runner(after)


def _exact(shape: tuple[int, ...]) -> None:
    each((f"seed {seed}", partial(_exact_seed, seed, shape)) for seed in range(SEEDS))


def _exact_seed(seed: int, shape: tuple[int, ...]) -> None:
    _agrees(random_chain(seed, "float64", shape))


def _agrees(chain: Any, strategy: BuildStrategy = ALONE) -> None:
    right = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
    for who, run in zip(("unfused", "fused"), _runs(chain, strategy), strict=True):
        for name, a, b in zip(chain.fetches, right, run(chain.feeds), strict=True):
            error = np.abs(a.astype(float) - b.astype(float)).max(initial=0)
            assert error <= 1e-10 * max(1.0, np.abs(a).max(initial=0)), f"{who} {name} differs by {error:.3g}"


def _rounded(dtype: str, shape: tuple[int, ...]) -> None:
    found: list[Pair] = []
    each((f"seed {seed}", partial(_rounded_seed, seed, dtype, shape, found)) for seed in range(SEEDS))
    ratio = float(np.exp(np.mean([np.log(max(after, ROUNDED) / max(before, ROUNDED)) for before, after in found])))
    assert ratio <= 1.1, f"errors are {ratio:.3f} times the unfused ones, on average"


def _rounded_seed(seed: int, dtype: str, shape: tuple[int, ...], found: list[Pair]) -> None:
    chain, exact = (random_chain(seed, d, shape, smooth=True) for d in (dtype, "float64"))
    rng, given = np.random.default_rng((seed, 1)), chain.feeds.items()
    others = -(-MANY_ROWS // math.prod(shape[:-1])) - 1
    feeds = [{n: rng.uniform(-1.5, 1.5, x.shape).astype(x.dtype) for n, x in given} for _ in range(others)]
    found += _no_worse(chain, exact, dtype, ALONE, feeds)


def _no_worse(chain: Any, exact: Any, dtype: str, strategy: BuildStrategy, fresh: Sequence[Feeds] = ()) -> list[Pair]:
    """Errors are at most twice those of the unfused run on the GPU, their root mean square at most 1.5 times.

    They are those of all inputs: the chain's own and `fresh` ones. The latter bound is not for few rows, where a row's
    sum is one number that all its elements meet. What is 0 but for rounding tells nothing; nor does the largest of few
    errors.
    """
    errors: dict[str, list[np.ndarray]] = {}
    runs, reference = _runs(chain, strategy), Executor()
    for feeds in (chain.feeds, *fresh):
        wide = {name: x.astype(float64) if x.dtype.kind in "fV" else x for name, x in feeds.items()}
        right = reference.run(exact.program, wide, exact.fetches, scope=Scope())
        for name, r, *both in zip(chain.fetches, right, *(run(feeds) for run in runs), strict=True):
            if (peak := np.abs(r).max(initial=0)) >= 1e-9:
                rows = np.stack([np.abs(v.astype(float) - r) / (UNIT[dtype] * peak) for v in both])
                errors.setdefault(name, []).append(rows.reshape(2, -1, r.shape[-1] if r.ndim else 1))
    found = []
    for name, parts in errors.items():
        both = np.concatenate(parts, axis=1)
        if both[0].size < 40:
            continue
        most, mean = both.max(axis=(1, 2)), np.sqrt(np.mean(both * both, axis=(1, 2)))
        assert most[1] <= 2 * max(most[0], 1), f"{name}: error {most[1]:.3g} units, unfused {most[0]:.3g}"
        assert both.shape[1] < MANY_ROWS or mean[1] <= 1.5 * max(mean[0], ROUNDED), (
            f"{name}: mean error {mean[1]:.3g} units, unfused {mean[0]:.3g}"
        )
        found.append((float(mean[0]), float(mean[1])))
    return found


def _blocks(dtype: str, before: bool, strategy: BuildStrategy) -> None:
    """Q, K and V as one product, gradients of biases by kernels on rows and behind gelu, and all else of a transformer.

    Backward computes all norms again but the last one's, which is fetched.
    """
    chain, exact = (residual_blocks(d, before=before) for d in (dtype, "float64"))
    ops = CompiledProgram(chain.program, strategy).program_for(chain.fetches, place=mg.CUDAPlace(0)).ops
    lines = [line for op in ops for line in op.attrs.get("body", ())]
    assert sum("column_sums" in line for line in lines) == 4
    assert sum(bool(op.outputs.get("DXSums")) for op in ops) == 2
    assert sum("layer_norm_again(" in line for line in lines) == (0 if strategy is KEPT else 3 + before)
    if dtype == "float64":
        _agrees(chain, strategy)
    else:
        _no_worse(chain, exact, dtype, strategy)


def _many_rows() -> None:
    cases = [(n, shift) for n in (48, 50, 300, 1024) for shift in (0.0, 6.0)]
    each((f"rows of {n} around {shift}", partial(_rows_of, n, shift)) for n, shift in cases)


def _rows_of(n: int, shift: float) -> None:
    """Over many rows a layer norm and its gradient have errors as large as those of the unfused run.

    A mean far above the deviation makes a row's own mean, rounded once, the largest error, which is luck.
    """
    size, rng = [60000 // n, n], np.random.default_rng(n)

    def program(dtype: str) -> Chain:
        main = mg.static.Program("rows")
        with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
            x, d, e, w, b = (
                mg.static.data(name, s, dtype) for name, s in zip("xdewb", (size, size, size, [n], [n]), strict=True)
            )
            x.stop_gradient = False
            out = mg.nn.functional.layer_norm(x, [n], w, b)
            scaled = out * d
            (grad,) = mg.static.gradients([out], [x], [d * e])
        feeds = {v.name: rng.uniform(-1.5, 1.5, v.shape).astype("float32") for v in (x, d, e, w, b)}
        feeds["x"] += np.float32(shift)
        return Chain(main, feeds, [grad.name, scaled.name])

    chain, exact = program("float32"), program("float64")
    feeds = {name: x.astype(float) for name, x in chain.feeds.items()}
    right = Executor().run(exact.program, feeds, exact.fetches, scope=Scope())
    for name, r, *both in zip(chain.fetches, right, *(run(chain.feeds) for run in _runs(chain)), strict=True):
        peaks = np.abs(r).max(axis=1, keepdims=True)
        before, after = (np.sqrt(np.mean(((found - r) / peaks) ** 2)) for found in both)
        assert after <= (1.5 if shift else 1.03) * before, f"{name}: error {after:.3g}, unfused {before:.3g}"


LOSSES = {
    "squares": lambda f, v: v["x"] - v["y"],
    "layer_norm": lambda f, v: f.layer_norm(v["x"] + v["y"], [v["x"].shape[-1]], v["scale"], v["bias"]) - v["y"],
    "softmax": lambda f, v: f.softmax(v["x"]) - v["y"],
    "dropout": lambda f, v: f.dropout(f.layer_norm(f.gelu(v["x"]), [v["x"].shape[-1]], v["scale"]), 0.1) + v["y"],
}


def _loss(kind: str, dtype: str) -> None:
    for shape in ((70, 1024), (1500, 48)):  # small constants are folded, and then nothing meets
        step = loss_step(kind, dtype, shape)
        after = CompiledProgram(step.program, EVERY).program_for(step.fetches, place=mg.CUDAPlace(0))
        assert [op.type for op in after.ops].count("fused_elementwise") == 1, f"they do not meet: {after}"
        if dtype == "float64":
            _agrees(step, EVERY)
        else:
            _no_worse(step, loss_step(kind, "float64", shape), dtype, EVERY)


def loss_step(kind: str, dtype: str, shape: tuple[int, int]) -> Chain:
    """The mean of squares of what LOSSES computes, and gradients of all that is fed."""
    main, rng = mg.static.Program(kind), np.random.default_rng(3)
    main.random_seed = 5
    sizes = {"x": shape, "y": shape, "scale": shape[1:], "bias": shape[1:]}
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        data = {name: mg.static.data(name, size, dtype) for name, size in sizes.items()}
        for v in data.values():
            v.stop_gradient = False
        loss = mg.mean(mg.square(LOSSES[kind](mg.nn.functional, data)))
        used = [v for v in data.values() if any(v.name in op.input_arg_names for op in main.ops)]
        fetches = [loss.name, *(g.name for g in mg.static.gradients([loss], used))]
    feeds = {v.name: rng.normal(size=sizes[v.name]).astype(as_dtype(dtype)) for v in used}
    return Chain(main, feeds, fetches)


def _cross_entropy(kind: str, dtype: str) -> None:
    for shape in ((70, 10), (3, 50, 333), (256, 1024)):
        step = cross_entropy_step(kind, dtype, shape)
        after = CompiledProgram(step.program, EVERY).program_for(step.fetches, place=mg.CUDAPlace(0))
        left = [op.type for op in after.ops if "cross_entropy" in op.type]
        assert not left, f"they do not meet: {after}"
        if dtype == "float64":
            _agrees(step, EVERY)
        else:
            _no_worse(step, cross_entropy_step(kind, "float64", shape), dtype, EVERY)


def _random_losses() -> None:
    each((f"seed {seed}", partial(_agrees, random_loss(seed, shape=(90, 41)), EVERY)) for seed in range(SEEDS))


def _no_class() -> None:
    """A label that is no class is named with its row, and the other rows are right."""
    step = cross_entropy_step("flat", "float32", (70, 10))
    step.feeds["label"][41] = 10
    after = CompiledProgram(step.program, EVERY).program_for(step.fetches, place=mg.CUDAPlace(0))
    message = ""
    try:
        GpuExecutor().run(after, step.feeds, step.fetches, scope=Scope())
    except mg.errors.KernelError as error:
        message = str(error)
    assert "value 10 at row 41" in message, f"instead of an error: {message!r}"
