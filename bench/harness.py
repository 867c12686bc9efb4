"""Fair timing: each arm in a process of its own, turns in alternation, results compared first.

Thread pools of two frameworks in one process disturb each other, and a machine is not equally fast
all the time. So every arm is a worker process that idles until it is asked for the next few steps;
the arms take turns, and an arm's figure is the median over all its steps.

    python -m bench.harness <bench> <arm>     is what a worker runs; it speaks JSON lines
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = {  # of peers that are called otherwise
    "compile": "torch", "torch-compile": "torch", "liger": "torch", "variants": "minigraph",
}  # fmt: skip
SHORT = 100  # characters of a line of a report
OTHER_WORK = 0.03  # of the cores' time: what others may do in a round that counts as alone
WARM_UP = 5  # steps of each arm before the first timed one


@dataclass(frozen=True)
class ProcessArm:
    """One way to do the same work.

    make  () -> (check, step): `check()` returns what must agree between arms, `step()` is timed
    peer  the framework that must be installed besides minigraph, if any
    """

    make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
    peer: str | None = None


@dataclass(frozen=True)
class CpuBench:
    """Arms to be compared; `agree(reference, other)` says what is wrong, or None."""

    name: str
    title: str
    arms: Mapping[str, ProcessArm]
    agree: Callable[[Any, Any], str | None]

    @property
    def peers(self) -> tuple[str, ...]:
        """Other frameworks that have an arm."""
        return tuple(sorted({arm.peer for arm in self.arms.values() if arm.peer}))

    def missing(self) -> str | None:
        """Why this cannot run here; a CPU is everywhere."""
        return None


class OnGpu:
    """A bench that needs a GPU."""

    def missing(self) -> str | None:
        """Why this cannot run here."""
        reason = importlib.import_module("minigraph").cuda.why_not()
        return f"it needs a GPU: {reason}" if reason else None


def not_installed(peers: Sequence[str]) -> str | None:
    """What must be installed before these peers can run, if anything; liger says so itself, and is left out."""
    missing = sorted({p for p in (PACKAGES.get(peer, peer) for peer in peers) if importlib.util.find_spec(p) is None})
    names = ", ".join(missing)
    return f"{names} is not installed: pip install {' '.join(missing)}" if missing else None


class Worker:
    """An arm's process."""

    def __init__(self, bench: CpuBench, arm: str, threads: int) -> None:
        self.arm = arm
        pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.harness", bench.name, arm], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, **pools}, cwd=Path(__file__).parent.parent,
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        """The worker's answer to one question."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:  # it ended before it was asked
            answer = ""
        if not answer:
            raise SystemExit(f"arm {self.arm} ended with status {self.process.wait()}; its message stands above")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def work(bench_name: str, arm: str) -> None:
    """A worker's loop: answer questions from stdin until it closes."""
    bench: CpuBench = importlib.import_module(f"bench.{bench_name}").BENCH
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints goes to stderr
    check, step = bench.arms[arm].make()
    for line in sys.stdin:
        question = json.loads(line)
        if "check" in question:
            answer = check()
        elif "versions" in question:
            answer = versions()
        else:
            answer = [_timed(step) for _ in range(question["steps"])]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _timed(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(
    bench: CpuBench, peers: Sequence[str], rounds: int, steps: int, threads: int, command: str, file: str = "",
    alone: bool = False,
) -> None:  # fmt: skip
    """Run the arms of minigraph and of `peers`, print a table and write bench/results/<its name, or `file`>.json.

    alone  as in `turns`
    """
    names = [name for name, arm in bench.arms.items() if arm.peer is None or arm.peer in peers]
    workers = [Worker(bench, name, threads) for name in names]
    checks = {w.arm: w.ask(check=True) for w in workers}
    for name in names[1:]:
        problem = bench.agree(checks[names[0]], checks[name])
        if problem:
            raise SystemExit(f"{bench.name}: {names[0]} and {name} do not compute the same: {problem}")
    for w in workers:
        w.ask(steps=WARM_UP)
    times, discarded = turns(workers, rounds, steps, alone)
    installed = {name: version for w in workers for name, version in w.ask(versions=True).items()}
    for w in workers:
        w.close()
    report = {
        "bench": bench.name,
        "title": bench.title,
        "command": command,
        "date": now(),
        "machine": machine(),
        "threads": threads,
        **({"discarded_rounds": discarded} if alone else {}),
        "versions": installed,
        "checked": checks,
        "milliseconds": {name: summarized([s * 1e3 for s in seconds]) for name, seconds in times.items()},
    }
    path = write_report(report, file)
    print(table(report))
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def turns(workers: Sequence[Worker], rounds: int, steps: int, alone: bool) -> tuple[dict[str, list[float]], int]:
    """(seconds of each arm's steps, rounds that were discarded); in a round each arm has its turn.

    alone  a round in which the machine did more than OTHER_WORK for others is discarded, and done again
    """
    times: dict[str, list[float]] = {w.arm: [] for w in workers}
    turn = discarded = 0
    while turn < rounds:
        begin, before = time.perf_counter(), other_work(workers) if alone else 0.0
        found = {w.arm: w.ask(steps=steps) for w in (workers if turn % 2 else reversed(workers))}
        spent = time.perf_counter() - begin
        if alone and other_work(workers) - before > OTHER_WORK * spent * (os.cpu_count() or 1):
            discarded += 1
            time.sleep(1)
            continue
        for arm, seconds in found.items():
            times[arm] += seconds
        turn += 1
    return times, discarded


def other_work(workers: Sequence[Worker]) -> float:
    """Seconds that this machine's cores have been busy so far, with other than these processes (on Linux)."""
    fields = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    ticks = sum(map(int, fields[:8])) - int(fields[3]) - int(fields[4])  # all but idle and waiting for a disk
    for w in workers:
        own = Path(f"/proc/{w.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks -= int(own[11]) + int(own[12])  # in user mode, in the system
    return ticks / os.sysconf("SC_CLK_TCK")


def now() -> str:
    """The date of a report."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_report(report: Mapping[str, Any], name: str = "") -> Path:
    """Write a report to bench/results, under the name of its bench or another one; where it lies."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name or report['bench']}.json"
    path.write_text(in_lines(report) + "\n", encoding="utf-8")
    return path


def in_lines(fact: Any, margin: str = "") -> str:
    """A report as JSON: what holds no lists and dicts is in one line if it is short, or if it is all numbers."""
    parts = list(fact.values()) if isinstance(fact, Mapping) else fact if isinstance(fact, (list, tuple)) else []
    flat = json.dumps(fact)
    innermost = not any(isinstance(part, (Mapping, list, tuple)) for part in parts)
    if innermost and (len(flat) <= SHORT or not any(isinstance(part, str) for part in parts)):
        return flat
    names = [f"{json.dumps(name)}: " for name in fact] if isinstance(fact, Mapping) else [""] * len(parts)
    inner = f",\n{margin} ".join(n + in_lines(part, f"{margin} ") for n, part in zip(names, parts, strict=True))
    first, last = "{}" if isinstance(fact, Mapping) else "[]"
    return f"{first}\n{margin} {inner}\n{margin}{last}"


def summarized(milliseconds: Sequence[float]) -> dict[str, Any]:
    """Median, the tenth and the ninetieth percentile, and all times."""
    ms = [round(m, 4) for m in milliseconds]
    low, *_, high = statistics.quantiles(ms, n=10)
    return {"median": statistics.median(ms), "p10": round(low, 4), "p90": round(high, 4), "raw": ms}


def table(report: Mapping[str, Any]) -> str:
    """One row for each arm; ratios are to the first arm, above 1 is slower."""
    figures = report["milliseconds"]
    first = next(iter(figures.values()))["median"]
    lines = [f"{report['title']}, {report['machine']['cpu']}, {report['threads']} threads",
             f"{'':24} {'median ms':>10} {'p10':>8} {'p90':>8} {'ratio':>7}"]  # fmt: skip
    for name, f in figures.items():
        lines.append(f"{name:24} {f['median']:10.2f} {f['p10']:8.2f} {f['p90']:8.2f} {f['median'] / first:7.2f}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():  # a virtual machine's name says little, its numbers do
        lines = (line.partition(":") for line in info.read_text().splitlines())
        facts = {key.strip(): value.strip() for key, _, value in reversed(list(lines))}
        cpu = "{} (family {}, model {}, {} MHz)".format(
            *(facts.get(key, "?") for key in ("model name", "cpu family", "model", "cpu MHz"))
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": cores, "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """Versions of the packages that this process has imported."""
    found = {}
    for package in ("minigraph", "numpy", "numba", "torch", "jax", "cupy", "liger_kernel"):
        if package in sys.modules:
            module = sys.modules[package]
            found[package] = str(getattr(module, "__version__", None) or importlib.metadata.version(package))
    return found


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
