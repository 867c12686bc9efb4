"""How long passes and Plans take for programs of 1,000, 10,000 and 50,000 operators.

    python -m bench.compile_time [--sizes 1000 10000 50000] [--no-passes] [--file compile_time]

Where there is a GPU, `plan_gpu` is all that comes before the first run: calls recorded, algorithms asked from the
library, memory laid out and allocated. Elsewhere it is what needs no GPU of that.

The program is a training step of a deep residual network: linear layers with bias and relu, the sum with
what came two layers before, the mean, gradients, Momentum. Asked: .06, .8 and 4.5 seconds, linear in the size.
`passes_first` is what a process pays for the first program that it compiles.
Besides, AdamW of 1,000 tensors becomes one fused operator with its Plan: asked .3 seconds. And AdamW of 10,000
parameters is built by `minimize`, passes all passes and gets its Plan: asked 1.5 seconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import minigraph as mg
from minigraph.program.builder import Builder
from minigraph.program.garbage import without_collection
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.cuda.plan import CudaPlan
from minigraph.types import TensorType

from .harness import machine, now, versions, write_report

SIZES = (1000, 10_000, 50_000)
ASKED = {1000: 0.06, 10_000: 0.8, 50_000: 4.5}
WIDTH, ROWS = 8, 4
TENSORS, TENSOR_SHAPE, ASKED_OF_UPDATES = 1000, (2, 3), 0.3
PARAMETERS, ASKED_OF_BUILD = 10_000, 1.5


def network(operators: int) -> tuple[Any, Any]:
    """(program, loss) with about so many operators."""
    mg.enable_static()
    main, startup = mg.static.Program(f"{operators} operators"), mg.static.Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        h = before = mg.static.data("x", [None, WIDTH])
        for i in range(max(1, operators // OPERATORS_PER_LAYER)):
            h = mg.nn.functional.relu(mg.nn.Linear(WIDTH, WIDTH)(h))
            if i % 2:
                h = before = h + before
        loss = mg.mean(h)
        mg.optimizer.Momentum(0.1).minimize(loss)
    return main, loss


def updates(tensors: int) -> Any:
    """A program of so many AdamW operators, each with states of its own."""
    program = mg.static.Program(f"{tensors} updates")
    block = program.global_block()
    g = Builder(block)

    def variable(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        return block.create_var(name, shape, dtype, persistable=True)

    rate = variable("rate", (1,))
    for i in range(tensors):
        param, grad = variable(f"p{i}", TENSOR_SHAPE), variable(f"g{i}", TENSOR_SHAPE)
        states = {s: variable(f"{s}{i}", TENSOR_SHAPE) for s in ("Moment1", "Moment2")}
        states |= {s: variable(f"{s}{i}", (1,), "float64") for s in ("Beta1Pow", "Beta2Pow")}
        out = {"ParamOut": param, **{f"{s}Out": v for s, v in states.items()}}
        g.adamw(param, grad, rate, **states, coeff=0.01, out=out)
    return program


def parameters(number: int) -> tuple[Any, Any, Any]:
    """(program, its startup program, loss) of so many parameters: the mean of their sum times data."""
    mg.enable_static()
    main, startup = mg.static.Program(f"{number} parameters"), mg.static.Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x = mg.static.data("x", TENSOR_SHAPE)
        params = [mg.static.create_parameter(TENSOR_SHAPE, "float32") for _ in range(number)]
        loss = mg.mean(Builder(main.global_block()).sum(params) * x)
    return main, startup, loss


OPERATORS_PER_LAYER = 9  # linear, relu, half a sum, their gradients, two updates


def planned(program: Any, types: dict[str, TensorType], fetches: list[str]) -> BoundProgram:
    """What a run on a GPU needs besides addresses of the Scope's arrays; of the GPU that is there, else of an H200."""
    if not mg.cuda.is_available():
        return bind_program(program, types, fetches)
    runtime = mg.cuda.runtime(mg.CUDAPlace(0))
    return CudaPlan(program, types, fetches, False, 0, runtime, mg.cuda.allows_tf32()).bound


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """(seconds of this process, result), the best of some repeats; wall time where nothing else runs."""
    best, result = float("inf"), None
    for _ in range(repeats):
        result = None  # what the repeat before made goes outside of the time
        gc.collect()
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def passes(program: Any, loss: Any) -> Any:
    """The program after all passes, for a GPU."""
    made = mg.static.CompiledProgram(program, build_strategy=mg.static.BuildStrategy.all())
    made.program_for((loss.name,), place=mg.CUDAPlace(0))
    return made


def first(operators: int, repeats: int) -> float:
    """Seconds of all passes in a process that has compiled nothing before, the best of some."""
    code = f"from bench.compile_time import *; print(timed(lambda p=network({operators}): passes(*p), 1)[0])"
    command = [sys.executable, "-c", code]
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "cwd": Path(__file__).parent.parent}
    return min(float(subprocess.run(command, **how).stdout) for _ in range(repeats))


def measured(operators: int, with_passes: bool = True, repeats: int = 2) -> dict[str, Any]:
    """Seconds of each part for one size."""
    built, (main, loss) = timed(lambda: network(operators), 1)
    types = {"x": TensorType((ROWS, WIDTH), mg.types.float32)}
    row: dict[str, Any] = {"operators": len(main.ops), "asked": ASKED.get(operators), "build": built}
    program = main
    if with_passes:
        row["passes"], made = timed(lambda: passes(main, loss), repeats)
        if operators == min(SIZES):
            row["passes_first"] = first(operators, 2 * repeats)
        reports = made.reports
        row["by_pass"] = {name: round(report.seconds, 4) for name, report in reports.items()}
        program = made.after
        row["operators_after"] = len(program.ops)
    with without_collection():  # as the Executor does
        row["plan_gpu"], bound = timed(lambda: planned(program, types, [loss.name]), repeats)
        row["plan_cpu"], _ = timed(lambda: Plan(program, types, [loss.name]), repeats)
    row["arena_over_live"] = bound.arena_bytes / bound.live_bytes
    row["seconds"] = row.get("passes", 0.0) + max(row["plan_gpu"], row["plan_cpu"])
    return rounded(row)


def measured_updates(repeats: int = 5) -> dict[str, Any]:
    """Seconds until the updates of many tensors are one operator with a Plan."""
    program = updates(TENSORS)

    def fused() -> Any:
        strategy = mg.static.BuildStrategy(fuse_all_optimizer_ops=True)
        return mg.static.CompiledProgram(program, build_strategy=strategy).program_for(())

    row: dict[str, Any] = {"tensors": TENSORS, "asked": ASKED_OF_UPDATES}
    row["passes"], after = timed(fused, repeats)
    row["operators_after"] = len(after.ops)
    with without_collection():
        row["plan_gpu"], _ = timed(lambda: planned(after, {}, []), repeats)
        row["plan_cpu"], _ = timed(lambda: Plan(after, {}, ()), repeats)
    row["seconds"] = row["passes"] + max(row["plan_gpu"], row["plan_cpu"])
    return rounded(row)


def measured_build(repeats: int = 2) -> dict[str, Any]:
    """Seconds of `AdamW().minimize` of many parameters, of all passes then, and of Plans."""
    row: dict[str, Any] = {"tensors": PARAMETERS, "asked": ASKED_OF_BUILD, "minimize": float("inf")}
    for _ in range(repeats):
        main, startup, loss = parameters(PARAMETERS)
        with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
            seconds, _ = timed(lambda v=loss: mg.optimizer.AdamW(1e-3).minimize(v), 1)
        row["minimize"] = min(row["minimize"], seconds)

    def fused() -> Any:
        strategy = mg.static.BuildStrategy.all()
        return mg.static.CompiledProgram(main, build_strategy=strategy).program_for((loss.name,))

    row["passes"], after = timed(fused, repeats)
    row["operators_after"] = len(after.ops)
    types = {"x": TensorType(TENSOR_SHAPE, mg.types.float32)}
    with without_collection():
        row["plan_gpu"], _ = timed(lambda: planned(after, types, [loss.name]), repeats)
        row["plan_cpu"], _ = timed(lambda: Plan(after, types, [loss.name]), repeats)
    row["seconds"] = row["minimize"] + row["passes"] + max(row["plan_gpu"], row["plan_cpu"])
    return rounded(row)


def gpu_name() -> str | None:
    """The GPU for which plans are made, None where there is none."""
    if not mg.cuda.is_available():
        return None
    return importlib.import_module("cupy").cuda.runtime.getDeviceProperties(0)["name"].decode()


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--no-passes", action="store_true")
    parser.add_argument("--file", default="compile_time", help="what it is called in bench/results")
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        rows.append(measured(size, not options.no_passes))
        shown = {k: v for k, v in rows[-1].items() if k != "by_pass"}
        print("  ".join(f"{k} {v}" for k, v in shown.items()))
        slow = sorted(rows[-1].get("by_pass", {}).items(), key=lambda pair: -pair[1])[:6]
        print("    " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in slow))
    built = measured_updates()
    print("fused updates: " + "  ".join(f"{k} {v}" for k, v in built.items()))
    whole = measured_build()
    print("AdamW built: " + "  ".join(f"{k} {v}" for k, v in whole.items()))
    report = {
        "bench": "compile_time", "command": f"python -m bench.compile_time {shlex.join(sys.argv[1:])}".strip(),
        "date": now(), "machine": machine(),
        "gpu": gpu_name(), "versions": versions(), "rows": rows, "updates": built,
        "optimizer": whole,
    }  # fmt: skip
    write_report(report, options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
