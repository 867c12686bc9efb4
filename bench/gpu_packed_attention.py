"""An attention block whose Q, K and V are parts of one projection, with and without copies of them.

    python -m bench gpu_packed_attention [--peers torch] [--only split]

    qkv = x W    q, k, v = parts of qkv    loss = sum(attention(q, k, v) Wo * d), causal; gradients of x, W, Wo

Spellings: `split` cuts the last axis, `indices` takes qkv[:, :, i] of [B, S, 3, H, D], `turned` puts heads first
before that. Arms: `where` reads Q, K and V where they lie and writes their gradients where they are joined; `read`
only reads; `copied` copies all; `joined` is `where` with fuse_grad_accumulation, which joins gradients of slices.
torch is PyTorch's scaled_dot_product_attention on views of the projection, captured as a CUDA graph. Results of the
arms are compared first.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import cuda
from minigraph.base import unique_name
from minigraph.nn.functional.attention import attend
from minigraph.program.backward import gradients
from minigraph.runtime.cuda import strided
from minigraph.types import as_dtype

from .gpu_attention import NEAR
from .harness import OnGpu, now, summarized, versions, write_report
from .turns import in_turns

B, S, H, D = 8, 1024, 12, 64
RUNS = 20  # in a turn
ARMS = ("where", "read", "copied", "joined")
CASES = [("bfloat16", spelling, train) for spelling in ("split", "indices", "turned") for train in (False, True)]
CASES += [("float32", "split", False), ("float32", "split", True)]


@contextmanager
def as_arm(arm: str) -> Iterator[None]:
    """Plans that are made now show of Q, K and V what this arm lets them."""
    saved = strided.by_strides, strided.JOINED
    if arm == "copied":
        strided.by_strides = lambda step, outputs=False: iter(())
    if arm in ("copied", "read"):
        strided.JOINED = {}
    try:
        yield
    finally:
        strided.by_strides, strided.JOINED = saved


def numbers(dtype: str) -> dict[str, np.ndarray]:
    """What x, W, Wo and d hold."""
    c, rng = H * D, np.random.default_rng(0)
    shapes = {"x": (B, S, c), "w": (c, 3 * c), "wo": (c, c), "d": (B, S, c)}
    scales = {"w": c**-0.5, "wo": c**-0.5}
    return {
        n: (rng.standard_normal(s, np.float32) * np.float32(scales.get(n, 1))).astype(as_dtype(dtype))
        for n, s in shapes.items()
    }  # fmt: skip


def block(dtype: str, spelling: str, train: bool, values: dict[str, np.ndarray]) -> tuple[Any, list[str]]:
    """(program, names of what it computes)"""
    program = mg.static.Program()
    with unique_name.guard(), mg.static.program_guard(program, mg.static.Program()):
        x, w, wo, d = (program.global_block().create_parameter(n, a.shape, dtype) for n, a in values.items())
        qkv, layout = mg.matmul(x, w), "bshd"
        if spelling == "split":
            parts = [mg.reshape(part, [0, 0, H, D]) for part in mg.split(qkv, 3, axis=-1)]
        else:
            whole: Any = mg.reshape(qkv, [0, 0, 3, H, D])
            parts = [whole[:, :, i] for i in range(3)]
            if spelling == "turned":
                whole, layout = mg.transpose(whole, [2, 0, 3, 1, 4]), "bhsd"
                parts = [whole[i] for i in range(3)]
        out: Any = attend("packed", *parts, layout=layout, causal=True)
        if layout == "bhsd":
            out = mg.transpose(out, [0, 2, 1, 3])
        out = mg.matmul(mg.reshape(out, [0, 0, H * D]), wo)
        if not train:
            return program, [out.name]
        return program, [v.name for v in gradients([mg.sum(out * d)], [x, w, wo]) if v is not None]


class PackedArm:
    """Results once, then time of runs that fetch nothing."""

    def __init__(self, arm: str, dtype: str, spelling: str, train: bool, values: dict[str, np.ndarray]) -> None:
        self.scope, self.executor = mg.static.Scope(), mg.static.Executor(mg.CUDAPlace(0))
        self.runtime = cuda.runtime(mg.CUDAPlace(0))
        for name, array in values.items():
            self.scope.write(name, array)
        program, fetches = block(dtype, spelling, train, values)
        strategy = mg.static.BuildStrategy(fuse_grad_accumulation=arm == "joined")
        self.compiled = mg.static.CompiledProgram(program, build_strategy=strategy)
        with as_arm(arm):
            self.results = self.executor.run(self.compiled, {}, fetches, scope=self.scope)
            self.milliseconds(3)

    def milliseconds(self, runs: int = RUNS) -> float:
        self.executor.run(self.compiled, {}, [], scope=self.scope)
        self.runtime.stream.synchronize()
        start = time.perf_counter()
        for _ in range(runs):
            self.executor.run(self.compiled, {}, [], scope=self.scope)
        self.runtime.stream.synchronize()
        return (time.perf_counter() - start) / runs * 1e3


def torch_arm(dtype: str, train: bool, values: dict[str, np.ndarray]) -> tuple[list[Any], Callable[[], float]]:
    """PyTorch's results, and milliseconds of a turn."""
    torch = importlib.import_module("torch")
    x, w, wo, d = (
        torch.from_numpy(a.astype(np.float32)).cuda().to(getattr(torch, dtype)).requires_grad_(train and n != "d")
        for n, a in values.items()
    )  # fmt: skip

    def step() -> list[Any]:
        q, k, v = ((x @ w).view(B, S, 3, H, D)[:, :, i].transpose(1, 2) for i in range(3))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(B, S, H * D) @ wo
        return list(torch.autograd.grad((out * d).sum(), [x, w, wo])) if train else [out]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = step()

    def milliseconds() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(RUNS):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / RUNS * 1e3

    milliseconds()
    return [r.detach().float().cpu().numpy() for r in results], milliseconds


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """||found - expected|| / ||expected||"""
    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def named(dtype: str, spelling: str, train: bool) -> str:
    return f"{dtype} {B}x{S}x{H}x{D} {spelling}{' train' if train else ''}"


def measured(dtype: str, spelling: str, train: bool, peers: Sequence[str], rounds: int) -> dict[str, Any]:
    """The row of one case."""
    values = numbers(dtype)
    names = [a for a in ARMS if train or a in ("where", "copied")]
    names = [a for a in names if a != "joined" or spelling != "split"]
    arms = {a: PackedArm(a, dtype, spelling, train, values) for a in names}
    results = {a: arm.results for a, arm in arms.items()}
    turns: dict[str, Callable[[], float]] = {a: arm.milliseconds for a, arm in arms.items()}
    if "torch" in peers:
        results["torch"], turns["torch"] = torch_arm(dtype, train, values)
    apart = {a: max(map(distance, found, results["where"])) for a, found in results.items()}
    assert all(apart[a] == 0 for a in arms), apart
    assert apart.get("torch", 0) < 2 * NEAR[dtype], apart
    times = in_turns(turns, rounds)
    shown = {a: summarized(t) for a, t in times.items()}
    return {"title": named(dtype, spelling, train), "apart": apart, "milliseconds": shown}


class GpuPackedAttention(OnGpu):
    """The bench `gpu_packed_attention`."""

    name = "gpu_packed_attention"
    title = "Attention of Q, K and V that are parts of one projection, ms"
    peers = ("torch",)

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure the cases whose title contains `only`, print, write bench/results/gpu_packed_attention.json."""
        rows = []
        for case in CASES:
            if only not in named(*case):
                continue
            rows.append(measured(*case, peers, rounds))
            medians = {a: statistics.median(f["raw"]) for a, f in rows[-1]["milliseconds"].items()}
            shown = "  ".join(f"{a} {ms:.4f} ({ms / medians['copied']:.3f})" for a, ms in medians.items())
            print(f"{rows[-1]['title']:36} {shown}", flush=True)
        gpu = importlib.import_module("cupy").cuda.runtime.getDeviceProperties(0)["name"].decode()
        report = {
            "bench": self.name, "title": self.title, "command": command,
            "date": now(), "gpu": {"name": gpu},
            "versions": versions(), "rounds": rounds, "rows": rows,
        }  # fmt: skip
        print(f"written to {write_report(report)}")


BENCH = GpuPackedAttention()
