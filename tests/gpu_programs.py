"""GPU checks of whole programs: random ones, training, interop, errors, places that share a scope."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import fuzz
import numpy as np
import opcheck
from gpucheck import Check, GpuExecutor, assert_near, each, normal, on_gpu
from random_programs import random_program

import minigraph as mg
from minigraph import executor, unique_name
from minigraph.builder import Builder
from minigraph.errors import KernelError, MinigraphError, PlaceError
from minigraph.executor import Executor
from minigraph.program import Program
from minigraph.scope import Scope
from minigraph.types import CUDAPlace, tensor_type
from minigraph.validate import distance

PROGRAMS, CHUNK = 300, 20
STEPS = 200


def checks() -> Iterator[Check]:
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"fuzz/{first:03}", partial(_random_programs, first), product=True)
    for name, options in TRAININGS.items():
        yield Check(f"training/{name}", partial(_training, **options), product=True)
    for group, members in (("interop", INTEROP), ("errors", ERRORS), ("scopes", SCOPES)):
        for run in members:
            yield Check(f"{group}/{run.__name__}", run)


# random programs


def _random_programs(first: int) -> None:
    each((f"seed {seed}", partial(_random_program, seed)) for seed in range(first, first + CHUNK))


def _random_program(seed: int) -> None:
    """With passes off and on, on the GPU against the CPU in float64."""
    case = random_program(seed)
    after, _ = fuzz.passed(case)
    cpu = fuzz.run(case, case.program)
    with on_gpu(fuzz):
        off, on = fuzz.run(case, case.program), fuzz.run(case, after)
    peak = max(
        (float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0)) for a in cpu.values()), default=0.0
    )
    for who, found in (("unfused", off), ("fused", on)):
        for name, array in cpu.items():
            difference = distance(array, found[name], floor=max(1e-3 * peak, 1e-30))
            assert difference <= 1e-10, f"{who} {name} differs by {difference:.3g}"


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
    "gelu-AdamW-dropout-float32": {"activation": "gelu", "optimizer": "AdamW", "dtype": "float32", "drop": 0.1, "near": 2e-3},
}  # fmt: skip


# arrays of other libraries


def affine(dtype: str = "float32") -> tuple[Program, Any]:
    """(program, out) of out = 2 x + 1 for x[-1, 5]."""
    block = Program().global_block()
    x = block.create_var("x", type=tensor_type((-1, 5), dtype), is_data=True)
    return block.program, Builder(block).scale(x, scale=2.0, bias=1.0)


def run_affine(x: Any, **options: Any) -> Any:
    program, out = affine(str(getattr(x, "dtype", "float32")).removeprefix("torch."))
    return GpuExecutor().run(program, {"x": x}, [out], scope=Scope(), **options)[0]


def cupy_feed_and_fetch() -> None:
    cupy = importlib.import_module("cupy")
    x = normal(7, 5).astype("float32")
    out = run_affine(cupy.asarray(x), return_numpy=False)
    assert isinstance(out, cupy.ndarray), f"return_numpy=False gave {type(out)}"
    assert_near(out.get(), 2 * x.astype(float) + 1, 1e-6, "out")
    kept = out.copy()
    run_affine(cupy.asarray(x + 1), return_numpy=False)
    assert bool((out == kept).all()), "a later run changed a fetched array"


def cupy_feed_written_just_before() -> None:
    """The producer's stream is waited for."""
    cupy = importlib.import_module("cupy")
    for size in (1 << 18, 1 << 20):
        x = cupy.zeros((size, 5), "float32")
        for _ in range(20):
            x = x + 1
        assert float(abs(run_affine(x, return_numpy=False) - 41).max()) == 0.0


def cupy_feed_of_an_own_stream() -> None:
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.zeros((1 << 20, 5), "float32")
        for _ in range(20):
            x = x + 1
        out = run_affine(x)
    assert float(np.abs(out - 41).max()) == 0.0


def feeds_that_are_not_contiguous() -> None:
    cupy = importlib.import_module("cupy")
    x = normal(10, 6).astype("float32")
    for view in (
        lambda a: a[::2, :5],
        lambda a: a[::-1, 1:],
        lambda a: a[:5, ::-1][:, :5],
        lambda a: a.reshape(6, 10)[:5].T,
    ):
        host = view(x)
        expected = 2 * host.astype(float) + 1
        assert_near(run_affine(host), expected, 1e-6, "out of a NumPy view")
        assert_near(run_affine(view(cupy.asarray(x))), expected, 1e-6, "out of a CuPy view")


def host_feed_of_the_other_byte_order() -> None:
    x = normal(4, 5).astype(">f4")
    program, out = affine("float32")
    assert_near(
        GpuExecutor().run(program, {"x": x}, [out], scope=Scope())[0],
        2 * x.astype(float) + 1,
        1e-6,
        "out",
    )


def empty_feeds() -> None:
    cupy = importlib.import_module("cupy")
    assert run_affine(np.zeros((0, 5), "float32")).shape == (0, 5)
    assert run_affine(cupy.zeros((0, 5), "float32"), return_numpy=False).shape == (0, 5)


def torch_feed() -> None:
    torch = importlib.import_module("torch")
    x = normal(7, 5).astype("float32")
    expected = 2 * x.astype(float) + 1
    assert_near(run_affine(torch.from_numpy(x).cuda()), expected, 1e-6, "out of a CUDA tensor")
    turned = torch.from_numpy(np.ascontiguousarray(x.T)).cuda().T
    assert_near(run_affine(turned), expected, 1e-6, "out of a transposed CUDA tensor")
    program, out = affine("float32")
    host = GpuExecutor().run(program, {"x": torch.from_numpy(x)}, [out], scope=Scope())[0]
    assert_near(host, expected, 1e-6, "out of a CPU tensor")
    back = torch.from_dlpack(run_affine(torch.from_numpy(x).cuda(), return_numpy=False))
    assert back.is_cuda
    assert_near(back.cpu().numpy(), expected, 1e-6, "out given to torch")


def torch_feed_in_bfloat16() -> None:
    torch = importlib.import_module("torch")
    x = torch.arange(10.0).reshape(2, 5).to(torch.bfloat16).cuda()
    program, out = affine("bfloat16")
    found = GpuExecutor().run(program, {"x": x}, [out], scope=Scope())[0]
    assert_near(found.astype(float), 2 * np.arange(10.0).reshape(2, 5) + 1, 0, "out")


def jax_feed() -> None:
    jax = importlib.import_module("jax")
    x = normal(7, 5).astype("float32")
    placed = jax.numpy.asarray(x)
    assert_near(run_affine(placed), 2 * x.astype(float) + 1, 1e-6, "out of a JAX array")


def wrong_feeds_are_refused() -> None:
    cupy = importlib.import_module("cupy")
    program, out = affine("float32")
    for x, fact in ((cupy.zeros((3, 5), "float64"), "must be float32"), (cupy.zeros((3, 4), "float32"), "has shape"),
                    (cupy.zeros(5, "float32"), "has shape")):  # fmt: skip
        refused(fact, GpuExecutor().run, program, {"x": x}, [out], scope=Scope())


INTEROP = [
    cupy_feed_and_fetch, cupy_feed_written_just_before, cupy_feed_of_an_own_stream, feeds_that_are_not_contiguous,
    host_feed_of_the_other_byte_order, empty_feeds, torch_feed, torch_feed_in_bfloat16, jax_feed, wrong_feeds_are_refused,
]  # fmt: skip


# errors


def refused(
    fact: str, function: Any, *args: Any, error: type[Exception] = MinigraphError, **options: Any
) -> str:
    """The message of the error that the call raises; it must contain `fact`."""
    message = None
    try:
        function(*args, **options)
    except error as problem:
        message = str(problem)
    assert message is not None, f"nothing was refused, an error with {fact!r} was expected"
    assert fact in message, f"the message lacks {fact!r}: {message}"
    return message


def _one_op(op_type: str, arrays: dict[str, np.ndarray], **attrs: Any) -> tuple[Program, list[Any]]:
    block = Program().global_block()
    variables = {
        s: block.create_var(s, type=opcheck.type_of(a), is_data=True) for s, a in arrays.items()
    }
    Builder(block).emit(op_type, **variables, **attrs)
    return block.program, [v for vs in block.ops[-1].outputs.values() for v in vs]


def numbers_out_of_range_are_named() -> None:
    """The operator, the number and its row stand in the error; the next run of the same plan is right."""
    w, x, scores = normal(5, 4), normal(6, 3), normal(4, 3)
    cases = [
        (
            "softmax_with_cross_entropy",
            {"Logits": scores, "Label": np.array([[0], [2], [1], [2]])},
            "Label",
            {},
        ),
        ("embedding", {"Ids": np.array([3, 0, 1]), "W": w}, "Ids", {}),
        ("gather", {"X": x, "Index": np.array([1, 5, 0])}, "Index", {"axis": 0}),
        ("one_hot", {"X": np.array([0, 2, 1])}, "X", {"depth": 3}),
    ]

    def one(op_type: str, arrays: dict[str, np.ndarray], slot: str, attrs: dict[str, Any]) -> None:
        program, fetches = _one_op(op_type, arrays, **attrs)
        exe, expected = GpuExecutor(), Executor().run(program, arrays, fetches, scope=Scope())
        for wrong in (77, -9):
            bad = arrays[slot].copy()
            bad.reshape(-1)[1] = wrong
            message = refused(
                str(wrong),
                exe.run,
                program,
                {**arrays, slot: bad},
                fetches,
                error=KernelError,
                scope=Scope(),
            )
            assert op_type in message, f"the message does not name {op_type}: {message}"
            assert "1" in message.replace(str(wrong), ""), (
                f"the message does not name row 1: {message}"
            )
            for found, right in zip(
                exe.run(program, arrays, fetches, scope=Scope()), expected, strict=True
            ):
                assert_near(found, right, 1e-12, f"{op_type} after the error")

    each((case[0], partial(one, *case)) for case in cases)


def out_of_memory_is_one_clear_error() -> None:
    """Temporaries that exceed the card; the process goes on."""
    block = Program().global_block()
    g = Builder(block)
    big = g.fill_constant(shape=(1 << 20, 1 << 20), value=1.0, dtype="float32")
    total = g.reduce_sum(g.relu(big))
    message = refused(
        "out of memory",
        GpuExecutor().run,
        block.program,
        {},
        [total],
        scope=Scope(),
        error=KernelError,
    )
    assert "MiB" in message and big.name in message, (
        f"the message does not name the largest value: {message}"
    )
    assert_near(run_affine(np.ones((2, 5), "float32")), np.full((2, 5), 3.0), 1e-6, "the next run")


def out_of_memory_of_a_parameter() -> None:
    """The same for what the Scope owns."""
    block = Program().global_block()
    state = block.create_var(
        "huge", type=tensor_type((1 << 20, 1 << 20), "float32"), persistable=True
    )
    Builder(block).emit(
        "fill_constant", out={"Out": state}, shape=(1 << 20, 1 << 20), value=1.0, dtype="float32"
    )
    refused("out of memory", GpuExecutor().run, block.program, {}, [], scope=Scope())
    assert_near(run_affine(np.ones((2, 5), "float32")), np.full((2, 5), 3.0), 1e-6, "the next run")


def unknown_gpu_is_refused() -> None:
    refused("CUDAPlace(99)", Executor, CUDAPlace(99), error=PlaceError)


def missing_values_are_named() -> None:
    """A parameter without a value, a feed that is missing."""
    program, out = affine()
    refused("feed 'x' is missing", GpuExecutor().run, program, {}, [out], scope=Scope())
    block = Program().global_block()
    w = block.create_parameter("w", (3,), "float32")
    out = Builder(block).relu(w)
    refused("has no value in the scope", GpuExecutor().run, block.program, {}, [out], scope=Scope())


ERRORS = [
    numbers_out_of_range_are_named, out_of_memory_is_one_clear_error, out_of_memory_of_a_parameter,
    unknown_gpu_is_refused, missing_values_are_named,
]  # fmt: skip


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
    kinds = [I.XavierUniform(), I.XavierNormal(), I.KaimingNormal(), I.KaimingUniform(), I.Normal(0.5, 2.0), I.Uniform(-3, 1),
             I.TruncatedNormal(0.0, 0.5), I.Constant(0.25)]  # fmt: skip
    executor.seed(3)
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
