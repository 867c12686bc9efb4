"""The loss of GPT-2 over 300 steps on Python's standard library: bfloat16 and float16 against float32.

    python -m bench gpu_gpt2_loss --peers torch

minigraph's three trainings begin with the same weights and see the same bytes. PyTorch's two, under autocast in
bfloat16, begin with other weights: what they differ by is the spread that 16 bits must stay within. Compared are means
of 20 losses. With float16 the first updates are left out until the scale of the loss fits, so its curve begins a step
late: its means after the first are compared apart, too.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import gpu_steps_arms
from .gpt2 import GptRow, Network, row
from .gpu_gpt2 import limited
from .gpu_steps_arms import Minigraph, StepArm, Torch
from .gpu_steps_run import release
from .gpu_timing import Gpu
from .harness import OnGpu, now, versions, write_report

NETWORK = Network(12, 768, 12, 16)
STEPS, MEAN, RATE = 300, 20, 3e-4
ARM = 75.0  # seconds
TEXT = 8_000_000  # bytes
LATER = f"float16, step {MEAN} and on"


def text(limit: int = TEXT) -> np.ndarray:
    """The bytes of the running interpreter's library, in the order of its files' names."""
    found, size = list[bytes](), 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found.append(path.read_bytes())
        size += len(found[-1])
        if size >= limit:
            break
    return np.frombuffer(b"".join(found)[:limit], np.uint8)


def arms(peers: Sequence[str]) -> Iterator[tuple[str, Callable[[], StepArm]]]:
    given = replace(row("loss", "loss", NETWORK), texts=text(), steps=STEPS)
    for dtype in ("float32", "bfloat16", "float16"):
        amp = {} if dtype == "float32" else {"level": "O2", "dtype": dtype}
        yield f"minigraph {dtype}", lambda amp=amp: Minigraph(replace(given, amp=amp), 0.0, {})
    if "torch" in peers:
        for seed in (2, 3):
            other: GptRow = replace(given, seed=seed, packed=True)
            yield f"torch seed {seed}", lambda other=other: Torch(other, 0.0, "eager", masters=True)


def losses(arm: Any) -> list[float]:
    if isinstance(arm, Minigraph):
        return [float(arm.exe.run(arm.program, b, [arm.loss], scope=arm.scope)[0]) for b in arm.batches]
    return [float(arm._run(b)) for b in arm.batches]


def smooth(curve: Sequence[float]) -> np.ndarray:
    whole = len(curve) // MEAN * MEAN
    return np.reshape(curve[:whole], (-1, MEAN)).mean(axis=1)


def verdict(curves: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The largest difference of means: of 16 bits from float32, and of PyTorch's two seeds."""
    pairs = {
        "bfloat16": ("minigraph bfloat16", "minigraph float32", 0),
        "float16": ("minigraph float16", "minigraph float32", 0),
        LATER: ("minigraph float16", "minigraph float32", 1),
        "torch seeds": ("torch seed 2", "torch seed 3", 0),
    }
    found: dict[str, Any] = {
        name: float(np.abs(smooth(curves[a]) - smooth(curves[b]))[first:].max())
        for name, (a, b, first) in pairs.items()
        if a in curves and b in curves
    }
    if "torch seeds" in found:
        halves = [name for name in ("bfloat16", "float16", LATER) if name in found]
        found["within the spread"] = [name for name in halves if found[name] <= found["torch seeds"]]
    return found


class LossBench(OnGpu):
    """What `python -m bench gpu_gpt2_loss` runs."""

    name, title, peers = "gpu_gpt2_loss", "GPT-2's loss over 300 steps in 16 bits and in float32", ("torch",)

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Train each arm once, print, write bench/results/gpu_gpt2_loss.json after each."""
        curves: dict[str, list[float]] = {}
        report: dict[str, Any] = {
            "bench": self.name, "title": self.title, "command": command,
            "date": now(), "gpu": Gpu().facts(),
            "versions": versions(), "rate": RATE, "losses": curves, "failed": {}, "seconds": {},
        }  # fmt: skip
        rate, gpu_steps_arms.RATE = gpu_steps_arms.RATE, RATE
        try:
            for title, make in arms(peers):
                start = time.perf_counter()
                try:
                    with limited(ARM):
                        curves[title] = [round(x, 5) for x in losses(make())]
                except Exception as problem:  # one arm must not cost the others
                    report["failed"][title] = f"{type(problem).__name__}: {problem}"[:400]
                report["seconds"][title] = round(time.perf_counter() - start, 2)
                report["differences"] = verdict(curves)
                write_report(report)
                release()
        finally:
            gpu_steps_arms.RATE = rate
        for title, curve in curves.items():
            print(f"{title:20} {curve[0]:.4f} ... {np.mean(curve[-MEAN:]):.4f}")
        print(report["differences"], report["failed"])


BENCH = LossBench()
