"""GPT-2's training step on a GPU, 124 and 355 million parameters, against PyTorch's compiler and JAX.

    python -m bench gpu_gpt2 --peers torch,jax [--only gpt2_124m]
    python -m bench gpu_gpt2 --peers variants --only gpt2_124m     what single rewrites give

bfloat16, AdamW, random words, no dropout; arms as in gpu_steps: they agree in three losses, then take turns. An arm
that takes more than `ARM` seconds until it is checked is given up, and so is what would begin after `WHOLE` seconds;
both stand in the report, which is written after each part. Before the rows, first steps of the small network in new
processes with empty caches; after each row minigraph's profile by class.
"""

from __future__ import annotations

import compileall
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from minigraph.passes.elementwise import bias_sums

from .gpt2 import Network, row
from .gpt2_profile import ceilings, profiled
from .gpu_report import end as close
from .gpu_report import headline, put, report_of
from .gpu_steps_arms import JaxStepArm, Minigraph, StepArm, Torch, timed
from .gpu_steps_run import _agree, release
from .gpu_timing import Gpu
from .harness import OnGpu, now, summarized, write_report
from .turns import in_turns, without_rest

ARM, WHOLE = 110.0, 440.0  # seconds
TURN_MS = 250.0
SIZES = {
    "gpt2_124m": ("GPT-2 124 M, batch 16 x 1024, bfloat16, AdamW", Network(12, 768, 12, 16)),
    "gpt2_355m": ("GPT-2 355 M, batch 8 x 1024, bfloat16, AdamW", Network(24, 1024, 16, 8)),
}
Made = tuple[str, Callable[[], StepArm]]


def arms(name: str, peers: Sequence[str]) -> Iterator[Made]:
    """(title, how to make it); minigraph's own one first."""
    title, network = SIZES[name]
    own, other = row(name, title, network), row(name, title, network, packed=True)
    yield "minigraph", lambda: Minigraph(own, 0.0, {})
    yield "minigraph, recompute", lambda: Minigraph(own, 0.0, {"recompute": True})
    if "variants" in peers:
        yield "Q, K, V apart", lambda: Minigraph(own, 0.0, {"fuse_parallel_linears": False})
        yield "norms kept", lambda: Minigraph(own, 0.0, {"recompute_norms": False})
        yield "layers sum biases", lambda: LayersSum(own, 0.0, {})
    if "torch" in peers:
        for mode in ("compile", "reduce-overhead"):
            yield f"torch {mode}", lambda mode=mode: Torch(other, 0.0, mode, masters=True)
    if "jax" in peers:
        yield "jax", lambda: JaxStepArm(replace(other, dtype="bfloat16"), 0.0, masters=True)


class LayersSum(Minigraph):
    """minigraph, but no kernel on rows sums the gradient of a bias along."""

    def step(self) -> None:  # type: ignore[override]
        with self._apart():
            super().step()

    def result(self) -> list[float]:
        with self._apart():
            return super().result()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        before, bias_sums.MOST = bias_sums.MOST, 0
        try:
            yield
        finally:
            bias_sums.MOST = before


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A TimeoutError inside where it takes longer; not in the middle of one call of a library."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class GptBench(OnGpu):
    """What `python -m bench gpu_gpt2` runs."""

    name, title, peers = "gpu_gpt2", "GPT-2's training step, ms", ("variants", "torch", "jax")

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure, print, write bench/results/gpu_gpt2.json after each part."""
        gpu, end = Gpu(), time.perf_counter() + WHOLE
        report: dict[str, Any] = {"first_step_seconds": {}} | report_of(self, gpu, command, rounds, only)
        keep = partial(write_report, report)
        if not only or only == "first":
            for title, seconds in first_steps(peers):
                report["first_step_seconds"][title] = seconds
                keep()
        for name in (name for name in SIZES if only in name):
            found = {"name": name, "title": SIZES[name][0], "date": now()}
            put(report["rows"], found)
            measured(found, name, peers, rounds, gpu, end, keep)
            keep()
            release()
        close(report, table)


BENCH = GptBench()


def measured(
    found: dict[str, Any], name: str, peers: Sequence[str], rounds: int, gpu: Any, end: float, keep: Callable[[], Any]
) -> None:  # fmt: skip
    """Fill in one row: losses, times, tokens, peaks, the profile."""
    network, made = SIZES[name][1], dict[str, StepArm]()
    found |= {"failed": {}, "losses": {}, "seconds_until_checked": {}}
    for title, make in arms(name, peers):
        start = time.perf_counter()
        try:
            with limited(min(ARM, end - start)):
                arm = make()
                found["losses"][title] = arm.result()
                made[title] = arm
        except Exception as problem:  # one arm must not cost the others
            found["failed"][title] = f"{type(problem).__name__}: {problem}"[:400]
        found["seconds_until_checked"][title] = round(time.perf_counter() - start, 2)
        reference = next(iter(found["losses"].values()), [])
        if title in made and not _agree(reference, found["losses"][title], 2e-2):
            found["failed"][title] = f"computes {found['losses'][title]} instead of {reference}"
            del made[title]
        keep()
    if not made:
        return
    found |= times(made, rounds, network)
    found["peak_mib"] = {t: [None if p is None else round(p, 1) for p in arm.peaks()] for t, arm in made.items()}
    keep()
    own = made.get("minigraph")
    if isinstance(own, Minigraph):
        found["arena_mib"] = round(own.arena, 1)
        found["profile"] = profiled(own, found["milliseconds"]["minigraph"]["median"], network, ceilings(own, gpu))


def times(made: Mapping[str, StepArm], rounds: int, network: Network) -> dict[str, Any]:
    """Milliseconds of a step with rests and without, and tokens in a second."""
    turns = {}
    for title, arm in made.items():
        for _ in range(5):
            arm.step()
        turns[title] = partial(timed, arm, max(3, int(TURN_MS / timed(arm, 5))))
    in_turns(turns, 1)  # not counted: clocks rise
    ms = {title: summarized(found) for title, found in in_turns(turns, rounds).items()}
    steady = without_rest(turns)
    return {
        "milliseconds": ms, "milliseconds_without_rest": {t: round(x, 4) for t, x in steady.items()},
        "tokens_per_second": {t: round(network.tokens / f["median"] * 1e3) for t, f in ms.items()},
    }  # fmt: skip


FIRST = """
import sys, time
sys.path.insert(0, {root!r})
from bench.gpt2 import Network, row, values_of
from bench.gpu_steps_arms import {arm}
import {imports}
from dataclasses import replace
given = row("first", "first", Network{sizes}, packed={packed})
given = replace(given, dtype={dtype!r})
given.parameters()
start = time.perf_counter()
arm = {arm}(given, 0.0, {options})
made = time.perf_counter() - start
arm.step()
arm.wait()
print("SECONDS", time.perf_counter() - start, made)
"""


def first_steps(peers: Sequence[str], sizes: tuple[int, ...] = (12, 768, 12, 16)) -> Iterator[tuple[str, Any]]:
    """(arm, seconds from behind the imports until the first step is done) in new processes with empty caches.

    minigraph has bytecode, as an installed package has: part of it is imported in the first step.
    """
    ours, root = "cupy, nvmath.bindings.cublasLt, minigraph", str(Path(__file__).parent.parent)
    compileall.compile_dir(f"{root}/minigraph", quiet=1)
    chosen = {
        "minigraph": ("Minigraph", "{}, ahead=True", ours, False, "float32"),
        "minigraph, not prepared": ("Minigraph", "{}", ours, False, "float32"),
    }
    if "torch" in peers:
        chosen["torch compile"] = ("Torch", "'compile', True", "torch", True, "float32")
    if "jax" in peers:
        chosen["jax"] = ("JaxStepArm", "True", "jax, jax.numpy", True, "bfloat16")
    for title, (arm, options, imports, packed, dtype) in chosen.items():
        with tempfile.TemporaryDirectory() as home:
            caches = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR"), home)
            text = FIRST.format(
                root=root, arm=arm, imports=imports, sizes=sizes, packed=packed, options=options, dtype=dtype
            )
            try:
                done = subprocess.run(
                    [sys.executable, "-c", text], env={**os.environ, **caches}, capture_output=True, text=True,
                    check=False, cwd=root, timeout=ARM,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                yield title, f"more than {ARM:.0f} s"
                continue
            line = next((x for x in done.stdout.splitlines() if x.startswith("SECONDS")), None)
            yield title, float(line.split()[1]) if line else done.stderr[-300:]
            if line:
                yield f"{title}, of them until it has weights", float(line.split()[2])


def table(report: Mapping[str, Any]) -> str:
    """For each row: milliseconds, tokens, peak of each arm; then the classes of minigraph's step."""
    lines = [headline(report)]
    for title, seconds in report["first_step_seconds"].items():
        lines.append(f"first step, {title:20} {seconds if isinstance(seconds, str) else f'{seconds:.2f} s'}")
    for found in report["rows"]:
        lines.append(found["title"])
        for title, ms in found.get("milliseconds", {}).items():
            peak, steady = found["peak_mib"][title], found["milliseconds_without_rest"][title]
            shown = ", ".join("-" if p is None else f"{p:.0f}" for p in peak)
            tokens = found["tokens_per_second"][title]
            lines.append(f"  {title:22} {ms['median']:8.3f} ms, no rest {steady:8.3f}  {tokens:9d}/s  MiB {shown}")
        lines += [f"  FAILED {title}: {why}" for title, why in found.get("failed", {}).items()]
        for name, facts in found.get("profile", {}).get("classes", {}).items():
            figures = f"{facts['ms']:8.3f} ms, floor {facts['floor_ms']:8.3f}, {facts['calls']:4} calls"
            lines.append(f"    {name:12} {figures}")
        if "profile" in found:
            lines.append(f"    {'gaps':12} {found['profile']['gaps_ms']:8.3f} ms")
    return "\n".join(lines)


