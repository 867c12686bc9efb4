"""GPU checks of whole programs: random ones, training, places that share a scope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.compiler.validate import distance
from minigraph.program import Program, unique_name
from minigraph.program.scope import Scope
from minigraph.runtime import seeds
from minigraph.runtime.executor import Executor
from tests import fuzz
from tests.gpu.check import Check, GpuExecutor, assert_near, each, on_gpu
from tests.support.random_programs import random_program

PROGRAMS, CHUNK = 300, 20
FLOAT32 = 1e-5  # relative, of programs of which a part is computed in float32
STEPS = 200


def checks() -> Iterator[Check]:
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"fuzz/{first:03}", partial(_random_programs, first), product=True)
    for name, options in TRAININGS.items():
        yield Check(f"training/{name}", partial(_training, **options), product=True)
    for run in SCOPES:
        yield Check(f"scopes/{run.__name__}", run)


# random programs


def _random_programs(first: int) -> None:
    each((f"seed {seed}", partial(_random_program, seed)) for seed in range(first, first + CHUNK))


def _random_program(seed: int, chosen: Sequence[fuzz.Flags] | None = None) -> None:
    """Without passes and with each choice of flags (fuzz.choices), on the GPU against the CPU in float64.

    Some programs compute a part in float32, where tanh and its like differ from device to device: then the
    program without passes is near the CPU, and those with passes are near it.
    """
    case = random_program(seed)
    programs = {"unfused": case.program}
    for flags in chosen if chosen is not None else fuzz.choices(seed):
        programs[" ".join(flags)] = fuzz.passed(case, flags)[0]
    cpu = fuzz.run(case, case.program)
    with on_gpu(fuzz):
        results = {who: fuzz.run(case, program) for who, program in programs.items()}
    peak = max(
        (float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0)) for a in cpu.values()), default=0.0
    )
    written = [v for op in case.program.ops if op.type != "cast" for v in op.output_vars]
    rounds = any(v.dtype == np.float32 for v in written)
    for who, found in results.items():
        same_device = rounds and who != "unfused"
        for name, array in (results["unfused"] if same_device else cpu).items():
            difference = distance(array, found[name], floor=max(1e-3 * peak, 1e-30))
            allowed = FLOAT32 if rounds and not same_device else 1e-10
            assert difference <= allowed, f"{who} {name} differs by {difference:.3g}"


# training


def classifier(
    activation: str, optimizer: str, dtype: str, drop: float
) -> tuple[Program, Program, Any]:
    """(main, startup, loss) of an MLP on rows of 64 numbers in 10 classes."""
    mg.set_default_dtype(dtype)
    main, startup = Program("mlp"), Program("startup")
    main.random_seed = startup.random_seed = 77
    try:
        with mg.static.program_guard(main, startup), unique_name.guard():
            x = mg.static.data("x", [None, 64], dtype)
            y = mg.static.data("y", [None, 1], "int64")
            h = x
            for n in (96, 33):
                h = getattr(mg.nn.functional, activation)(mg.nn.Linear(h.shape[-1], n)(h))
                h = mg.nn.functional.dropout(h, drop) if drop else h
            loss = mg.nn.functional.cross_entropy(mg.nn.Linear(33, 10)(h), y)
            make = {"AdamW": lambda: mg.optimizer.AdamW(1e-3), "SGD": lambda: mg.optimizer.SGD(0.05),
                    "Momentum": lambda: mg.optimizer.Momentum(0.02)}[optimizer]  # fmt: skip
            make().minimize(loss)
    finally:
        mg.set_default_dtype("float32")
    return main, startup, loss


def digits(dtype: str) -> list[dict[str, np.ndarray]]:
    """Batches of 64 noisy copies of ten patterns; the last batch is smaller."""
    rng = np.random.default_rng(5)
    patterns = rng.uniform(size=(10, 64))
    batches = []
    for size in (64, 64, 64, 37):
        y = rng.integers(0, 10, (size, 1))
        batches.append(
            {"x": (patterns[y[:, 0]] + 0.3 * rng.normal(size=(size, 64))).astype(dtype), "y": y}
        )
    return batches


def trained(
    exe: Executor, program: Any, startup: Program, loss: Any, dtype: str, steps: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The losses of all steps, and every persistable after them."""
    scope, batches = Scope(), digits(dtype)
    exe.run(startup, scope=scope)
    losses = [
        exe.run(program, batches[i % len(batches)], [loss], scope=scope)[0] for i in range(steps)
    ]
    return np.array([x.astype(float) for x in losses]).reshape(-1), {
        n: scope.read(n) for n in scope.list_names()
    }


def _training(
    activation: str, optimizer: str, dtype: str, drop: float = 0.0, near: float = 1e-9
) -> None:
    """Twice on the GPU bit-equal, and the losses of the CPU in float64; passes on and off."""
    main, startup, loss = classifier(activation, optimizer, dtype, drop)
    strategy = mg.static.BuildStrategy()
    strategy.fuse_gemm_epilogue = True
    fused = mg.static.CompiledProgram(main, build_strategy=strategy)
    exact = classifier(activation, optimizer, "float64", drop)
    expected, states = trained(Executor(), exact[0], exact[1], exact[2], "float64", STEPS)
    assert expected[-1] < 0.7 * expected[0], (
        f"the CPU does not learn: {expected[0]:.3f} to {expected[-1]:.3f}"
    )
    for title, program in (("fused", fused), ("unfused", main)):
        losses, values = trained(GpuExecutor(), program, startup, loss, dtype, STEPS)
        again, repeated = trained(GpuExecutor(), program, startup, loss, dtype, STEPS)
        assert losses.tobytes() == again.tobytes(), f"{title}: the losses of two runs differ"
        for name, array in values.items():
            assert array.tobytes() == repeated[name].tobytes(), (
                f"{title}: {name} differs between two runs"
            )
        assert_near(losses, expected, near, f"{title}: losses")
        if dtype == "float64":
            for name, array in values.items():
                assert_near(array, states[name], near * 10, f"{title}: {name}")


TRAININGS: dict[str, dict[str, Any]] = {
    "relu-AdamW-float64": {"activation": "relu", "optimizer": "AdamW", "dtype": "float64"},
    "gelu-AdamW-float64": {"activation": "gelu", "optimizer": "AdamW", "dtype": "float64"},
    "gelu-SGD-dropout-float64": {"activation": "gelu", "optimizer": "SGD", "dtype": "float64", "drop": 0.1},
    "relu-Momentum-float64": {"activation": "relu", "optimizer": "Momentum", "dtype": "float64"},
    "relu-AdamW-float32": {"activation": "relu", "optimizer": "AdamW", "dtype": "float32", "near": 2e-3},
    "gelu-SGD-dropout-float32": {
        "activation": "gelu", "optimizer": "SGD", "dtype": "float32", "drop": 0.1, "near": 2e-3
    },
}  # fmt: skip


# places that share a scope


def training_moves_between_places() -> None:
    """Steps on the CPU and on the GPU in turns, from one scope, are steps of one training."""

    def one(drop: float, compiled: bool) -> None:
        main, startup, loss = classifier("gelu", "AdamW", "float64", drop)
        program: Any = main
        if compiled:
            strategy = mg.static.BuildStrategy()
            strategy.fuse_gemm_epilogue = True
            program = mg.static.CompiledProgram(main, build_strategy=strategy)
        batches, exes = digits("float64"), (GpuExecutor(), Executor())
        expected, scope = trained(Executor(), program, startup, loss, "float64", 12)[0], Scope()
        exes[0].run(startup, scope=scope)
        losses = []
        for i in range(12):
            exe = exes[(0, 1, 1, 0, 0, 1)[i % 6]]
            losses.append(float(exe.run(program, batches[i % 4], [loss], scope=scope)[0]))
        assert_near(np.array(losses), expected, 1e-9, "losses")

    each(
        (f"dropout {drop} compiled {compiled}", partial(one, drop, compiled))
        for drop in (0.0, 0.1) for compiled in (False, True)
    )  # fmt: skip


def parameters_are_read_and_set_from_outside() -> None:
    main, startup, loss = classifier("relu", "SGD", "float64", 0.0)
    exe, scope, batch = GpuExecutor(), Scope(), digits("float64")[0]
    exe.run(startup, scope=scope)
    (first,) = exe.run(main, batch, [loss], scope=scope)
    saved = {n: scope.read(n) for n in scope.list_names()}
    (second,) = exe.run(main, batch, [loss], scope=scope)
    assert second != first
    for name, array in saved.items():
        variable = scope.find_var(name)
        assert variable is not None
        variable.get_tensor().set(array)
    (again,) = exe.run(main, batch, [loss], scope=scope)
    assert again == second, "values that were set are not the values that are used"


def initialisers_equal_those_of_the_cpu() -> None:
    """The startup program of layers with every kind of initialiser, on both places."""
    I = mg.nn.initializer  # noqa: E741
    kinds = [
        I.XavierUniform(), I.XavierNormal(), I.KaimingNormal(), I.KaimingUniform(), I.Normal(0.5, 2.0),
        I.Uniform(-3, 1), I.TruncatedNormal(0.0, 0.5), I.Constant(0.25),
    ]  # fmt: skip
    seeds.seed(3)
    main, startup = Program("main"), Program("startup")
    with mg.static.program_guard(main, startup), unique_name.guard():
        x = mg.static.data("x", [None, 200])
        for kind in kinds:
            mg.nn.Linear(200, 333, weight_attr=mg.ParamAttr(initializer=kind))(x)
    scopes = Scope(), Scope()
    Executor().run(startup, scope=scopes[0])
    GpuExecutor().run(startup, scope=scopes[1])
    for name in scopes[0].list_names():
        cpu, gpu = (s.read(name) for s in scopes)
        assert_near(gpu, cpu, 2e-6, name)


def fetched_parameters_are_copies() -> None:
    main, startup, loss = classifier("relu", "SGD", "float64", 0.0)
    exe, scope, batch = GpuExecutor(), Scope(), digits("float64")[0]
    exe.run(startup, scope=scope)
    w = main.all_parameters()[0]
    _, before = exe.run(main, batch, [loss, w], scope=scope)
    kept = before.copy()
    exe.run(main, batch, [loss], scope=scope)
    assert np.array_equal(before, kept)
    assert not np.array_equal(scope.read(w.name), kept), "the parameter did not change"


def learning_rate_schedules_reach_the_gpu() -> None:
    main, startup = Program("main"), Program("startup")
    with mg.static.program_guard(main, startup), unique_name.guard():
        w = mg.static.create_parameter(
            [3], "float64", default_initializer=mg.nn.initializer.Constant(1.0)
        )
        scheduler = mg.optimizer.lr.StepDecay(0.5, step_size=1, gamma=0.5)
        mg.optimizer.SGD(scheduler).minimize(mg.sum(w))
    exe, scope = GpuExecutor(), Scope()
    exe.run(startup, scope=scope)
    for expected in (0.5, 0.25, 0.125):
        exe.run(main, scope=scope)
        scheduler.step()
        assert_near(scope.read(w.name), np.full(3, expected), 1e-12, "w")


SCOPES = [
    training_moves_between_places, parameters_are_read_and_set_from_outside, initialisers_equal_those_of_the_cpu,
    fetched_parameters_are_copies, learning_rate_schedules_reach_the_gpu,
]  # fmt: skip
