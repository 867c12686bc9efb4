"""One process of bench/checkpoint.py: saves a state, or loads it, with the package that PYTHONPATH leads to.

    python bench/checkpoint_child.py save|load PATH     prints one line of JSON

It imports nothing of bench, so that it runs with a tree that is older than itself.
"""

from __future__ import annotations

import inspect
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import minigraph as mg

TENSORS, SHAPE = 30, (2048, 2048)  # of float32: 480 MiB
LATER = 3  # loads after the first one
MIB = 1 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measured(action: Callable[[], Any]) -> dict[str, float]:
    """What an action takes: processor seconds of all threads, seconds, and MiB above what was there before."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, processor, wall = resident(), time.process_time(), time.perf_counter()
    action()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    return {"cpu_s": round(processor, 3), "wall_s": round(wall, 3), "peak_MiB": round((peak - before) / MIB, 1)}


def main(part: str, path: str) -> None:
    program = mg.static.default_main_program()
    for i in range(TENSORS):
        constant = mg.nn.initializer.Constant(float(i))
        mg.static.create_parameter(SHAPE, "float32", name=f"w{i}", default_initializer=constant)
    mg.static.Executor().run(mg.static.default_startup_program())
    found: dict[str, Any] = {}
    if part == "save":
        found["save"] = [measured(lambda: mg.static.save(program, path))]
    else:
        loads = [measured(lambda: mg.static.load(program, path)) for _ in range(1 + LATER)]
        found |= {"first load": loads[:1], "later loads": loads[1:]}
        if "verify" in inspect.signature(mg.static.load).parameters:
            found["later loads, verify=False"] = [
                measured(lambda: mg.static.load(program, path, verify=False)) for _ in range(LATER)
            ]
        state = program.state_dict()
        assert all((state[f"w{i}"] == i).all() for i in range(TENSORS))
    versions = {"minigraph": mg.__version__, "numpy": np.__version__}
    print(json.dumps({"found": found, "tree": str(Path(mg.__file__).parents[1]), "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
