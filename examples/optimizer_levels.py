"""Three levels of the same parameter update, and the ways to tell a kernel where its tensors lie.

    python examples/optimizer_levels.py [--tensors 40] [--size 16384] [--steps 20] [--out FOLDER]

    for-loop   one operator per parameter
    foreach    each elementary operation once over the whole list (BuildStrategy.foreach_optimizer_ops)
    fused      the update of all parameters is one operator (BuildStrategy.fuse_all_optimizer_ops)

The script trains the same model at each level, shows operators before and after, checks that the parameters
are equal bit by bit, and prints operators, GPU calls, bytes and time of a step. GPU calls are those of a
plan, which needs no GPU; on one the pointer modes are timed, too. With --out a plot is written there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.options import RunOptions

LEVELS = {"for-loop": None, "foreach": "foreach_optimizer_ops", "fused": "fuse_all_optimizer_ops"}
MODES = ("table", "struct4k", "struct32k", "arena", "unified")
Row = tuple[str, int, int, float, float]  # name, operators of the update, GPU calls, megabytes, milliseconds


def build(tensors: int, size: int) -> tuple[mg.static.Program, mg.static.Program, dict[str, np.ndarray]]:
    """(main, startup, feed) of a sum over `tensors` products of a parameter and its input, with AdamW and clipping."""
    main, startup = mg.static.Program(), mg.static.Program()
    main.random_seed = startup.random_seed = 1
    feed, rng = {}, np.random.default_rng(0)
    with mg.static.program_guard(main, startup):
        total = None
        for i in range(tensors):
            p = mg.static.create_parameter([size], "float32", name=f"p{i}")
            x = mg.static.data(f"x{i}", [size])
            feed[f"x{i}"] = rng.normal(size=size).astype(np.float32)
            term = mg.sum(p * x)
            total = term if total is None else total + term
        clip = mg.nn.ClipGradByGlobalNorm(1.0)
        mg.optimizer.AdamW(1e-3, weight_decay=0.01, grad_clip=clip).minimize(total)
    return main, startup, feed


def strategy_of(flag: str | None, mode: str = "auto") -> mg.static.BuildStrategy:
    strategy = mg.static.BuildStrategy()
    strategy.multi_tensor_mode = mode
    if flag:
        setattr(strategy, flag, True)
    return strategy


def updates(program: mg.static.Program) -> list[str]:
    """The types of the operators after the gradients."""
    return [op.type for op in program.global_block().ops if op.role == "optimize"]


def moved(program: mg.static.Program) -> int:
    """Bytes that the operators after the gradients read and write, if each goes through memory once."""
    found = 0
    for op in program.global_block().ops:
        if op.role == "optimize":
            found += sum(v.type.nbytes for v in (*op.input_vars, *op.output_vars) if v.type.is_static)
    return found


def gpu_calls(program: mg.static.Program, feed: dict[str, np.ndarray], mode: str) -> int:
    """Launches and copies of the update on a GPU."""
    types = {name: program.global_block().var(name).type for name in feed}
    bound = bind_program(program, types, (), options=RunOptions(multi_tensor=mode))
    steps = zip(bound.schedule.steps, bound.spans, strict=True)
    return sum(len(span) for step, span in steps if step.op.role == "optimize")


def shown(types: list[str]) -> str:
    """`3 x sgd, 1 x sqrt`"""
    return ", ".join(f"{types.count(t)} x {t}" for t in dict.fromkeys(types))


def measure(
    name: str, flag: str | None, mode: str, options: argparse.Namespace, place: object
) -> tuple[Row, dict[str, np.ndarray]]:  # fmt: skip
    """Train for some steps; returns the row of the table and the parameters after them."""
    with mg.base.unique_name.guard():
        main, startup, feed = build(options.tensors, options.size)
    compiled = mg.static.CompiledProgram(main, build_strategy=strategy_of(flag, mode))
    exe, scope = mg.static.Executor(place), mg.static.Scope()
    exe.run(startup, scope=scope)
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        exe.run(compiled, feed=feed, fetch_list=[], scope=scope)
        if isinstance(place, mg.CUDAPlace):
            scope.find_var("p0").get_tensor().shape()
            mg.cuda.runtime(place).stream.synchronize()
        times.append(time.perf_counter() - start)
    program = compiled.after
    if flag and mode == "auto":
        print(f"{name}: {shown(updates(main))}\n    -> {shown(updates(program))}\n")
    values = {f"p{i}": np.array(scope.find_var(f"p{i}").get_tensor()) for i in range(options.tensors)}
    calls, milliseconds = gpu_calls(program, feed, mode), statistics.median(times[2:]) * 1e3
    return (name, len(updates(program)), calls, moved(program) / 1e6, milliseconds), values


def plot(rows: list[Row], path: Path) -> None:
    """Time and operators of each arm as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    names, titles = [row[0] for row in rows], ("ms per step", "GPU calls of the update", "MB moved")
    for axis, column, title in zip(axes, (4, 2, 3), titles, strict=True):
        axis.barh(names, [row[column] for row in rows], color="#4c72b0")
        axis.set_title(title)
        axis.invert_yaxis()
    figure.savefig(path)
    print(f"plot written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=40)
    parser.add_argument("--size", type=int, default=16384, help="elements of each")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder for the plot")
    options = parser.parse_args()
    mg.enable_static()
    place = mg.CUDAPlace(0) if mg.cuda.is_available() else mg.CPUPlace()
    print(f"AdamW with clipping by the global norm, {options.tensors} tensors of {options.size}, on {place}\n")
    arms = [(name, flag, "auto") for name, flag in LEVELS.items()]
    if isinstance(place, mg.CUDAPlace):
        arms += [(f"fused, {mode}", LEVELS["fused"], mode) for mode in MODES]
    rows, expected = [], None
    for name, flag, mode in arms:
        row, values = measure(name, flag, mode, options, place)
        rows.append(row)
        expected = expected or values
        # on a GPU a norm over a list is summed in another order than norms one by one
        close = 1e-5 if isinstance(place, mg.CUDAPlace) else 0.0
        worst = max(float(abs(values[n] - v).max()) for n, v in expected.items())
        assert worst <= close, f"{name} differs from for-loop by {worst}"
    print(f"{'update':18} {'operators':>9} {'GPU calls':>9} {'MB moved':>9} {'ms':>8}")
    for name, operators, calls, megabytes, ms in rows:
        print(f"{name:18} {operators:9} {calls:9} {megabytes:9.1f} {ms:8.3f}")
    print("all levels end with equal parameters")
    if not isinstance(place, mg.CUDAPlace):
        with mg.base.unique_name.guard():
            many, _, feed = build(1000, 6)
        compiled = mg.static.CompiledProgram(many, build_strategy=strategy_of(LEVELS["fused"]))
        calls = {mode: gpu_calls(compiled.after, feed, mode) for mode in MODES}
        print("GPU calls of the fused update of 1,000 tensors:", ", ".join(f"{n} {mode}" for mode, n in calls.items()))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        plot(rows, options.out / "optimizer_levels.png")


if __name__ == "__main__":
    main()
