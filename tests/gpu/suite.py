"""All checks that need a GPU, in one command and without pytest.

    python -m tests.gpu.suite [--only REGEX] [--out FOLDER] [--jobs N]
    python -m tests.gpu.suite --sanitize        a small set under compute-sanitizer's four tools
    python -m tests.gpu.suite --list            names only; --stub runs checks on a CPU, slowly

Worker processes run one check after another and survive failing ones; a worker whose GPU context
broke, or that hangs, is replaced. The summary is printed last and written to FOLDER as JSON.
tests/gpu/test_gpu.py runs the same checks under pytest.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import queue
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import minigraph
from bench.harness import in_lines, now
from minigraph import cuda
from tests.gpu import attention as gpu_attention
from tests.gpu import capture as gpu_capture
from tests.gpu import check as gpucheck
from tests.gpu import checkpoint, gradients, nan
from tests.gpu import control as gpu_control
from tests.gpu import edges as gpu_edges
from tests.gpu import faults as gpu_faults
from tests.gpu import fusion as gpu_fusion
from tests.gpu import gelu as gpu_gelu
from tests.gpu import hopper_product as gpu_hopper_product
from tests.gpu import huge as gpu_huge
from tests.gpu import joined as gpu_joined
from tests.gpu import linalg as gpu_linalg
from tests.gpu import linear_cross_entropy as gpu_linear_cross_entropy
from tests.gpu import mixed_precision as gpu_mixed_precision
from tests.gpu import ops as gpu_ops
from tests.gpu import paged as gpu_paged
from tests.gpu import parallel as gpu_parallel
from tests.gpu import products as gpu_products
from tests.gpu import profile as gpu_profile
from tests.gpu import programs as gpu_programs
from tests.gpu import sanitizer as gpu_sanitizer
from tests.gpu import shapes as gpu_shapes
from tests.gpu import small_product as gpu_small_product
from tests.gpu import streams as gpu_streams
from tests.gpu import transformer as gpu_transformer
from tests.gpu import updates as gpu_updates
from tests.gpu.check import Check

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds for one check
SHOWN = 40  # failures in the printed summary


def all_checks() -> list[Check]:
    """Every check, in the order of the issue."""
    checks = [
        c
        for m in (
            gpu_ops, gpu_shapes, gpu_huge, gpu_products, gpu_small_product, gpu_hopper_product, gpu_gelu,
            gpu_programs, gpu_control, gpu_capture, gpu_fusion, gpu_joined, gpu_linear_cross_entropy, gpu_attention,
            gpu_transformer, gpu_updates, gpu_paged, gpu_mixed_precision, gpu_profile,
            gpu_faults, gpu_linalg, nan, gpu_edges, gpu_streams, gpu_parallel, gradients, checkpoint,
        )
        for c in m.checks()
    ]
    repeated = [name for name, n in Counter(c.name for c in checks).items() if n > 1]
    assert not repeated, f"names occur twice: {repeated}"
    return checks


# worker


def run_check(check: Check) -> dict[str, Any]:
    """{name, error or None, seconds}; an error in any thread counts."""
    start, error, fallen = time.perf_counter(), None, []
    former, threading.excepthook = threading.excepthook, lambda given: fallen.append(repr(given.exc_value))
    try:
        check.run()
    except Exception as problem:  # recorded, the suite goes on
        error = (
            gpucheck.brief(problem)
            if not isinstance(problem, AssertionError)
            else str(problem)[:1500]
        )
    finally:
        threading.excepthook = former
    if fallen and error is None:
        error = f"in another thread: {fallen[0]}"
    return {"name": check.name, "error": error, "seconds": round(time.perf_counter() - start, 3)}


def work() -> None:
    """Answer names of checks from stdin with their results, until stdin closes or the GPU does not answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to stderr
    known = {c.name: c for c in all_checks()}
    for line in sys.stdin:
        result = run_check(known[line.strip()])
        result["broken"] = result["error"] is not None and not gpucheck.alive()
        answers.write(json.dumps(result) + "\n")
        answers.flush()
        if result["broken"]:
            os._exit(3)  # destructors of a broken context may hang


class Worker:
    """A process that runs checks; replaced when it dies."""

    def __init__(self, arguments: list[str], threads: int) -> None:
        self.command = [sys.executable, "-m", "tests.gpu.suite", "--worker", *arguments]
        pools = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)
        )
        self.environment = {**os.environ, **pools}
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str) -> dict[str, Any]:
        """The result of one check; an error where the process died or did not answer in time."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self.environment,
                cwd=ROOT,
            )
        process, start = self.process, time.perf_counter()
        assert process.stdin
        assert process.stdout
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        timer.cancel()
        if answer:
            result = json.loads(answer)
            if result.pop("broken"):
                self.close()
            return result
        self.close()
        seconds = time.perf_counter() - start
        why = (
            f"no answer in {LIMIT} s"
            if seconds > LIMIT
            else f"the process ended with {process.returncode}"
        )
        return {"name": name, "error": why, "seconds": round(seconds, 3)}

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin
            assert self.process.stdout
            try:
                self.process.stdin.close()
                self.process.wait(20)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None


# suite


def run_all(
    checks: list[Check], jobs: int, arguments: list[str], end: float
) -> list[dict[str, Any]]:
    """Results of all checks: those for a card of their own at the end, one after the other; none starts after `end`."""
    results: list[dict[str, Any]] = []
    for part, workers in (
        ([c for c in checks if not c.alone], jobs),
        ([c for c in checks if c.alone], 1),
    ):
        names: queue.SimpleQueue[str] = queue.SimpleQueue()
        for c in part:
            names.put(c.name)
        cores = max(1, (os.cpu_count() or 1) // workers)
        threads = [
            threading.Thread(target=_serve, args=(names, results, arguments, cores, end))
            for _ in range(min(workers, len(part)))
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    order = {c.name: i for i, c in enumerate(checks)}
    return sorted(results, key=lambda r: order[r["name"]])


def _serve(
    names: queue.SimpleQueue[str],
    results: list[dict[str, Any]],
    arguments: list[str],
    threads: int,
    end: float,
) -> None:
    worker = Worker(arguments, threads)
    while True:
        try:
            name = names.get_nowait()
        except queue.Empty:
            break
        if time.perf_counter() > end:
            results.append({"name": name, "error": "not run: the time was up", "seconds": 0.0})
            continue
        result = worker.ask(name)
        results.append(result)
        if result["error"]:
            sys.stderr.write(f"FAILED {name}: {result['error'][:300]}\n")
            sys.stderr.flush()
    worker.close()


def summary(results: list[dict[str, Any]], seconds: float) -> str:
    """A table by groups, the slowest checks, and the failures."""
    failed = [r for r in results if r["error"]]
    lines = [f"{'group':12} {'checks':>7} {'failed':>7} {'seconds':>8}"]
    for group in dict.fromkeys(r["name"].split("/")[0] for r in results):
        rows = [r for r in results if r["name"].split("/")[0] == group]
        bad = sum(bool(r["error"]) for r in rows)
        lines.append(f"{group:12} {len(rows):7} {bad:7} {sum(r['seconds'] for r in rows):8.1f}")
    slow = sorted(results, key=lambda r: -r["seconds"])[:5]
    lines.append("slowest: " + ", ".join(f"{r['name']} {r['seconds']:.1f} s" for r in slow))
    lines += [f"FAILED {r['name']}: {r['error'][:240]}" for r in failed[:SHOWN]]
    lines += (
        [f"... and {len(failed) - SHOWN} more, see the JSON file"] if len(failed) > SHOWN else []
    )
    lines.append(f"{len(results) - len(failed)} passed, {len(failed)} failed in {seconds:.0f} s")
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """GPU, driver and versions, as far as they can be read here."""
    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "cuda": cuda.why_not() or "available",
    }
    packages = (
        "minigraph",
        "numpy",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "nvmath-python",
        "cuda-bindings",
        "torch",
        "jax",
    )
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["minigraph"] = minigraph.__version__
    if cuda.is_available() and "cupy" in sys.modules:
        runtime = sys.modules["cupy"].cuda.runtime
        found["gpu"] = runtime.getDeviceProperties(0)["name"].decode()
        found["driver"], found["runtime"] = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        found["cublasLt"] = importlib.import_module("nvmath.bindings.cublasLt").get_version()
    return found


def write(out: Path, name: str, report: dict[str, Any], log: str) -> None:
    """Print the log; keep it as NAME.txt, and all results as NAME.json."""
    print(log)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.txt").write_text(log + "\n", encoding="utf-8")
    (out / f"{name}.json").write_text(in_lines(report) + "\n", encoding="utf-8")
    print(f"written to {out / name}.json and .txt")


def header(command: str) -> dict[str, Any]:
    return {"command": command, "date": now(), "environment": environment()}


def run_suite(checks: list[Check], options: argparse.Namespace, command: str) -> int:
    start = time.perf_counter()
    facts = header(command)
    results = run_all(
        checks, options.jobs, ["--stub"] if options.stub else [], start + options.seconds
    )
    seconds = time.perf_counter() - start
    failed = [r for r in results if r["error"]]
    report = {
        **facts,
        "passed": len(results) - len(failed),
        "failed": failed,
        "seconds": round(seconds, 1),
    }
    log = f"GPU checks: {json.dumps(facts)}\n{summary(results, seconds)}"
    write(options.out, "gpu_tests", {**report, "times": {r["name"]: r["seconds"] for r in results}}, log)
    return 1 if failed else 0


# compute-sanitizer


def run_inline(checks: list[Check], claims: Path, end: float) -> int:
    """The checks that no other process has claimed, in this one, every buffer in an allocation of its own."""
    gpucheck.apart = True
    if "tests.support.gpu_stub" not in sys.modules:
        importlib.import_module("cupy").cuda.set_allocator(
            None
        )  # no pool: exact sizes, nothing is reused
    for check in gpu_sanitizer.claimed(checks, claims, end):
        print(gpu_sanitizer.RESULT + json.dumps(run_check(check)), flush=True)
        gc.collect()  # plans stand in cycles; without a pool each keeps tens of megabytes until then
    return 0


def sanitize(checks: list[Check], options: argparse.Namespace, command: str) -> int:
    """Each tool over the small set, all at the same time; nothing may be reported.

    The report is written when `options.seconds` are over, whatever has not ended by then.
    """
    facts, start = header(command), time.perf_counter()
    checks = [c for c in checks if c.sanitize]
    stub = ["--stub"] if options.stub else []
    seconds = min(options.seconds, gpu_sanitizer.SECONDS)
    plain = run_all(checks, sum(gpu_sanitizer.TOOLS.values()), stub, start + seconds / 3)  # compiles kernels, too
    left = max(1.0, start + seconds - gpu_sanitizer.LAST - time.perf_counter())
    inner = [sys.executable, "-m", "tests.gpu.suite", *stub, "--only", options.only, "--seconds", str(left)]
    failed = [r for r in plain if r["error"]]
    lines = [f"compute-sanitizer: {json.dumps(facts)}"]
    seconds = time.perf_counter() - start
    lines.append(f"{'no tool':10} {len(plain) - len(failed)} of {len(plain)} passed in {seconds:.0f} s")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        running = {t: gpu_sanitizer.begin(t, Path(folder), options.out, inner, left) for t in options.tools}
        results = {}
        for tool, parts in running.items():
            names = [c.name for c in checks if c.judged_by(tool)]
            results[tool] = gpu_sanitizer.joined([gpu_sanitizer.ended(*part) for part in parts], names)
    for tool, r in results.items():
        lines.append(
            f"{tool:10} {'clean' if r['clean'] else 'NOT CLEAN'}: {r['summary']}; {r['checks']} checks passed,"
            f" {len(r['not_run'])} not run"
        )
    seconds = round(time.perf_counter() - start, 1)
    report = {**facts, "seconds": seconds, "failed": failed, "tools": results}
    write(options.out, "gpu_sanitizer", report, "\n".join(lines))
    return 0 if all(r["clean"] for r in results.values()) and not failed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="all checks that need a GPU")
    parser.add_argument("--only", default="", help="a regular expression that names must contain")
    parser.add_argument("--out", type=Path, help="folder of the summary: bench/results of a whole run, else out")
    parser.add_argument(
        "--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)), help="processes"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600, help="after these no check is started"
    )
    parser.add_argument("--list", action="store_true", help="print names of checks")
    parser.add_argument(
        "--sanitize", action="store_true", help="the small set under compute-sanitizer"
    )
    tools = tuple(gpu_sanitizer.TOOLS)
    parser.add_argument("--tools", nargs="*", choices=tools, default=tools, help="compute-sanitizer's tools")
    parser.add_argument(
        "--stub", action="store_true", help="a CPU in place of the GPU, see gpu_stub.py"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--inline", metavar="TOOL", help=argparse.SUPPRESS)
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = options.out or ROOT / ("out" if options.stub or options.only else "bench/results")
    if options.stub:
        importlib.import_module("tests.support.gpu_stub").install(2)
    if options.worker:
        work()
        return 0
    checks = [c for c in all_checks() if re.search(options.only, c.name)]
    if options.list:
        for c in checks:
            print(
                c.name, *(["(sanitize)"] if c.sanitize else []), *(["(alone)"] if c.alone else [])
            )
        print(
            f"{len(checks)} checks, {sum(c.sanitize for c in checks)} of them for compute-sanitizer"
        )
        return 0
    if cuda.why_not():
        raise SystemExit(f"no GPU: {cuda.why_not()}")
    if options.inline:
        judged = [c for c in checks if c.judged_by(options.inline)]
        return run_inline(judged[::-1], options.claims, time.time() + options.seconds)  # the long ones stand last
    command = f"python -m tests.gpu.suite {shlex.join(sys.argv[1:])}".strip()
    if options.sanitize:
        return sanitize(checks, options, command)
    return run_suite(checks, options, command)


if __name__ == "__main__":
    sys.exit(main())
