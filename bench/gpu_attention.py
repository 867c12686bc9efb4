"""Attention on a GPU: forward, and forward with backward, beside PyTorch's backends on the same memory.

Arms: minigraph is the kernel that the registry chooses; wgmma, mma and exact are its other kernels that take the call;
naive, efficient, flash and cudnn are backends of PyTorch's scaled_dot_product_attention. Results of all arms are
compared first with float64 on one head.

Memory is what a call allocates at most beside its inputs (MiB), beside the gradients of its inputs, too, as PyTorch's
peak is often counted (beside_gradients_MiB), and beside all results (scratch_MiB): what backward keeps, partial sums.
`planned_memory` of the file has ours for longer and longer sequences, which needs no GPU; `measured_memory` what the
driver has less of while the same plans run, and PyTorch's peak by cuDNN. `--only memory` measures that alone.
GRID is the grid of xFormers PR #281, float32, without the other kernels and peers. The jobs of other rows are forward,
both, and backward alone. A local row has a table of blocks around the diagonal; its arm `dense mask`, and PyTorch, have
the Mask for which the table stands. xFormers is no peer: bench/README.md says why.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .gpu_report import end, measure, report_of
from .gpu_timing import Gpu, Input, Planned, turns_of
from .harness import OnGpu, summarized
from .turns import in_turns

BACKENDS = {"naive": "MATH", "efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
NEAR = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}  # ||found - exact|| / ||exact||
NAMES = ("out", "dq", "dk", "dv")
LENGTHS = tuple(1 << n for n in range(10, 17))  # of planned_memory and measured_memory
BLOCK = 64  # of the tables of local rows
LAST = 64  # queries whose results are compared there
LARGEST_NAIVE = 8 << 30  # bytes of scores beyond which the naive arm is left out


class Job(NamedTuple):
    """Forward; forward with backward (`training`); or backward alone, from results of a forward that is not timed."""

    training: bool
    alone: bool = False

    @property
    def title(self) -> str:
        return "backward" if self.alone else "fwd+bwd" if self.training else "forward"


JOBS = Job(False), Job(True), Job(True, alone=True)


@dataclass(frozen=True)
class AttentionRow:
    """Self-attention of [B, H, S, D]; `few`: three turns at most, no other kernels of ours, no 16-bit peers.

    local   only blocks of BLOCK queries and keys are seen that are so many blocks from the diagonal at most; 0: all
    """

    dtype: str
    shape: tuple[int, int, int, int]
    causal: bool = False
    few: bool = False
    local: int = 0

    @property
    def title(self) -> str:
        words = [self.dtype, "x".join(map(str, self.shape)), *["causal"] * self.causal]
        return " ".join(words + [f"local {self.local} x {BLOCK}"] * (self.local > 0))

    def table(self) -> np.ndarray:
        """bool [S / BLOCK, S / BLOCK] of a local row."""
        i = np.arange(-(-self.shape[2] // BLOCK))
        return abs(i[:, None] - i) <= self.local

    def mask(self) -> np.ndarray:
        """bool [S, S]: what the table stands for."""
        return np.kron(self.table(), np.ones((BLOCK, BLOCK), bool)).astype(bool)[: self.shape[2], : self.shape[2]]

    @property
    def slow(self) -> bool:
        """Whether float32 arithmetic would take seconds."""
        return self.flops(Job(True)) > 1e12

    @property
    def one(self) -> float:
        """MiB of one array."""
        return prod(self.shape) * (2 if "16" in self.dtype else 4) / 2**20

    def results(self, job: Job) -> float:
        """MiB of Out, and of the gradients."""
        return self.one * (3 * job.training + (not job.alone))

    def flops(self, job: Job) -> float:
        b, h, s, d = self.shape
        seen = float(self.table().mean()) if self.local else 0.5 if self.causal else 1
        return 4.0 * b * h * s * s * d * (2.5 * job.training + (not job.alone)) * seen


ROWS = (
    AttentionRow("float32", (256, 1, 1024, 32)), AttentionRow("float32", (32, 1, 1024, 32)),
    AttentionRow("float32", (32, 1, 4096, 32)),
    AttentionRow("float32", (8, 8, 2048, 64)), AttentionRow("float32", (1, 1, 1024, 32)),
    AttentionRow("float32", (1, 1, 4096, 32)),
    AttentionRow("bfloat16", (4, 16, 4096, 64)), AttentionRow("bfloat16", (4, 16, 4096, 64), True),
    AttentionRow("bfloat16", (4, 16, 4096, 128)), AttentionRow("bfloat16", (4, 16, 4096, 128), True),
    AttentionRow("bfloat16", (2, 16, 16384, 128)), AttentionRow("bfloat16", (2, 16, 16384, 128), True),
    AttentionRow("bfloat16", (4, 16, 1024, 64)), AttentionRow("bfloat16", (1, 4, 4096, 64)),
    AttentionRow("bfloat16", (2, 8, 4096, 256)),
    AttentionRow("bfloat16", (2, 8, 4096, 256), True),
    AttentionRow("float16", (4, 16, 4096, 64)), AttentionRow("float16", (4, 16, 4096, 64), True),
    AttentionRow("float16", (4, 16, 4096, 128)),
    AttentionRow("float16", (4, 16, 4096, 128), True), AttentionRow("float16", (2, 16, 16384, 128), True),
    *(AttentionRow(dtype, (4, 16, 4096, 64), local=local) for dtype in ("bfloat16", "float32") for local in (1, 4)),
    AttentionRow("bfloat16", (1, 16, 16384, 128), local=4),
)  # fmt: skip
GRID = tuple(
    AttentionRow("float32", (b, 1, m, k), few=True)
    for k in (16, 32) for b in (1, 8, 32, 256) for m in (127, 128, 512, 513, 1023, 1024)
    if AttentionRow("float32", (b, 1, m, k)) not in ROWS
)  # fmt: skip


class GpuAttention(OnGpu):
    """The rows above in one process on CUDAPlace(0)."""

    name, title, peers = "gpu_attention", "attention", ("torch",)

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Time all rows, print the table and write bench/results/gpu_attention.json."""
        gpu = Gpu()
        torch = importlib.import_module("torch") if "torch" in peers else None
        if torch is not None:
            torch.backends.cuda.matmul.allow_tf32 = False
        report = report_of(self, gpu, command, rounds, only)
        tasks = (
            ({"title": row.title, "job": job.title, "training": job.training},
             partial(measured, gpu, torch, row, job, min(rounds, 3) if row.few else rounds))
            for row in (*ROWS, *GRID) if only in row.title
            for job in (JOBS[:2] if row.few else JOBS)
        )  # fmt: skip
        measure(report, tasks, gpu, torch)
        memory = measured_memory(gpu, torch) if only in "memory" else []
        end(report, table, planned_memory=planned_memory(), measured_memory=memory)


def measured(gpu: Gpu, torch: Any, row: AttentionRow, job: Job, rounds: int) -> dict[str, Any]:
    """Check all arms of a row, then time them in turns."""
    arrays = {n: gpu.make(Input(row.shape, row.dtype), 7 * i) for i, n in enumerate(("q", "k", "v", "d"))}
    exact = _exact(gpu, arrays, row, job.training)[job.alone :]
    if row.local:
        arrays |= {"table": gpu.cupy.asarray(row.table()), "mask": gpu.cupy.asarray(row.mask())}
    if job.alone:
        arrays |= _forward_results(gpu, arrays, row)
    arms: dict[str, Sequence[Callable[[], Any]]] = {}
    errors: dict[str, dict[str, float]] = {}
    memory: dict[str, float] = {}
    remarks: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    kernels = [k.name for k in importlib.import_module("minigraph.kernels.cuda.attention.attention").KERNELS]
    chosen = ""
    for kernel in ("auto", *kernels * (not row.few), *["dense mask"] * (row.local > 0)):
        if kernel == chosen or (row.slow and kernel == "exact"):
            continue
        name = "minigraph" if kernel == "auto" else kernel
        try:
            planned = _planned(gpu, arrays, row, job, kernel)
        except gpu.mg.MinigraphError as refused:
            left_out[name] = str(refused)[:200]
            continue
        if kernel == "auto":
            chosen = next(k for k in kernels if f"computed by {k}" in planned.remarks[0])
        errors[name] = _errors(gpu, planned.results, exact, row, job)
        remarks[name] = planned.remarks
        memory[name] = planned.plan.bound.arena_bytes / 2**20
        # A single kernel is launched as it is, unless its launch takes the host longer than the GPU the kernel.
        alone = len(planned.plan.calls) == 1 and not row.few
        arms[name] = [planned if alone else gpu.captured([planned], 1)]
    for name, backend in BACKENDS.items() if torch is not None else ():
        b, h, s, _ = row.shape
        if row.few and name not in ("naive", "efficient"):
            continue
        if name == "naive" and b * h * s * s * (2 if "16" in row.dtype else 4) > LARGEST_NAIVE:
            left_out[name] = "its scores need more than 8 GiB"
            continue
        try:
            call, results, peak = _torch_arm(gpu, torch, arrays, row, job, backend)
        except RuntimeError as problem:
            left_out[name] = str(problem)[:120]
            continue
        errors[name], memory[name], arms[name] = _errors(gpu, results, exact, row, job, check=False), peak, [call]
        del results
    times = in_turns(turns_of(gpu, torch, arms), rounds)
    return {
        "title": row.title, "job": job.title, "training": job.training, "flops": row.flops(job),
        "relative_error": errors, "MiB": memory,
        "scratch_MiB": {name: peak - row.results(job) for name, peak in memory.items()},
        "beside_gradients_MiB": {name: peak - 3 * row.one * job.training for name, peak in memory.items()},
        "remarks": remarks, "left_out": left_out,
        "milliseconds": {name: summarized(ms) for name, ms in times.items()},
    }  # fmt: skip


def _planned(gpu: Gpu, arrays: Mapping[str, Any], row: AttentionRow, job: Job, kernel: str) -> Planned:
    """minigraph's arm, by this kernel of the registry, or "auto"; "dense mask" has the table's mask."""
    program, results = program_of(row, job, masked := kernel == "dense mask")
    scope = _scope(gpu, program, arrays)
    plan = gpu.plan(program, results, attention="auto" if masked else kernel)
    return Planned(plan, plan.run({}, scope, return_numpy=False), scope)


def _scope(gpu: Gpu, program: Any, arrays: Mapping[str, Any]) -> Any:
    scope = gpu.mg.static.Scope()
    scope.arrays.update({n: x for n, x in arrays.items() if program.global_block().has_var(n)})
    return scope


def _forward_results(gpu: Gpu, arrays: Mapping[str, Any], row: AttentionRow) -> dict[str, Any]:
    """Out and LogSumExp, which backward alone begins with."""
    program, results = program_of(row, Job(False), sums=True)
    out, sums = gpu.plan(program, results).run({}, _scope(gpu, program, arrays), return_numpy=False)
    return {"o": out.view(gpu.mg.types.as_dtype(row.dtype)).copy(), "l": sums.copy()}


def program_of(row: AttentionRow, job: Job, masked: bool = False, sums: bool = False) -> tuple[Any, tuple[str, ...]]:
    """A program of minigraph and the names of its results.

    masked  a local row has its mask instead of its table
    sums    LogSumExp is a result
    """
    static = importlib.import_module("minigraph.static")
    program = static.Program(row.title)
    block = program.global_block()
    v = {n: block.create_var(n, row.shape, row.dtype, persistable=True) for n in ("qkvdo" if job.alone else "qkvd")}
    g = importlib.import_module("minigraph.program.builder").Builder(block)
    attrs: dict[str, Any] = {"layout": "bhsd", "causal": row.causal}
    if row.local and masked:
        attrs["Mask"] = block.create_var("mask", row.mask().shape, "bool", persistable=True)
    elif row.local:
        table = block.create_var("table", row.table().shape, "bool", persistable=True)
        attrs |= {"Blocks": table, "block_size": BLOCK}
    if job.alone:
        results, kept = [], (v["o"], block.create_var("l", row.shape[:3], "float32", persistable=True))
    else:
        kept = g.memory_efficient_attention(v["q"], v["k"], v["v"], needs=["LogSumExp"], **attrs)
        results = [*kept] if sums else [kept[0]]
    if job.training:
        read = *(v[n] for n in "qkv"), *kept, v["d"]
        results += g.memory_efficient_attention_grad(*read, needs=["Q_grad", "K_grad", "V_grad"], **attrs)[:3]
    return program, tuple(x.name for x in results)


def planned_memory() -> list[dict[str, Any]]:
    """MiB of our forward + backward as counted above, for sequences up to 65,536, on an H200 that need not be there."""
    bound, found = importlib.import_module("minigraph.runtime.cuda.bind"), []
    for size in LENGTHS:
        row = AttentionRow("bfloat16", (4, 16, size, 128))
        program, results = program_of(row, Job(True))
        peak = bound.bind_program(program, {}, results).arena_bytes / 2**20
        beside = {"beside_gradients_MiB": peak - 3 * row.one, "scratch_MiB": peak - row.results(Job(True))}
        found.append({"title": row.title, "MiB": peak, **beside})
    return found


def measured_memory(gpu: Gpu, torch: Any) -> list[dict[str, Any]]:
    """MiB that the driver has less of with our plans at work, and that PyTorch's cuDNN needs, counted as above."""
    found = []
    for size in (LENGTHS[0], *LENGTHS):  # the first time kernels are loaded, too
        row = AttentionRow("bfloat16", (4, 16, size, 128))
        arrays = {n: gpu.make(Input(row.shape, row.dtype), 7 * i) for i, n in enumerate("qkvd")}
        gc.collect()  # plans stand in cycles
        gpu.release(torch)
        before = gpu.cupy.cuda.runtime.memGetInfo()[0]
        planned = _planned(gpu, arrays, row, Job(True), "auto")
        planned()
        errors = _last_errors(gpu, arrays, planned, row)
        planned.results.clear()  # copies
        gpu.release(torch)
        peaks = {"minigraph": (before - gpu.cupy.cuda.runtime.memGetInfo()[0]) / 2**20}
        del planned
        if torch is not None:
            peaks["cudnn"] = _torch_arm(gpu, torch, arrays, row, Job(True), BACKENDS["cudnn"])[2]
        counted = {name: round(peak - 3 * row.one, 3) for name, peak in peaks.items()}
        found.append({"title": row.title, "MiB": peaks, "beside_gradients_MiB": counted, "relative_error": errors})
    return found[1:]


def _last_errors(gpu: Gpu, arrays: Mapping[str, Any], planned: Planned, row: AttentionRow) -> dict[str, float]:
    """Relative errors of Out and the gradient of Q in the last queries of the last head."""
    q, d = (gpu.wide(arrays[n][-1, -1, -LAST:]) for n in "qd")
    k, v = (gpu.wide(arrays[n][-1, -1]) for n in "kv")
    scale = row.shape[3] ** -0.5
    p = gpu.cupy.exp(q @ k.T * scale)
    p /= p.sum(axis=1, keepdims=True)
    exact = {"out": p @ v}
    exact["dq"] = (p * (d @ v.T - (d * exact["out"]).sum(axis=1, keepdims=True))) @ k * scale
    found = {}
    for (name, e), r in zip(exact.items(), planned.results, strict=False):
        part = gpu.wide(r.view(gpu.mg.types.as_dtype(row.dtype))[-1, -1, -LAST:])
        found[name] = float(((part - e) ** 2).sum() ** 0.5 / (e**2).sum() ** 0.5)
        if not found[name] <= NEAR[row.dtype]:
            raise ArithmeticError(f"{name} is off by {found[name]:.2g} relative to its norm")
    return found


def _torch_arm(gpu: Gpu, torch: Any, arrays: Mapping[str, Any], row: AttentionRow, job: Job, backend: str) -> Any:
    """(call, results of the first call, MiB that it allocated)"""
    attention = importlib.import_module("torch.nn.attention")
    tensors = gpu.tensors(torch, {n: arrays[n] for n in "qkvd"})
    mask = torch.from_numpy(row.mask()).cuda() if row.local else None
    q, k, v = (tensors[n].detach().requires_grad_(job.training) for n in "qkv")
    kind = getattr(attention.SDPBackend, backend)

    def forward() -> Any:
        with attention.sdpa_kernel(kind), torch.set_grad_enabled(job.training):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=row.causal)

    def call() -> Any:
        if job.alone:
            return torch.autograd.grad(whole, (q, k, v), tensors["d"], retain_graph=True)
        out = forward()
        return (out.detach(), *torch.autograd.grad(out, (q, k, v), tensors["d"])) if job.training else (out,)

    with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr)):
        whole = forward() if job.alone else None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    whole_ones = (r.contiguous() for r in results)
    return call, [gpu.cupy.from_dlpack(r.view(torch.int16) if r.element_size() == 2 else r) for r in whole_ones], peak


def _exact(gpu: Gpu, arrays: Mapping[str, Any], row: AttentionRow, training: bool) -> list[Any]:
    """Results of the last head of the last batch in float64."""
    cupy = gpu.cupy
    q, k, v, d = (gpu.wide(arrays[n][-1, -1]) for n in ("q", "k", "v", "d"))
    scale = row.shape[3] ** -0.5
    s = (q @ k.T) * scale
    if row.causal:
        s = cupy.where(cupy.tri(row.shape[2], dtype=bool), s, -cupy.inf)
    if row.local:
        s = cupy.where(cupy.asarray(row.mask()), s, -cupy.inf)
    s -= s.max(axis=1, keepdims=True)
    p = cupy.exp(s)
    del s
    p /= p.sum(axis=1, keepdims=True)
    out = p @ v
    if not training:
        return [out]
    dv = p.T @ d
    p *= d @ v.T - (d * out).sum(axis=1, keepdims=True)
    return [out, (p @ k) * scale, (p.T @ q) * scale, dv]


def _errors(
    gpu: Gpu, results: Sequence[Any], exact: Sequence[Any], row: AttentionRow, job: Job, check: bool = True
) -> dict[str, float]:
    """Relative errors by norm, and the largest absolute one; refused where ours are not small."""
    found: dict[str, float] = {}
    for name, r, e in zip(NAMES[job.alone :], results, exact, strict=False):
        part = gpu.wide(r.view(gpu.mg.types.as_dtype(row.dtype))[-1, -1])
        error = float(((part - e) ** 2).sum() ** 0.5 / (e**2).sum() ** 0.5)
        if check and not error <= NEAR[row.dtype]:
            raise ArithmeticError(f"{name} is off by {error:.2g} relative to its norm")
        found[name], found[f"max {name}"] = error, float(abs(part - e).max())
    return found


def table(report: Mapping[str, Any]) -> str:
    """One line for each row: our milliseconds and TFLOP/s, then the other arms relative to it."""
    heads = f"{'pass':9} {'ms':>8} {'TFLOP/s':>8} {'MiB':>7} {'scratch':>8}"
    lines = [f"{'':34} {heads}  others / ours (MiB), MiB beside inputs, scratch: beside results too"]
    for r in report["rows"]:
        head = f"{r['title']:34} {r['job']:9}"
        if "failed" in r:
            lines.append(f"{head} FAILED {r['failed'][:150]}")
            continue
        ms = {name: f["median"] for name, f in r["milliseconds"].items()}
        ours = ms["minigraph"]
        others = "  ".join(f"{n} {x / ours:.2f} ({r['MiB'][n]:.0f})" for n, x in ms.items() if n != "minigraph")
        lines.append(
            f"{head} {ours:8.3f} {r['flops'] / ours / 1e9:8.1f} {r['MiB']['minigraph']:7.1f} "
            f"{r['scratch_MiB']['minigraph']:8.1f}  {others}"
        )
    for r in report["measured_memory"]:
        lines.append(f"{r['title']:34} MiB beside inputs and gradients, on the card: {r['beside_gradients_MiB']}")
    return "\n".join(lines)


BENCH = GpuAttention()
