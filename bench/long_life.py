"""Memory of a process that builds, compiles, runs and drops thousands of programs; and what `import minigraph` takes.

    python -m bench.long_life [--programs 5000] [--only ARM]     writes bench/results/long_life.json

Each arm is a process of its own: one Executor and Scope for all programs, or fresh ones for each; with the passes or
without. MiB of resident memory are noted at ten places on the way, with nothing collected by hand; flat is the second
half against the first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .harness import RESULTS, machine, now, versions, write_report

ARMS = ("shared", "shared fused", "fresh", "fresh fused")
IMPORT = "import time; t = time.perf_counter(); import minigraph; print(time.perf_counter() - t)"
FILE = RESULTS / "long_life.json"
PAGES = 10  # notes on the way


def resident() -> float:
    """MiB of memory that this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def life(arm: str, programs: int) -> list[float]:
    """MiB after each tenth of the programs."""
    import numpy as np

    import minigraph as mg

    exe, scope, found = mg.static.Executor(), mg.static.Scope(), []
    for turn in range(1, programs + 1):
        if arm.startswith("fresh"):
            exe, scope = mg.static.Executor(), mg.static.Scope()
        main, startup = mg.static.Program(), mg.static.Program()
        with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
            loss = mg.mean(mg.exp(mg.nn.Linear(8, 8)(mg.static.data("x", [None, 8]))) * 2.0)
            mg.optimizer.AdamW(0.01).minimize(loss)
        exe.run(startup, scope=scope)
        program: Any = main
        if arm.endswith("fused"):
            program = mg.static.CompiledProgram(main, mg.static.BuildStrategy.all())
        exe.run(program, {"x": np.ones((4, 8), np.float32)}, [loss], scope=scope)
        if turn % max(1, programs // PAGES) == 0:
            found.append(round(resident(), 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--only", choices=ARMS, help="this one; the file keeps others that it has of as many programs")
    parser.add_argument("--arm", choices=ARMS, help="run this one here, and print what it found")
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(life(options.arm, options.programs)))
        return
    tree, own = Path(__file__).parent.parent, [sys.executable, "-m", "bench.long_life", "--programs"]

    def said(*command: str) -> str:
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout

    arms = (options.only,) if options.only else ARMS
    importlib.import_module("minigraph")  # its version is asked for below
    title = f"MiB of a process on its way through {options.programs} programs"
    memory = {arm: json.loads(said(*own, str(options.programs), "--arm", arm)) for arm in arms}
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    command = " ".join(["python -m bench.long_life", *sys.argv[1:]])
    if options.only and before.get("title") == title:
        memory, command = before["MiB"] | memory, f"{before['command']}; {command}"
    seconds = sorted(float(said(sys.executable, "-c", IMPORT)) for _ in range(9))
    report = {
        "bench": "long_life", "title": title,
        "command": command, "date": now(),
        "machine": machine(), "versions": versions(), "MiB": memory,
        "import_seconds": {"median": seconds[4], "raw": seconds},
    }  # fmt: skip
    for arm, found in memory.items():
        print(f"{arm:14} " + " ".join(f"{m:7.1f}" for m in found))
    print(f"import minigraph: {seconds[4]:.3f} s")
    write_report(report)


if __name__ == "__main__":
    main()
