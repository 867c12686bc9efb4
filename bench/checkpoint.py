"""What `static.save` and `static.load` of 480 MiB cost: processor seconds, seconds, and memory.

    python -m bench.checkpoint                     writes bench/results/checkpoint.json
    python -m bench.checkpoint --old ../old-tree   with an arm that runs the package of another checkout

The arms take turns. In each turn one process of an arm saves, and a fresh one loads what it wrote, several times.
Memory is the highest above what the process had before, which already holds the values. `hash alone` is what the
SHA-256 of as many bytes takes, in the processor's cache; `write alone` a plain file of them, forced to the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .harness import machine, now, write_report

CHILD = Path(__file__).with_name("checkpoint_child.py")
SIZE, PIECE = 480 << 20, 1 << 20  # bytes of the state; of what fits into a cache


def ran(tree: Path, part: str, path: str) -> Any:
    """What one process of a tree measured."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, str(CHILD), part, path]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    if Path(answer["tree"]).resolve() != tree.resolve():
        raise SystemExit(f"{tree} was asked, {answer['tree']} answered")
    return answer


def turns(arms: Mapping[str, Path], rounds: int, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """{arm: {part: [measured, ...]}}, and versions by arm."""
    found: dict[str, Any] = {arm: {} for arm in arms}
    versions = {}
    for turn in range(rounds):
        for arm in arms if turn % 2 else reversed(arms):
            path = os.path.join(folder, arm)
            for part in ("save", "load"):
                answer = ran(arms[arm], part, path)
                versions[arm] = answer["versions"]
                for name, values in answer["found"].items():
                    found[arm].setdefault(name, []).extend(values)
            for file in Path(folder).iterdir():
                file.unlink()
    return found, versions


def alone(folder: str, rounds: int) -> dict[str, Any]:
    """What the parts of a save take that no way around them leaves out."""
    piece = memoryview(bytes(PIECE))

    def hashed() -> None:
        sha = hashlib.sha256()
        for _ in range(SIZE // PIECE):
            sha.update(piece)

    def written() -> None:
        with open(os.path.join(folder, "alone"), "wb", buffering=0) as file:
            for _ in range(SIZE // PIECE):
                file.write(piece)
            os.fsync(file.fileno())

    found: dict[str, Any] = {}
    works: dict[str, Callable[[], None]] = {"hash alone": hashed, "write alone": written}
    for name, work in works.items():
        for _ in range(rounds):
            processor, wall = time.process_time(), time.perf_counter()
            work()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            found.setdefault(name, []).append({"cpu_s": round(processor, 3), "wall_s": round(wall, 3)})
    return found


def summarized(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Median and least of each quantity, and all values."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: {"median": round(statistics.median(values), 3), "least": min(values), "raw": values}
        for name, values in columns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument("--old", type=Path, help="another checkout, as an arm")
    options = parser.parse_args()
    arms = {"now": Path(__file__).parents[1]}
    if options.old is not None:
        arms["old"] = options.old.resolve()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        found, versions = turns(arms, options.rounds, folder)
        found["neither"] = alone(folder, options.rounds)
    results = {arm: {part: summarized(rows) for part, rows in parts.items()} for arm, parts in found.items()}
    report = {
        "bench": "checkpoint", "title": f"save and load of 30 float32 tensors, {SIZE >> 20} MiB",
        "command": " ".join(["python -m bench.checkpoint", *sys.argv[1:]]),
        "date": now(), "machine": machine(),
        "versions": versions, "load_before": load_before, "results": results,
    }  # fmt: skip
    path = write_report(report)
    for arm, parts in results.items():
        for part, columns in parts.items():
            shown = "  ".join(f"{name} {column['median']:8.2f}" for name, column in columns.items())
            print(f"{arm:8} {part:26} {shown}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
