"""Checks under compute-sanitizer: each tool in several processes that share them out among themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.check import Check

TOOLS = {"memcheck": 4, "racecheck": 5, "initcheck": 3, "synccheck": 4}  # processes for each
SECONDS = 320  # that a run takes at the most
LAST = 40  # of these at the end, when no check is begun any more
RESULT = "RESULT "  # before the result of a check, among what libraries print
Running = tuple[subprocess.Popen[bytes], Any, Path, float]  # a tool's process, what it prints and reports, its end


def claimed(checks: list[Check], folder: Path, end: float) -> Iterator[Check]:
    """The checks that no other process took first, until `end` (time.time()): a tool reports when its process ends."""
    for number, check in enumerate(checks):
        if time.time() > end:
            return
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield check


def begin(tool: str, folder: Path, out: Path, inner: list[str], seconds: float) -> list[Running]:
    """The processes of a tool; each takes the next check that none of the others has."""
    command = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    (folder / tool).mkdir()
    inner = [*inner, "--inline", tool, "--claims", str(folder / tool)]
    parts: list[Running] = []
    for part in range(TOOLS[tool]):
        log = out / f"sanitizer_{tool}_{part}.txt"
        outer = [command, "--tool", tool, "--report-api-errors", "no", "--print-limit", "30", "--log-file", str(log)]
        text = (folder / f"{tool}.{part}").open("w+")
        process = subprocess.Popen([*outer, *inner], stdout=text, stderr=subprocess.STDOUT, start_new_session=True)
        parts.append((process, text, log, time.perf_counter() + seconds + LAST))
    return parts


def ended(process: subprocess.Popen[bytes], text: Any, log: Path, end: float) -> dict[str, Any]:
    """What one process of a tool reported, and the results of its checks."""
    try:
        process.wait(max(1, end - time.perf_counter()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool and what it looks at
        process.wait()
    text.seek(0)
    printed = text.read().splitlines()
    text.close()
    results = [json.loads(line.removeprefix(RESULT)) for line in printed if line.startswith(RESULT)]
    said = log.read_text(errors="replace") if log.exists() else ""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
    clean = bool(found) and all(re.match(r"0 (errors|hazards)", line) for line in found) and process.returncode == 0
    lines = [line.strip("= ") for line in said.splitlines() if "=====" in line and "COMPUTE-SANITIZER" not in line]
    if clean:
        log.unlink()  # it says nothing
    return {
        "clean": clean,
        "summary": "; ".join(found) or f"no summary, ended with {process.returncode}",
        "results": results,
        "first": [] if clean else lines[:6] or printed[-3:],
    }


def joined(parts: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """The result of a tool from those of its processes: clean if each of these checks ran and passed in silence."""
    results = [r for p in parts for r in p["results"]]
    passed = {r["name"] for r in results if not r["error"]}
    not_run = [n for n in names if n not in {r["name"] for r in results}]
    return {
        "clean": all(p["clean"] for p in parts) and passed == set(names),
        "summary": "; ".join(dict.fromkeys(p["summary"] for p in parts)),
        "checks": len(passed),
        "not_run": not_run,
        "failed": [r for r in results if r["error"]],
        "first": [line for p in parts for line in p["first"]],
        "slowest": {r["name"]: r["seconds"] for r in sorted(results, key=lambda r: -r["seconds"])[:5]},
    }
