"""The command of gpu_steps: check, time in turns, take profiles, measure first steps in cold processes."""

from __future__ import annotations

import compileall
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .gpu_report import headline
from .gpu_steps import ROWS, StepRow
from .gpu_steps_arms import Minigraph, StepArm, arms, host_time, timed
from .gpu_timing import Gpu
from .harness import OnGpu, now, summarized, versions, write_report
from .turns import in_turns, without_rest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # three frameworks share the card

TURN_MS = 25.0  # what an arm runs in one turn
WARM, WARM_STEPS = 1.0, 64  # seconds or steps before an arm's step is timed for the first time
BURSTS_MS = 500.0  # what it runs at the most while the host's time is taken, two bursts at least
REPEATS = 20  # of one call, when its time inside a graph is measured


class GpuSteps(OnGpu):
    """A bench of whole steps: the rows of one file of results."""

    def __init__(
        self, name: str, title: str, rows: Sequence[StepRow], cold: bool = False,
        peers: Sequence[str] = ("torch", "jax"),
    ) -> None:  # fmt: skip
        self.name, self.title, self.rows, self.peers = name, title, rows, tuple(peers)
        self.cold = cold  # whether first steps of new processes are timed, too

    def run(self, peers: Sequence[str], rounds: int, command: str, only: str = "") -> None:
        """Measure the rows whose name begins with one of `only` (comma), print, write bench/results/<name>.json."""
        wanted = tuple(only.split(",")) if only else ("",)
        report: dict[str, Any] = {
            "bench": self.name, "title": self.title, "command": command,
            "date": now(), "gpu": Gpu().facts(),
            "versions": versions(), "rounds": rounds, "rows": [], "first_step_seconds": {},
        }  # fmt: skip

        for row in self.rows:
            if row.name.startswith(wanted):
                report["rows"].append(measured(row, list(peers), rounds))
                write_report(report)  # minutes go by: what is measured stays, whatever ends the next row
        if self.cold and ("cold".startswith(wanted) or not only):
            report["first_step_seconds"] = cold_steps(list(peers))
            write_report(report)
        print(table(report))
        print(f"written to {write_report(report)}")


BENCH = GpuSteps("gpu_steps", "Whole steps, ms; minigraph captured first", ROWS, cold=True)


def measured(row: StepRow, peers: list[str], rounds: int) -> dict[str, Any]:
    """One row: what every arm computes, its times, its peak, minigraph's profile."""
    found: dict[str, Any] = {"name": row.name, "title": row.title, "asked": row.asked, "note": row.note}
    failed: dict[str, str] = {}
    checked: dict[str, list[float]] = {}
    made: dict[str, StepArm] = {}
    seconds: dict[str, float] = {}
    for title, make in arms(row, peers, 0.0):
        try:
            start = time.perf_counter()
            arm = make()
            checked[title] = arm.result()
            seconds[title] = round(time.perf_counter() - start, 2)
            if not row.drop:
                made[title] = arm
        except Exception as problem:  # one arm must not cost the others; it stands in the report
            failed[title] = f"{type(problem).__name__}: {problem}"[:400]
    reference = next(iter(checked.values()), [])
    for title, values in checked.items():
        if not _agree(reference, values, row.tolerance):
            failed[title] = f"computes {values} instead of {reference}"
            made.pop(title, None)
    if row.drop:
        for title, make in arms(row, peers, row.drop):
            if title not in failed:
                made[title] = make()
    found |= {"checked": checked, "failed": failed, "seconds_until_checked": seconds}
    found |= _times(made, rounds)
    peaks = {title: [None if p is None else round(p, 2) for p in arm.peaks()] for title, arm in made.items()}
    found["peak_mib"] = {title: without for title, (without, _) in peaks.items()}
    found["peak_with_workspaces_mib"] = {title: whole for title, (_, whole) in peaks.items()}
    best = made.get("captured")
    if isinstance(best, Minigraph):
        found["profile"], found["arena_mib"] = profile(best), round(best.arena, 2)
        found["tflops"] = row.flops / found["milliseconds"]["captured"]["median"] / 1e9
    tuned = made.get("autotuned")
    if isinstance(tuned, Minigraph):
        found["autotune"] = tuned.choices()
    made.clear()
    release()
    return found


def _agree(reference: Sequence[float], values: Sequence[float], tolerance: float) -> bool:
    return len(reference) == len(values) and all(
        abs(a - b) <= tolerance * max(abs(a), 1e-6) for a, b in zip(reference, values, strict=True)
    )


def _times(made: Mapping[str, StepArm], rounds: int) -> dict[str, Any]:
    turns, steps, bursts = {}, {}, {}
    for title, arm in made.items():
        end = time.perf_counter() + WARM
        for _ in range(WARM_STEPS):  # calls are bound where feeds come again and again, and captured: not a step's time
            arm.step()
            if time.perf_counter() > end:
                break
        ms = timed(arm, 10)
        steps[title] = max(5, min(400, int(TURN_MS / ms)))
        turns[title] = partial(timed, arm, steps[title])
        bursts[title] = max(2, min(8, int(BURSTS_MS / (ms * arm.queued))))
    in_turns(turns, 1)  # not counted: clocks rise
    return {
        "steps_in_a_turn": steps,
        "milliseconds": {t: summarized(found) for t, found in in_turns(turns, rounds).items()},
        "milliseconds_without_rest": {t: round(ms, 5) for t, ms in without_rest(turns).items()},
        "host_microseconds_per_run": {t: host_time(arm, bursts[t]) for t, arm in made.items()},
    }


def release() -> None:
    """Give unused memory back, so that no framework keeps what another needs."""
    import gc

    gc.collect()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"]._dynamo.reset()
        sys.modules["torch"].cuda.empty_cache()


# profile


def profile(arm: Minigraph) -> list[dict[str, Any]]:
    """Microseconds of each call of the step inside a graph that repeats it, by operator and function, longest first."""
    cupy = importlib.import_module("cupy")
    plan, runtime = arm.plan, arm.runtime
    rows: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in plan.calls:
        segment = importlib.import_module("minigraph.kernels.cuda.record.call").Segment
        launch = runtime.captured([segment([call] * REPEATS)])
        if not callable(launch):
            continue
        launch()
        best = 1e9
        for _ in range(3):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(runtime.stream)
            launch()
            end.record(runtime.stream)
            end.synchronize()
            best = min(best, cupy.cuda.get_elapsed_time(start, end) / REPEATS * 1e3)
        rows[operator_of(plan, call.position), name_of(call.call)].append(best)
    found = [
        {"operator": op, "call": name, "count": len(us), "microseconds": round(sum(us), 2)}
        for (op, name), us in rows.items()
    ]
    return sorted(found, key=lambda r: -r["microseconds"])


def operator_of(plan: Any, position: int) -> str:
    """The type of the operator whose call stands at a position."""
    for step, span in zip(plan.schedule.steps, plan.bound.spans, strict=True):
        if position in span:
            return step.op.type
    return "results"


def name_of(call: Any) -> str:
    """What a call is: a kernel, a product with its sizes and epilogue, a copy."""
    if hasattr(call, "epilogue"):
        return f"gemm {call.m}x{call.n}x{call.k} {call.epilogue}"
    return getattr(call, "function", type(call).__name__)


# first steps


COLD = """
import sys, time
sys.path.insert(0, {root!r})
from bench import gpu_steps
from bench.gpu_steps_arms import {arm}
row = gpu_steps.ROWS[0]
import {imports}
start = time.perf_counter()
arm = {arm}({arguments})
arm.step()
arm.wait()
print("SECONDS", time.perf_counter() - start)
"""


def cold_steps(peers: list[str]) -> dict[str, float]:
    """Seconds from after the imports until the first step of the MLP is done, in processes of their own.

    minigraph has bytecode, as an installed package has: part of it is imported in the first step.
    """
    root = str(Path(__file__).parent.parent)
    compileall.compile_dir(f"{root}/minigraph", quiet=1)
    wanted = {"minigraph": ("Minigraph", "row, 0.0, {}, ahead=True", "cupy, nvmath.bindings.cublasLt, minigraph")}
    if "torch" in peers:
        wanted["torch compile"] = "Torch", "row, 0.0, 'compile', False", "torch"
        wanted["torch eager"] = "Torch", "row, 0.0, 'eager', False", "torch"
    if "jax" in peers:
        wanted["jax"] = "JaxStepArm", "row, 0.0, False", "jax, jax.numpy"
    found = {}
    for title, (arm, arguments, imports) in wanted.items():
        with tempfile.TemporaryDirectory() as home:
            text = COLD.format(root=root, arm=arm, arguments=arguments, imports=imports)
            for cache in ("cold", "warm"):
                done = subprocess.run(
                    [sys.executable, "-c", text], env={**os.environ, "HOME": home, "TORCHINDUCTOR_CACHE_DIR": home},
                    capture_output=True, text=True, check=False, cwd=root,
                )  # fmt: skip
                line = next((x for x in done.stdout.splitlines() if x.startswith("SECONDS")), None)
                found[f"{title}, {cache} cache"] = float(line.split()[1]) if line else done.stderr[-300:]
    return found


def table(report: Mapping[str, Any]) -> str:
    """For each row: milliseconds, ratio to the first arm, host time, peak."""
    lines = [headline(report)]
    for r in report["rows"]:
        ms = {name: f["median"] for name, f in r["milliseconds"].items()}
        asked = f", asked {r['asked']}" if r["asked"] else ""
        lines.append(f"{r['title']}{asked}; {r.get('tflops', 0):.0f} TFLOP/s")
        heads = f"{'ms':>8} {'ratio':>6} {'no rest':>8} {'host us':>8} {'peak MiB':>9} {'workspaces too':>15}"
        lines.append(f"    {'':26} {heads}")
        first = next(iter(ms.values()), 1.0)
        for name, value in ms.items():
            without, whole = ("" if p[name] is None else f"{p[name]:.2f}"
                              for p in (r["peak_mib"], r["peak_with_workspaces_mib"]))  # fmt: skip
            shown = f"{without:>9} {whole:>15}"
            host = r["host_microseconds_per_run"][name]["median"]
            figures = f"{r['milliseconds_without_rest'][name]:8.4f} {host:8.1f}"
            lines.append(f"    {name:26} {value:8.4f} {value / first:6.2f} {figures} {shown}")
        lines += [f"    FAILED {name}: {why}" for name, why in r["failed"].items()]
        for p in r.get("profile", [])[:14]:
            lines.append(f"      {p['microseconds']:9.2f} us  {p['count']:3} x {p['operator']}: {p['call']}")
    for name, seconds in report["first_step_seconds"].items():
        lines.append(f"first step, {name:26} {seconds if isinstance(seconds, str) else f'{seconds:.2f} s'}")
    return "\n".join(lines)
