"""GPU checks of attention by cuDNN, where its frontend is installed: results, repeats, captured programs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.kernels.cuda.attention.cudnn import kernel
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import bfloat16
from tests.gpu import strided as gpu_strided
from tests.gpu.check import (
    Check,
    GpuExecutor,
    assert_like_cpu,
    call_of,
    compare_norms,
    each,
    magnitude,
    normal,
)
from tests.support import opcheck
from tests.support.strided_programs import SPELLINGS, packed

RUNS = 3  # the second is captured, the third launches the graph
Inputs = dict[str, Any]


def checks() -> Iterator[Check]:
    if not kernel.is_installed():
        return
    for dtype in ("float16", "bfloat16"):
        yield Check(f"attention/cudnn/features/{dtype}", partial(_features, dtype))
        yield Check(f"attention/cudnn/head sizes/{dtype}", partial(_head_sizes, dtype))
    yield Check("attention/cudnn/training", _training, product=True)
    for spelling in SPELLINGS:
        yield Check(f"attention/cudnn/strided/{spelling}", partial(_strided, spelling), product=True)


def qkv(sq: int = 100, sk: int = 0, h: int = 4, hk: int = 0, d: int = 64, dv: int = 0, layout: str = "bshd") -> Inputs:
    shapes = {"Q": (2, sq, h, d), "K": (2, sk or sq, hk or h, d), "V": (2, sk or sq, hk or h, dv or d)}
    made = {slot: normal(*shape, seed=i) for i, (slot, shape) in enumerate(shapes.items())}
    return made if layout == "bshd" else {s: np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for s, x in made.items()}


def both(inputs: Inputs, dtype: str, **attrs: Any) -> None:
    """Forward and backward of one call by cuDNN against float64."""
    call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype)
    exact = opcheck.reference(call.as_dtype("float64"))
    runs = by_cudnn(call)
    for found in runs:
        compare_norms(found, exact, opcheck.executed(call), dtype, magnitude(call))
        for slot, (array,) in found.items():
            assert array.tobytes() == runs[0][slot][0].tobytes(), f"{slot} of forward changed from run to run"
    out, sums = (exact[slot][0] for slot in ("Out", "LogSumExp"))
    more = {"Out": out, "LogSumExp": sums, "Out_grad": normal(*out.shape, seed=9)}
    grad = call_of("memory_efficient_attention_grad", {**inputs, **more}, **attrs).as_dtype(dtype)
    exact, plain = opcheck.reference(grad.as_dtype("float64")), opcheck.executed(grad)
    for found in by_cudnn(grad):
        compare_norms(found, exact, plain, dtype, magnitude(grad))


def by_cudnn(call: opcheck.Call) -> list[opcheck.Slots]:
    """The outputs of each run of the call."""
    program, _, outputs = opcheck.built(call)
    names = [(slot, v) for slot, vs in outputs.items() for v in vs]
    compiled = CompiledProgram(program, build_strategy=BuildStrategy(attention_kernel="cudnn"))
    exe, scope, feed = GpuExecutor(), Scope(), opcheck.feed_of(call)
    runs = [exe.run(compiled, feed, [v for _, v in names], scope=scope) for _ in range(RUNS)]
    assert "computed by cudnn" in compiled.explain(), compiled.explain()
    return [{slot: [array] for (slot, _), array in zip(names, found, strict=True)} for found in runs]


def features() -> Iterator[tuple[str, Inputs, dict[str, Any]]]:
    for layout in ("bshd", "bhsd"):
        for attrs in ({}, {"causal": True}, {"window": (20, 5)}, {"scale": 0.3}):
            yield f"{layout} {attrs}", qkv(hk=2, layout=layout), {**attrs, "layout": layout}
    for sizes in ((2, 300), (5, 2), (77, 131), (256, 256), (200, 100), (300, 513)):
        yield f"sizes {sizes}", qkv(*sizes, d=128), {}
        yield f"causal, sizes {sizes}", qkv(*sizes, d=128), {"causal": True}
    for attrs in ({"causal": True}, {"causal": True, "window": (30, 0)}, {"window": (30, 20)}):
        yield f"bottom right {attrs}", qkv(100, 231, h=6, hk=2), {**attrs, "bottom_right": True}
    for window in ((0, 0), (30, 0), (0, 30), (500, 3), (3, 500)):
        yield f"window {window}", qkv(150, 150), {"window": window}
    yield "rank 3", {slot: x[:, :, 0] for slot, x in qkv().items()}, {}
    yield "one head of K and V", qkv(200, h=8, hk=1, d=128), {"causal": True}


def _features(dtype: str) -> None:
    each((title, partial(both, inputs, dtype, **attrs)) for title, inputs, attrs in features())


def _head_sizes(dtype: str) -> None:
    pairs = [(d, d) for d in (8, 16, 40, 64, 72, 96, 128, 160, 192, 256)] + [(64, 128), (128, 64)]
    each((f"{d} {dv}", partial(both, qkv(70, 130, d=d, dv=dv), dtype, causal=d % 16 == 0)) for d, dv in pairs)


def program() -> tuple[Any, dict[str, np.ndarray], list[Any]]:
    """Two layers of attention that need not wait for each other, and the gradients of their inputs."""
    shape = (2, 320, 4, 64)
    main = mg.static.Program()
    with mg.static.program_guard(main):
        x, w = (mg.static.data(n, shape, "float16") for n in "xw")
        x.stop_gradient = w.stop_gradient = False
        g = Builder(main.global_block())
        y, z = (g.memory_efficient_attention(a, b, a, causal=True, needs=["LogSumExp"])[0] for a, b in ((x, w), (w, x)))
        loss = mg.sum(y * z)
        grads = mg.static.gradients(loss, [x, w])
    return main, {n: normal(*shape, seed=i).astype("float16") for i, n in enumerate("xw")}, [y, z, *grads]


def _training() -> None:
    """The program by cuDNN in several runs, near the program with our kernels."""
    main, feed, fetches = program()
    ours = GpuExecutor().run(main, feed, fetches, scope=Scope())
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(attention_kernel="cudnn"))
    exe, scope = GpuExecutor(), Scope()
    for _ in range(RUNS):
        for a, b in zip(exe.run(compiled, feed, fetches, scope=scope), ours, strict=True):
            error = np.linalg.norm(a.astype(float) - b.astype(float)) / np.linalg.norm(b.astype(float))
            assert error <= 2e-3, f"results differ by {error:.3g} of their norm"
    assert compiled.explain().count("computed by cudnn") == 4


def _strided(spelling: str) -> None:
    """Q, K and V are read where they lie inside a projection, also in a captured graph."""
    facts = {"s": 200, "h": 3, "d": 64, "causal": spelling != "split"}
    case = packed(spelling, "bfloat16", **facts)
    gpu_strided.lies(case)
    exact = gpu_strided.run(gpu_strided.in_float64(case, packed(spelling, "float64", **facts)), executor=Executor())
    cpu, copied = gpu_strided.run(case, executor=Executor()), gpu_strided.copied(case, attention_kernel="cudnn")
    for runs in (1, RUNS):
        found = gpu_strided.run(case, runs, attention_kernel="cudnn")
        assert found[0].tobytes() == copied[0].tobytes(), f"{case.fetches[0]} has other bits than of copies"
        for name, a, b, e in zip(case.fetches, found, cpu, exact, strict=True):
            assert_like_cpu(a, b, e, bfloat16, name, 1e-12)
