"""Steps on a CPU beside busy processes and under CPU quotas: one thread against as many as minigraph chooses.

    python -m bench.busy_cpu                     writes bench/results/busy_cpu.json
    python -m bench.busy_cpu --old ../old-tree   with an arm that runs the package and the bench of another checkout
    python -m bench.busy_cpu --only "mlp_cpu, [12] busy"     these rows; others in the file stay

For each condition the arms are worker processes that take turns (harness.py): medians of interleaved turns, each behind
a pause in which the threads of the arm before go to sleep, and behind a step that is not counted. `one` has
OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1, `default` and `old` have neither. Quotas are those of a cgroup, of version
2 or 1, that is made for each condition and removed after it; where this process may not make one, they are left out.
Beside load a short step either keeps its core or loses it for a time slice: there the median jumps between two values,
and the ratio of means says what all steps together take: this is what is held against MOST. A mean of few steps says
nothing there, so each row has its standard error, from the turns: those of one round stand beside each other.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .harness import RESULTS, WARM_UP, Worker, machine, now, summarized, write_report

STEPS = {"mlp_cpu": ("minigraph fused", 4), "optimizer_cpu": ("fused", 40)}  # the arm of another bench; steps of a turn
BUSY, QUOTAS = (0, 1, 2, 4), (0.5, 1.0, 2.0)
MOST = 1.3  # times what one thread takes beside the same
PAUSE = 0.15  # seconds before a turn: threads of the arm before, which may spin, have gone to sleep
LOAD_SECONDS = 600  # a busy process ends by itself, at the latest
PERIOD = 100_000  # microseconds of a cgroup's period
LOAD = "import time; end = time.time() + {seconds}\nwhile time.time() < end:\n    sum(range(10000))"
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Process(Worker):
    """An arm's process with an environment and a cgroup of its own."""

    def __init__(self, bench: str, arm: str, threads: int | None, tree: Path, cgroup: Path | None) -> None:
        self.arm = arm
        environment = {name: text for name, text in os.environ.items() if name not in POOLS}
        environment |= dict.fromkeys(POOLS, str(threads)) if threads else {}
        command = [sys.executable, "-m", "bench.harness", bench, arm]
        if cgroup is not None:  # before Python starts: a process reads its quota once
            command = ["sh", "-c", f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree,
            env={**environment, "PYTHONPATH": str(tree)},
        )  # fmt: skip


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    code = LOAD.format(seconds=LOAD_SECONDS)
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def limited(quota: float) -> Iterator[Path]:
    """A cgroup with a quota of so many cores; OSError where none can be made."""
    version1 = Path("/sys/fs/cgroup/cpu")
    top = version1 if (version1 / "cpu.cfs_quota_us").exists() else Path("/sys/fs/cgroup")
    folder = top / f"minigraph_bench_{os.getpid()}"
    folder.mkdir()
    try:
        if top == version1:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD)))
        else:
            (folder / "cpu.max").write_text(f"{int(quota * PERIOD)} {PERIOD}")
        yield folder
    finally:
        folder.rmdir()


def measured(bench: str, arms: Mapping[str, tuple[int | None, Path]], rounds: int, cgroup: Path | None) -> Any:
    """Milliseconds of all steps of each arm, and the versions of packages."""
    arm, steps = STEPS[bench]
    workers = {name: Process(bench, arm, threads, tree, cgroup) for name, (threads, tree) in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.ask(steps=WARM_UP)
    for turn in range(rounds):
        for name in workers if turn % 2 else reversed(workers):
            time.sleep(PAUSE)
            workers[name].ask(steps=1)  # not timed: it wakes threads and brings arrays back into the cache
            times[name] += [1e3 * s for s in workers[name].ask(steps=steps)]
    versions = workers["default"].ask(versions=True)
    for worker in workers.values():
        worker.close()
    return times, versions


def compared(one: list[float], default: list[float], steps: int) -> tuple[float, float]:
    """The ratio of the means of all steps, and its standard error, from what whole turns took."""
    ratio = statistics.mean(default) / statistics.mean(one)
    turns = range(0, len(one), steps)
    apart = [sum(default[i : i + steps]) - ratio * sum(one[i : i + steps]) for i in turns]
    return ratio, statistics.stdev(apart) / len(apart) ** 0.5 / (statistics.mean(one) * steps)


def rows(arms: Mapping[str, tuple[int | None, Path]], rounds: int, only: str) -> Iterator[dict[str, Any]]:
    """A row for each bench and condition whose names `only` finds."""
    conditions = [(f"{n} busy processes", n, None) for n in BUSY] + [(f"quota {q:g}", 0, q) for q in QUOTAS]
    for bench in STEPS:
        for name, count, quota in conditions:
            if not re.search(only, f"{bench}, {name}"):
                continue
            with ExitStack() as stack:
                try:
                    cgroup = stack.enter_context(limited(quota)) if quota is not None else None
                except OSError as problem:
                    print(f"{bench:14} {name}: left out, {problem}")
                    continue
                stack.enter_context(busy(count))
                times, versions = measured(bench, arms, rounds, cgroup)
            medians = {arm: statistics.median(ms) for arm, ms in times.items()}
            ratio = medians["default"] / medians["one"]
            means, error = compared(times["one"], times["default"], STEPS[bench][1])
            shown = " ".join(f"{arm} {ms:9.3f} ms" for arm, ms in medians.items())
            slow = "" if means <= MOST else "  TOO SLOW"
            print(f"{bench:14} {name:18} {shown}  default / one {ratio:.2f}, of means {means:.2f} +- {error:.2f}{slow}")
            yield {"bench": bench, "condition": name, "ratio": round(ratio, 3), "ratio_of_means": round(means, 3),
                   "standard_error": round(error, 3), "versions": versions,
                   "command": " ".join(["python -m bench.busy_cpu", *sys.argv[1:]]), "date": now(),
                   "means": {arm: round(statistics.mean(ms), 4) for arm, ms in times.items()},
                   "milliseconds": {arm: summarized(ms) for arm, ms in times.items()}}  # fmt: skip


def joined(kept: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the file with those that are new in their places."""
    table = {(row["bench"], row["condition"]): row for row in (*kept, *found)}
    return list(table.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each arm")
    parser.add_argument("--only", default="", help="a regular expression for rows")
    parser.add_argument("--old", type=Path, help="another checkout, as an arm")
    options = parser.parse_args()
    tree = Path(__file__).parent.parent
    arms: dict[str, tuple[int | None, Path]] = {"one": (1, tree), "default": (None, tree)}
    if options.old is not None:
        arms["old"] = None, options.old.resolve()
    for bench in STEPS:
        importlib.import_module(f"bench.{bench}")
    load = os.getloadavg()
    path = RESULTS / "busy_cpu.json"
    found = list(rows(arms, options.rounds, options.only))
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if options.only and path.exists() else []
    report = {
        "bench": "busy_cpu", "title": "Steps on a CPU beside busy processes and under quotas", "most": MOST,
        "machine": machine(), "load_before": load, "rows": joined(kept, found),
    }  # fmt: skip
    print(f"written to {write_report(report)}")


if __name__ == "__main__":
    main()
