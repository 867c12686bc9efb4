"""GPU checks of parameter updates: levels, pointer modes, sizes, flags, 16-bit parameters, many and large tensors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import minigraph.optimizer as opt
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu.check import PLACE, Check, GpuExecutor
from tests.support.update_nets import (
    LEVELS,
    MODES,
    OPTIMIZERS,
    Clip,
    difference,
    net,
    on_cpu,
    started,
    steps_feed,
)
from tests.support.written_rules import lion, momentum_by_lists

SIZES = [(0,), (1,), (3,), (65535,), (65536,), (65537,), (2**20 + 1,)]
GROUPED = [(2**19 + 1,), (7,), (2**19, 1), (300, 2001)]  # two launches, the second one of the first tensors
STEPS = 7


def checks() -> Iterator[Check]:
    for name in OPTIMIZERS:
        for level in LEVELS:
            title = f"updates/{name}/{level or 'for-loop'}"
            yield Check(title, partial(same_bits, name, level, "table"), sanitize=name in ("AdamW", "Lamb"))
    for mode in MODES[1:]:
        for name in ("SGD", "AdamW", "Lamb"):
            run = partial(same_bits, name, LEVELS[-1], mode)
            yield Check(f"updates/{name}/{mode}", run, sanitize=name == "AdamW", unwritten=mode == "arena")
        yield Check(f"updates/tensors/{mode}", partial(many, mode, 10_000))
    for mode in MODES:
        yield Check(f"updates/written/{mode}", partial(written, mode), sanitize=mode in ("table", "struct4k"))
    for run in (float64_agrees, sizes, groups, clipped, copies, found_inf, rate_changes, misaligned, float64_sizes):
        yield Check(f"updates/{run.__name__}", run)
    yield Check("updates/huge", huge, alone=True)


def on_gpu(made: Any, level: str | None, mode: str = "table", steps: int = 2, scope: Any = None) -> Scope:
    """The Scope after some steps on the GPU."""
    strategy = BuildStrategy(multi_tensor_mode=mode, **({level: True} if level else {}))
    program, exe = CompiledProgram(made[0], strategy), GpuExecutor()
    scope = scope or started(made)
    for _ in range(steps):
        exe.run(program, steps_feed(made), [], scope=scope)
    return scope


def check_same(made: Any, found: Scope, steps: int, close: float = 0.0) -> None:
    where, apart = difference(found, on_cpu(made, steps=steps))
    assert apart <= close, f"{where} differs from the CPU's by {apart:.3g}"


def same_bits(name: str, level: str | None, mode: str) -> None:
    """After 7 steps the CPU's bits; Lamb's norms are summed in another order."""
    made = net(OPTIMIZERS[name]())
    check_same(made, on_gpu(made, level, mode, STEPS), STEPS, 2e-6 if name == "Lamb" else 0.0)


def written(mode: str) -> None:
    """Rules out of elementwise operators, on tensors of all sizes, with fuse_foreach.

    bfloat16: the sign of what is nearly 0 is either, so errors against float64 are compared, over all elements.
    """
    shapes = [*SIZES, (300, 2001), *[(2, 3)] * 500]
    for make, dtype, close in (
        (rule, *bound) for rule in (lion, momentum_by_lists) for bound in (("float64", 1e-12), ("float32", 1e-5))
    ):
        made = make(shapes, dtype)
        found = _written_on_gpu(made, mode)
        for name, expected in made.run().items():
            apart = np.max(abs(found[name] - expected.astype(float)), initial=0)
            assert apart <= close, f"{make.__name__} {dtype}: {name} differs from the CPU's by {apart:.3g}"
    made, exact = lion(shapes, "bfloat16"), lion(shapes)
    exact.values.update({name: array.astype(float) for name, array in made.values.items()})
    right, cpu, found = exact.run(), made.run(), _written_on_gpu(made, mode)
    ours, theirs = (
        sum(np.sum((run[name].astype(float) - right[name]) ** 2) for name in right) ** 0.5 for run in (found, cpu)
    )
    assert 0 < ours <= 2 * theirs, f"lion bfloat16 errs by {ours:.3g}, operator by operator by {theirs:.3g}"


def _written_on_gpu(made: Any, mode: str) -> dict[str, np.ndarray]:
    """All values after three steps, of which the third is a graph."""
    scope, exe = made.scope(), GpuExecutor()
    compiled = CompiledProgram(made.program, BuildStrategy(fuse_foreach=True, multi_tensor_mode=mode))
    for _ in range(3):
        exe.run(compiled, {}, [], scope=scope)
    return {name: scope.read(name).astype(float) for name in made.values}


def float64_agrees() -> None:
    for name in OPTIMIZERS:
        made = net(OPTIMIZERS[name](), dtype="float64")
        for level in LEVELS:
            check_same(made, on_gpu(made, level, steps=STEPS), STEPS, 1e-12)


def sizes() -> None:
    for name in ("AdamW", "Momentum", "Lamb"):
        made = net(OPTIMIZERS[name](), SIZES)
        for level in LEVELS:
            check_same(made, on_gpu(made, level), 2, 1e-6 if name == "Lamb" else 0.0)


def groups() -> None:
    for name in ("AdamW", "Lamb"):
        made = net(OPTIMIZERS[name](), GROUPED)
        check_same(made, on_gpu(made, LEVELS[-1], steps=4), 4, 1e-6 if name == "Lamb" else 0.0)


def float64_sizes() -> None:
    made = net(OPTIMIZERS["Adam"](), SIZES, "float64")
    check_same(made, on_gpu(made, LEVELS[-1]), 2)


def clipped() -> None:
    """One norm of all gradients; its sum has another order."""
    made = net(opt.AdamW(0.1, grad_clip=Clip(0.5)), SIZES)
    for level in LEVELS:
        check_same(made, on_gpu(made, level), 2, 1e-5)


def copies() -> None:
    for dtype in ("float16", "bfloat16"):
        for name in OPTIMIZERS:
            made = net(OPTIMIZERS[name](multi_precision=True), [(3, 5), (1500,)], dtype)
            for level in LEVELS:
                check_same(made, on_gpu(made, level), 2, 2e-2 if name == "Lamb" else 0.0)
        made = net(opt.Adam(0.1), [(3, 5), (1500,)], dtype)
        check_same(made, on_gpu(made, LEVELS[-1]), 2)


def found_inf() -> None:
    for name in OPTIMIZERS:
        made = net(OPTIMIZERS[name](), found=True)
        for level in LEVELS:
            scope, before = started(made), started(made)
            on_gpu(made, level, steps=3, scope=scope)  # the third is a graph
            assert difference(scope, before) == ("", 0.0), f"{name} {level}: a skipped step changed something"
            made[2]["found"][:] = False
            on_gpu(made, level, scope=scope)
            check_same(made, scope, 2, 2e-6 if name == "Lamb" else 0.0)
            made[2]["found"][:] = True


def rate_changes() -> None:
    """set_lr takes effect in the next step of a captured program."""
    optimizer = opt.SGD(0.5)
    made = net(optimizer)
    exe, scope = GpuExecutor(), started(made)
    program = CompiledProgram(made[0], BuildStrategy(fuse_all_optimizer_ops=True))
    expected = scope.read("p0").astype(float)
    rate = next(n for n in scope.list_names() if n.startswith("learning_rate"))
    for step in range(5):
        value = 0.5 * 0.5**step
        scope.find_var(rate).get_tensor().set(np.array([value], np.float32))
        exe.run(program, steps_feed(made), [], scope=scope)
        expected = expected - value * made[2]["x0"]
    assert np.allclose(scope.read("p0"), expected, atol=1e-6), "a new rate came too late"


def misaligned() -> None:
    """Parameters and states that begin 4 bytes after a multiple of 16."""
    cupy = importlib.import_module("cupy")
    made = net(opt.AdamW(0.1, weight_decay=0.1), [(5000,), (37, 3)])
    scope = started(made)
    for name, array in list(scope.arrays.items()):
        if array.dtype == np.float32 and array.size > 1:
            raw = cupy.zeros(array.size + 1, np.float32)[1:].reshape(array.shape)
            raw[...] = cupy.asarray(array)
            scope.arrays[name] = raw
    cupy.cuda.get_current_stream().synchronize()
    check_same(made, on_gpu(made, LEVELS[-1], scope=scope), 2)


def many(mode: str, count: int) -> None:
    """Hundreds and thousands of tensors; each is updated once."""
    cupy = importlib.import_module("cupy")
    for n in (424, 1000, count):
        program = Program()
        block, g, scope = program.global_block(), Builder(program.global_block()), Scope()
        rate = block.create_var("rate", (1,), "float32", persistable=True)
        scope.arrays["rate"] = cupy.full(1, 0.5, np.float32)
        for i in range(n):
            p, grad, v = (block.create_var(f"{k}{i}", (2, 3), "float32", persistable=True) for k in ("p", "g", "v"))
            for variable, value in ((p, 0), (grad, 4 * i + 2), (v, 2)):
                scope.arrays[variable.name] = cupy.full((2, 3), value, np.float32)
            g.momentum(p, grad, rate, v, mu=0.5, out={"ParamOut": p, "VelocityOut": v})
        cupy.cuda.get_current_stream().synchronize()
        compiled = CompiledProgram(program, BuildStrategy(fuse_all_optimizer_ops=True, multi_tensor_mode=mode))
        Executor(PLACE).run(compiled, {}, [], scope=scope)
        cupy.cuda.Device().synchronize()
        found = cupy.stack([scope.arrays[f"p{i}"].ravel() for i in range(n)]).get()
        expected = np.repeat(-0.5 * (4 * np.arange(n) + 3.0), 6).reshape(n, 6)
        assert np.array_equal(found, expected), f"{n} tensors: not all are updated once"


def huge() -> None:
    """More than 2^31 elements in all, and in one tensor; some elements of each end are compared."""
    cupy = importlib.import_module("cupy")
    program = Program()
    block, g, scope = program.global_block(), Builder(program.global_block()), Scope()
    shapes, ends = {"a": 2**31 + 5, "b": 2**20 + 3}, {}
    rate = block.create_var("rate", (1,), "float32", persistable=True)
    scope.arrays["rate"] = cupy.full(1, 0.5, np.float32)
    for name, size in shapes.items():
        p, grad = (block.create_var(n, (size,), "float16", persistable=True) for n in (name, f"{name}_grad"))
        scope.arrays[name] = cupy.full(size, 3, np.float16)
        scope.arrays[f"{name}_grad"] = cupy.full(size, 2, np.float16)
        scope.arrays[f"{name}_grad"][-3:] = 4
        ends[name] = scope.arrays[name]
        g.sgd(p, grad, rate, out={"ParamOut": p})
    cupy.cuda.get_current_stream().synchronize()
    for mode in ("table", "struct4k"):
        compiled = CompiledProgram(program, BuildStrategy(fuse_all_optimizer_ops=True, multi_tensor_mode=mode))
        Executor(PLACE).run(compiled, {}, [], scope=scope)
    cupy.cuda.Device().synchronize()
    for name, array in ends.items():
        rest, end = bool((array[:-3] == 1).all()), bool((array[-3:] == -1).all())
        assert rest and end, f"{name} is not updated everywhere once"
