"""Minutes of training with changing shapes, errors, fetches and saves: memory and step time, a figure for each minute.

    python -m bench.long_run [--minutes 30] [--place cpu]     writes bench/results/long_run_<place>.json

Batches have 1 to 256 rows, drawn anew for each step. One step in 20 gets a feed that is refused, one in 10 fetches a
value from inside, one in 500 is followed by a save. A step of 256 rows in every 50 is timed: by the clock, and by the
time that the process computed, which a busy machine does not change. Flat is the last third against the middle one.
On a GPU its memory in use is written, too: of all processes, which are this one alone.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .changing_shapes import card
from .harness import machine, now, versions, write_report
from .long_life import resident

LARGEST, TIMED = 256, 50
Minute = dict[str, Any]


def training(place: str, folder: Path) -> Callable[[int], tuple[float, float] | None]:
    """step(i) -> seconds by the clock and of the process, where it is one of the timed."""
    import minigraph as mg

    mg.enable_static()
    x, y = mg.static.data("x", [None, 784]), mg.static.data("y", [None, 1], "int64")
    hidden = mg.nn.functional.relu(mg.nn.Linear(784, 256)(x))
    logits = mg.nn.Linear(256, 10)(mg.nn.functional.dropout(hidden, 0.1))
    loss = mg.nn.functional.cross_entropy(logits, y)
    mg.optimizer.AdamW(1e-3).minimize(loss)
    program = mg.static.default_main_program()
    compiled = mg.static.CompiledProgram(program, mg.static.BuildStrategy.all())
    exe = mg.static.Executor(mg.CUDAPlace(0) if place == "gpu" else mg.CPUPlace())
    exe.run(mg.static.default_startup_program())
    rng = np.random.default_rng(0)
    images, labels = rng.random((LARGEST, 784), np.float32), rng.integers(0, 10, (LARGEST, 1))

    def step(i: int) -> tuple[float, float] | None:
        rows = LARGEST if i % TIMED == 0 else int(rng.integers(1, LARGEST + 1))
        feed = {"x": images[:rows], "y": labels[:rows]}
        if i % 20 == 7:
            try:
                exe.run(compiled, {**feed, "x": images[:rows, :-1]}, [loss])
            except ValueError:
                return None
            raise AssertionError("a feed of 783 columns was not refused")
        fetched = [loss, logits] if i % 10 == 3 else [loss]
        clock, own = time.perf_counter(), time.process_time()
        value = exe.run(compiled, feed, fetched)[0]
        took = time.perf_counter() - clock, time.process_time() - own
        assert np.isfinite(value).all()
        if i % 500 == 499:
            mg.static.save(program, str(folder / "state"))
        return took if i % TIMED == 0 else None

    return step


def minutes(place: str, count: int) -> list[Minute]:
    """Steps, MiB, and the medians of the timed steps of each minute."""
    found, at = list[Minute](), 0
    with tempfile.TemporaryDirectory() as folder:
        step = training(place, Path(folder))
        for _ in range(count):
            end, first, timed = time.monotonic() + 60, at, []
            while time.monotonic() < end:
                timed.append(step(at))
                at += 1
            clock, own = (statistics.median(1e3 * t[k] for t in timed if t) for k in (0, 1))
            found.append(
                {"steps": at - first, "mib": round(resident(), 2), "ms": round(clock, 3), "own_ms": round(own, 3)}
                | ({"gpu_mib": _in_use()} if place == "gpu" else {})
            )
            print(found[-1], flush=True)
    return found


def _in_use() -> float:
    """MiB of the GPU that are not free."""
    free, whole = importlib.import_module("cupy").cuda.runtime.memGetInfo()
    return round((whole - free) / 2**20, 1)


def change(found: list[Minute], what: str) -> float:
    """The median of the last third over that of the middle one."""
    third = max(1, len(found) // 3)
    last, middle = (statistics.median(m[what] for m in part) for part in (found[-third:], found[-2 * third : -third]))
    return round(last / middle, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    asked = parser.parse_args()
    if asked.minutes < 3:
        parser.error("--minutes: at least 3, to compare a third with another")
    found = minutes(asked.place, asked.minutes)
    report = {
        "bench": "long_run", "title": f"{asked.minutes} minutes of training with changing shapes, errors and saves",
        "command": f"python -m bench.long_run --minutes {asked.minutes} --place {asked.place}",
        "date": now(), "machine": machine(), "gpu": card() if asked.place == "gpu" else None,
        "versions": versions(), "minutes": found,
        "last_third_to_middle": {what: change(found, what) for what in ("mib", "ms", "own_ms")},
    }  # fmt: skip
    path = write_report(report, f"long_run_{asked.place}")
    print(report["last_third_to_middle"], f"written to {path}")


if __name__ == "__main__":
    main()
