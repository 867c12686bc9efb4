"""GPU checks at the edges: arrays of CuPy, PyTorch and JAX as feeds, results without a copy, errors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minigraph.errors import KernelError, MinigraphError, PlaceError
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import CUDAPlace, tensor_type
from tests.gpu.check import Check, GpuExecutor, assert_near, each, normal
from tests.support import opcheck


def checks() -> Iterator[Check]:
    for group, members in (("interop", INTEROP), ("errors", ERRORS)):
        for run in members:
            yield Check(f"{group}/{run.__name__}", run)


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
    os.environ.setdefault(
        "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
    )  # else JAX takes most of the card
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
    host_feed_of_the_other_byte_order, empty_feeds, torch_feed, torch_feed_in_bfloat16, jax_feed,
    wrong_feeds_are_refused,
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
            assert "[" in message.partition(f"value {wrong}")[2], f"the message does not say what fits: {message}"
            for found, right in zip(
                exe.run(program, arrays, fetches, scope=Scope()), expected, strict=True
            ):
                assert_near(found, right, 1e-12, f"{op_type} after the error")

    each((case[0], partial(one, *case)) for case in cases)


def faults_of_runs_without_fetches_are_said_before_values_are_read() -> None:
    """By the Scope, also when the plan is gone; then its values can be read."""
    block = Program().global_block()
    w = block.create_var("w", type=tensor_type((5, 4), "float64"), persistable=True)
    ids = block.create_var("ids", type=tensor_type((-1,), "int64"), is_data=True)
    g = Builder(block)
    g.elementwise_add(w, g.reduce_sum(g.embedding(ids, w)), out={"Out": w})
    for wrong_run in (1, 4):
        exe, scope = Executor(CUDAPlace(0)), Scope()
        scope.write("w", normal(5, 4))
        for i in range(6):
            exe.run(block.program, {"ids": np.array([0, 9 if i == wrong_run else 4, 2])}, scope=scope)
        exe.close()
        message = refused("value 9 at row 1 is out of range [0, 5)", scope.read, "w", error=KernelError)
        assert message.startswith("[MG-KERNEL-002] "), message
        assert "embedding" in message, message
        assert np.isfinite(scope.read("w")).all()


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
    numbers_out_of_range_are_named, faults_of_runs_without_fetches_are_said_before_values_are_read,
    out_of_memory_is_one_clear_error, out_of_memory_of_a_parameter, unknown_gpu_is_refused, missing_values_are_named,
]  # fmt: skip
