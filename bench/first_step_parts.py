"""A first step of GPT-2 124 M by parts, in processes of their own: nothing compiled before, then all of it.

    python -m bench.first_step_parts [--again 2]

Seconds of the host, behind the imports, with the plan made ahead (`exe.prepare`) and without; `compiler` is what is
waited for it, inside of the other parts. What no part has is the arm's own: casts, feeds.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import gpu_steps_arms
from .changing_shapes import card
from .gpt2 import Network, row
from .harness import machine, now, versions, write_report

ROOT = Path(__file__).parent.parent
NETWORK = Network(12, 768, 12, 16)


class Parts(dict[str, float]):
    """Seconds by the names of parts, of which each is a function of something."""

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Add up what calls of `owner.name` take."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed(part):
                return function(*args, **kwargs)

        setattr(owner, name, timed)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self[part] = round(self.get(part, 0) + time.perf_counter() - start, 4)


def child(ahead: bool) -> dict[str, Any]:
    """The parts of one first step, and on what."""
    importlib.import_module("cupy")  # they count as imports, as in gpu_gpt2
    importlib.import_module("nvmath.bindings.cublasLt")

    import minigraph as mg
    from minigraph.kernels.cuda.device.modules import Modules
    from minigraph.program.scope import Scope
    from minigraph.static.amp.optimizer import OptimizerWithMixedPrecision

    given = replace(row("first", "first", NETWORK), dtype="float32")
    given.parameters()
    parts = Parts()
    parts.watch("program", gpu_steps_arms, "built")
    parts.watch("context", mg.cuda, "runtime")
    parts.watch("plan ahead", mg.static.Executor, "prepare")
    parts.watch("startup", mg.static.Executor, "run")
    parts.watch("weights", Scope, "write")
    parts.watch("compiler", Modules, "compile")
    parts.watch("amp_init", OptimizerWithMixedPrecision, "amp_init")
    with parts.timed("all"):
        with parts.timed("until it has weights"):
            arm = gpu_steps_arms.Minigraph(given, 0.0, {}, ahead=ahead)
        startup = parts["startup"]
        with parts.timed("step"):
            arm.step()
            arm.wait()
    return {**parts, "startup": startup, "gpu": card(), "versions": versions()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.first_step_parts", description=__doc__)
    parser.add_argument("--again", type=int, default=2, help="rounds")
    parser.add_argument("--child", choices=("ahead", "at once"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child == "ahead")))
        return
    compileall.compile_dir(ROOT / "minigraph", quiet=1)  # as an installed package has it
    rows, facts = [], dict[str, Any]()
    for number in range(options.again):
        for how in ("ahead", "at once"):
            with tempfile.TemporaryDirectory() as home:
                for cache in ("empty", "full"):
                    caches = {"HOME": home, "CUPY_CACHE_DIR": home}
                    done = subprocess.run(
                        [sys.executable, "-m", "bench.first_step_parts", "--child", how], env={**os.environ, **caches},
                        check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                    )  # fmt: skip
                    found = json.loads(done.stdout.splitlines()[-1])
                    facts = {"gpu": found.pop("gpu"), "versions": found.pop("versions")}
                    rows.append({"plan": how, "cache": cache, "round": number, **found})
                    print(rows[-1], flush=True)
    write_report({
        "bench": "first_step_parts", "command": f"python -m bench.first_step_parts {' '.join(sys.argv[1:])}".rstrip(),
        "date": now(), "machine": machine(), **facts, "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
