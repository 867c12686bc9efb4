"""GPU checks of paged states: the bits of a run with all states on the card, in blocks of many sizes, whoever looks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import minigraph.optimizer as opt
from minigraph import cuda, static
from minigraph.errors import OutOfMemoryError
from minigraph.kernels import host_memory
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.gpu import faults, nan
from tests.gpu.check import PLACE, Check, GpuExecutor, each
from tests.support.update_nets import (
    OPTIMIZERS,
    Clip,
    blocks_of_bytes,
    difference,
    net,
    on_cpu,
    started,
    steps_feed,
)

LEVELS = (None, "fuse_all_optimizer_ops")
SHAPES = [(2, 3), (), (0, 4), (5000,), (1025,), (37, 3), (2048,), (4097,)]
BYTES = 24 << 10  # of a block: of AdamW three thousand elements
LARGE = [(2**21 + 1,), (7,), (1000, 1001), (300, 2001)]  # of AdamW two and a half blocks, and a tensor that stays
STEPS = 4  # eager, captured, and the graph again


def checks() -> Iterator[Check]:
    for name in OPTIMIZERS:
        for level in LEVELS:
            yield Check(f"paged/{name}/{level or 'for-loop'}", partial(same_bits, name, level), name == "AdamW")
    for run in (
        each_its_own_step, masters, float64_agrees, clipped, found_inf, as_on_the_card, many_steps_in_flight,
        scopes_take_turns, places_and_modes_change, saved_and_loaded, faults_change_nothing, nan_is_found,
        no_room_on_the_host,
    ):  # fmt: skip
        yield Check(f"paged/{run.__name__}", run)


def compiled(made: Any, level: str | None = LEVELS[-1], mode: str = "paged", **flags: Any) -> CompiledProgram:
    flags |= {level: True} if level else {}
    return CompiledProgram(made[0], BuildStrategy(multi_tensor_mode=mode, **flags))


def trained(made: Any, program: Any, steps: int = STEPS, scope: Scope | None = None, exe: Any = None) -> Scope:
    """The Scope after some steps on the GPU."""
    scope, exe = scope or started(made), exe or GpuExecutor()
    for _ in range(steps):
        exe.run(program, steps_feed(made), [], scope=scope)
    return scope


def same(found: Scope, expected: Scope, close: float = 0.0) -> None:
    where, apart = difference(found, expected)
    assert apart <= close, f"{where} differs by {apart:.3g}"


def on_host(scope: Scope) -> set[str]:
    """The names whose arrays lie in pinned memory of the host."""
    runtime = cuda.runtime(PLACE)
    return {name for name, array in scope.arrays.items() if runtime.lies_on_host(array)}


def same_bits(name: str, level: str | None) -> None:
    """The CPU's, but Lamb's norms are summed in another order."""
    made = net(OPTIMIZERS[name](), SHAPES)
    with blocks_of_bytes(BYTES):
        found = trained(made, compiled(made, level))
    same(found, on_cpu(made, steps=STEPS), 2e-6 if name == "Lamb" else 0.0)
    assert name == "SGD" or len(on_host(found)) >= 7, on_host(found)


def each_its_own_step() -> None:
    """Parameters whose powers of beta differ: every piece is updated with the numbers of its own tensor."""
    made = net(OPTIMIZERS["AdamW"](), SHAPES)
    scope, expected, exe = started(made), started(made), Executor()
    powers = [n for n in scope.list_names() if "beta1_pow" in n]
    for i, name in enumerate(powers):
        for one in (scope, expected):
            one.write(name, np.full(one.arrays[name].shape, 0.9 ** (i + 1)))
    for _ in range(STEPS):
        exe.run(made[0], steps_feed(made), [], scope=expected)
    assert len(powers) == len(SHAPES)
    with blocks_of_bytes(BYTES):
        same(trained(made, compiled(made), scope=scope), expected)


def masters(names: Iterable[str] = OPTIMIZERS) -> None:
    """float32 copies of 16-bit parameters are paged, too; with a second pass over them they stay."""
    for i, name in enumerate(names):
        for j, level in enumerate(LEVELS):  # each optimizer and each level meets both types
            dtype = ("float16", "bfloat16")[(i + j) % 2]
            made = net(OPTIMIZERS[name](multi_precision=True), SHAPES, dtype)
            with blocks_of_bytes(BYTES):
                found = trained(made, compiled(made, level), 2)
            same(found, on_cpu(made), 2e-2 if name == "Lamb" else 0.0)
            copies = {n for n in on_host(found) if "fp32_master" in n}
            assert bool(copies) == (name != "Lamb"), f"{name}: {copies}"


def float64_agrees(names: Iterable[str] = OPTIMIZERS) -> None:
    for name in names:
        made = net(OPTIMIZERS[name](), SHAPES, "float64")
        with blocks_of_bytes(BYTES):
            same(trained(made, compiled(made)), on_cpu(made, steps=STEPS), 1e-12)


def clipped() -> None:
    """One norm of all gradients; its sum has another order."""
    made = net(opt.AdamW(0.1, grad_clip=Clip(0.5)), SHAPES)
    with blocks_of_bytes(BYTES):
        same(trained(made, compiled(made), 2), on_cpu(made), 1e-5)


def found_inf() -> None:
    made = net(OPTIMIZERS["AdamW"](), SHAPES, found=True)
    with blocks_of_bytes(BYTES):
        same(trained(made, compiled(made)), started(made))


def as_on_the_card() -> None:
    """Blocks and sizes as they are by default."""
    for name in ("AdamW", "Momentum", "Lamb"):
        made = net(OPTIMIZERS[name](), LARGE)
        found = trained(made, compiled(made))
        assert len(on_host(found)) == (3 if name == "Momentum" else 6), on_host(found)
        same(found, trained(made, compiled(made, mode="auto")))


def many_steps_in_flight() -> None:
    """Nobody waits between 60 steps; each needs what the one before it brought back."""
    made = net(OPTIMIZERS["AdamW"](), LARGE)
    same(trained(made, compiled(made), 60), trained(made, compiled(made, mode="auto"), 60))


def scopes_take_turns() -> None:
    """Two Scopes on one Executor, their states read in between."""
    made = net(OPTIMIZERS["Adam"](), SHAPES)
    expected = [on_cpu(made, steps=n) for n in range(1, STEPS + 1)]
    with blocks_of_bytes(BYTES):
        program, exe, scopes = compiled(made), GpuExecutor(), [started(made) for _ in range(2)]
        for step in range(STEPS):
            for scope in scopes:
                same(trained(made, program, 1, scope, exe), expected[step])


def places_and_modes_change() -> None:
    """From the host to the card, to a CPU and back; a run that does not page takes the states to the card."""
    made = net(OPTIMIZERS["AdamW"](), SHAPES)
    with blocks_of_bytes(BYTES):
        scope, exe, paged, auto = started(made), GpuExecutor(), compiled(made), compiled(made, mode="auto")
        for number, program in enumerate((paged, auto, paged, None, paged, paged, auto), 1):
            if program is None:
                Executor().run(made[0], steps_feed(made), [], scope=scope)
            else:
                trained(made, program, 1, scope, exe)
            assert bool(on_host(scope)) == (program is paged), f"step {number}"
            same(scope, on_cpu(made, steps=number))
        moment = next(n for n in scope.list_names() if "p3_moment1" in n)
        value = trained(made, paged, 1, scope, exe).read(moment)
        found = exe.run(paged, steps_feed(made), [moment], scope=scope)[0]
        assert np.array_equal(found, scope.read(moment)) and not np.array_equal(found, value)
        shown = exe.run(paged, steps_feed(made), [moment], scope=scope, return_numpy=False)[0]
        assert np.array_equal(shown.get(), scope.read(moment)) and not np.array_equal(shown.get(), found)


def saved_and_loaded() -> None:
    """A training goes on from a checkpoint, and from a state_dict, where its graph knew other arrays."""
    made = net(OPTIMIZERS["AdamW"](), SHAPES)
    with blocks_of_bytes(BYTES), tempfile.TemporaryDirectory() as folder:
        path, program, exe = str(Path(folder) / "m"), compiled(made), GpuExecutor()
        first = trained(made, program, 2, exe=exe)
        state = made[0].state_dict(scope=first)
        with static.scope_guard(first):
            static.save(made[0], path)
        expected = trained(made, program, 2, first, exe)
        loaded, given = (trained(made, program, 3, exe=exe) for _ in range(2))
        with static.scope_guard(loaded):
            static.load(made[0], path)
        made[0].set_state_dict(state, scope=given)
        for scope in (loaded, given):
            same(trained(made, program, 2, scope, exe), expected)
            assert on_host(scope) == on_host(expected)


def faults_change_nothing(names: Iterable[str] = ("Adam", "Momentum", "Lamb")) -> None:
    """Runs with a bad index leave what is paged, with and without fetches."""
    with blocks_of_bytes(BYTES):
        each(
            (f"{name} {level}", partial(_faults, name, level)) for name in names
            for level in LEVELS
        )  # fmt: skip


def _faults(name: str, level: str | None) -> None:
    flags: dict[str, Any] = {level: True} if level else {}
    faults.agree(faults.Net(OPTIMIZERS[name]()), BuildStrategy(multi_tensor_mode="paged", **flags))


def nan_is_found() -> None:
    """check_nan_inf copies states to the card and changes nothing."""
    with blocks_of_bytes(BYTES):
        made = nan.Trained()
        strategies = [BuildStrategy(multi_tensor_mode="paged", fuse_all_optimizer_ops=True)]
        nan.nothing_changes(GpuExecutor, made, strategies)


def no_room_on_the_host() -> None:
    """One error that names the state; nothing is lost, and a run that pages nothing goes on."""
    made = net(OPTIMIZERS["AdamW"](), SHAPES)
    before, exe, scope = host_memory.available, GpuExecutor(), started(made)
    with blocks_of_bytes(BYTES):
        host_memory.available = lambda: 1 << 28
        said = ""
        try:
            exe.run(compiled(made), steps_feed(made), [], scope=scope)
        except OutOfMemoryError as error:
            said = str(error)
        finally:
            host_memory.available = before
        assert "no pinned memory of the host for p0_moment1_0" in said, said
        assert said.startswith("[MG-MEMORY-001] "), said
        same(scope, started(made))
        same(trained(made, compiled(made, mode="auto"), 2, scope, exe), on_cpu(made))
