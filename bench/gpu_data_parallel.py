"""Training steps on several GPUs of one host, against PyTorch's DistributedDataParallel with its compiler.

    python -m bench gpu_data_parallel --peers torch [--only gpt2]

The batch for each GPU is the same for any number of them. minigraph runs all GPUs from one process, PyTorch has a
process for each. A figure is the wall time of steps back to back, one wait at the end, median of rounds; efficiency is
the time on one GPU divided by that on all. The arms of one row follow each other on the same machine, and their mean
losses over all ranks must agree in three steps. NVLink multicast stays off in every process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from minigraph.cuda import device_count

from .gpt2 import Network, row
from .gpu_steps import MLP, StepRow, linears, mlp_batch, mlp_jax, mlp_static, mlp_torch
from .gpu_steps_run import ROWS, release
from .gpu_timing import Gpu
from .harness import OnGpu, now, versions, write_report

TURN_MS, LEAST, WARM_UP = 300.0, 5, 6
WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
ASKED = {"gpt2_124m": 0.97, "wide_8192": 0.96, "wide_2048": 0.85}  # efficiency of two GPUs


def wide(rows: int) -> StepRow:
    """The MLP 4 x 4096 of gpu_steps with so many rows."""
    whole = next(r for r in ROWS if "4 x 4096" in r.title and r.dtype == "bfloat16")
    name, title = f"wide_{rows}", f"MLP 4 x 4096, batch {rows} per GPU, bfloat16, AdamW"
    return replace(whole, name=name, title=title, batch=lambda rng: {k: x[:rows] for k, x in whole.batch(rng).items()})


def rows(packed: bool = False) -> dict[str, StepRow]:
    """The rows of the table by name; `packed` as PyTorch's programs take parameters."""
    small = StepRow(
        "mlp", "MLP 784-1024-1024-10, batch 256 per GPU, TF32, AdamW", "float32", linears(MLP), mlp_batch, mlp_static,
        mlp_torch, mlp_jax, trains=True, tolerance=2e-3,
    )  # fmt: skip
    gpt = row("gpt2_124m", "GPT-2 124 M, 16 x 1024 per GPU, bfloat16, AdamW", Network(12, 768, 12, 16), packed=packed)
    return {r.name: r for r in (gpt, wide(8192), wide(2048), small)}


def batches_of(row: StepRow, rank: int, ranks: int) -> list[dict[str, Any]]:
    """Four batches of one rank; no two ranks have the same."""
    return row.batches(4 * ranks)[rank::ranks]


def timed(step: Any, wait: Any, rounds: int, agreed: Callable[[int], int] = int) -> list[float]:
    """Milliseconds of a step in each round; `agreed` gives all ranks one number of steps."""
    for _ in range(WARM_UP):
        step()
    wait()
    begun = time.perf_counter()
    for _ in range(LEAST):
        step()
    wait()
    steps = agreed(max(LEAST, round(TURN_MS / 1e3 * LEAST / (time.perf_counter() - begun))))
    return [_one_round(step, wait, steps) for _ in range(rounds)]


def _one_round(step: Any, wait: Any, steps: int) -> float:
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begun) / steps * 1e3


def worker(framework: str, name: str, gpus: int, rounds: int, reduce: bool) -> dict[str, Any]:
    """What one arm finds, in a process of its own."""
    command = [sys.executable, "-m", "bench.gpu_data_parallel_arms", framework, name, str(gpus), str(rounds),
               "Reduce" if reduce else "AllReduce"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **WITHOUT_MULTICAST}, timeout=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"failed": (done.stderr or done.stdout)[-2000:]}
    found = json.loads(lines[-1])
    return {**found, "median_ms": statistics.median(found["ms"])}


def arms(peers: Sequence[str], gpus: int) -> Iterator[tuple[str, str, int, bool]]:
    """(title, framework, GPUs, whether states are shared); one GPU beside all of them, so that both see one machine."""
    for framework in ("minigraph", *(["torch"] if "torch" in peers else [])):
        for number in dict.fromkeys((1, gpus)):
            yield f"{framework} {number}", framework, number, False
    if gpus > 1:
        yield f"minigraph {gpus}, Reduce", "minigraph", gpus, True


def disagreement(row: StepRow, found: dict[str, dict[str, Any]], gpus: int) -> str | None:
    """Which arms of as many GPUs have other losses."""
    for number in {1, gpus}:
        losses = {t: f["losses"] for t, f in found.items() if f"{number}" in t.split()[1] and "losses" in f}
        first = next(iter(losses.values()), [])
        for title, own in losses.items():
            if any(abs(a - b) > row.tolerance * abs(b) for a, b in zip(own, first, strict=True)):
                return f"{title} has losses {own}, another arm {first}"
    return None


class DataParallelBench(OnGpu):
    """What `python -m bench gpu_data_parallel` runs."""

    name, title, peers = "gpu_data_parallel", "Training steps on several GPUs, ms", ("torch",)

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure, print, write bench/results/gpu_data_parallel.json after each row."""
        gpu, gpus = Gpu(), device_count()
        report: dict[str, Any] = {
            "bench": self.name, "title": self.title, "command": command, "gpus": gpus,
            "date": now(), "gpu": gpu.facts(), "versions": versions(), "rounds": rounds, "rows": [],
        }  # fmt: skip
        release()
        for name, each in rows().items():
            if only not in name:
                continue
            found = {t: worker(f, name, n, rounds, shared) for t, f, n, shared in arms(peers, gpus)}
            report["rows"].append({
                "name": name, "title": each.title, "asked_efficiency": ASKED.get(name), "arms": found,
                "disagreement": disagreement(each, found, gpus), "efficiency": efficiencies(found, gpus),
            })  # fmt: skip
            path = write_report(report)
            print(line(report["rows"][-1]))
        print(f"written to {path}")


def efficiencies(found: dict[str, dict[str, Any]], gpus: int) -> dict[str, float]:
    """{arm on all GPUs: time on one / time on all}"""
    shares = {}
    for title, own in found.items():
        one = found.get(f"{title.split()[0]} 1", {})
        if gpus > 1 and title.split()[1].startswith(str(gpus)) and "median_ms" in own and "median_ms" in one:
            shares[title] = round(one["median_ms"] / own["median_ms"], 4)
    return shares


def line(row: dict[str, Any]) -> str:
    """One row as text."""
    times = ", ".join(f"{t}: {f['median_ms']:.2f} ms" if "median_ms" in f else f"{t} failed: {f['failed'][-300:]}"
                      for t, f in row["arms"].items())  # fmt: skip
    return f"{row['title']}\n  {times}\n  efficiency {row['efficiency']}, {row['disagreement'] or 'losses agree'}"


BENCH = DataParallelBench()
