"""Feeds that change their size on a GPU: after a few sizes nothing needs the compiler. On a stub that runs nothing."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from bench import changing_shapes
from minigraph.kernels.cuda.record.binder import Device
from minigraph.kernels.cuda.record.workspace import Algorithm, settling
from minigraph.kernels.cuda.tensor_cores import hopper
from minigraph.runtime import kernel_list
from minigraph.runtime.cuda.sizes import Siblings, likely
from minigraph.types import TensorType, float32, int64
from tests.support import gpu_stub


class StillLauncher(gpu_stub.StubLauncher):
    """Its calls do nothing."""

    def kernel(self, *facts, **more):
        return lambda: None

    copy = fill = product = kernel


class StillRuntime(gpu_stub.StubRuntime):
    """An H200 that is told what to compile, and computes nothing."""

    device = Device()
    launcher = StillLauncher

    def captured(self, parts, loosened=False):
        return lambda: None


@pytest.fixture
def still(monkeypatch):
    made = StillRuntime()
    answers = {"why_not": lambda: None, "device_count": lambda: 1, "runtime": lambda place: made,
               "device_array": lambda value: None}  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(f"minigraph.cuda.{name}", answer)
    monkeypatch.setattr(hopper.TensorMap, "packed", lambda self: np.zeros(hopper.MAP_WORDS, np.uint64))
    yield made
    mg.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("model", ["mlp", "block"])
def test_after_three_sizes_nothing_is_compiled_but_for_a_few_narrow_bands(still, model):
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()), mg.static.scope_guard(mg.static.Scope()):
        step, given = changing_shapes.minigraph_step(model, "gpu"), changing_shapes.feeds(model)
        sizes = list(dict.fromkeys([changing_shapes.LARGEST[model], *map(int, changing_shapes.sizes(model))]))
        assert len(sizes) == changing_shapes.SIZES
        for n in sizes[:4]:
            step(*given(n))
        few = len(still.known)
        still.compiled = 0
        for n in sizes[4:]:
            step(*given(n))
    assert still.compiled <= 0.05 * few


def test_no_batch_takes_more_memory_than_the_largest(still, monkeypatch):
    """Not either where the library wants as much room to work in as it is offered."""
    all_of_it = settling(lambda call: Algorithm(call.workspace.nbytes, b"any"))
    monkeypatch.setattr(gpu_stub.StubRuntime, "settling", lambda self, *_: all_of_it)
    rooms, own = [], gpu_stub.StubRuntime.allocate
    monkeypatch.setattr(StillRuntime, "allocate", lambda self, nbytes: rooms.append(nbytes) or own(self, nbytes))

    def taken(*sizes: int) -> int:
        rooms.clear()
        main, startup, scope = mg.static.Program(), mg.static.Program(), mg.static.Scope()
        with mg.static.program_guard(main, startup), mg.static.scope_guard(scope):
            step, given = changing_shapes.minigraph_step("mlp", "gpu"), changing_shapes.feeds("mlp")
            for n in sizes:
                step(*given(n))
        return sum(rooms)

    assert taken(256, 1, 2, 9, 16, 17, 40, 255) <= 1.05 * taken(256)


@pytest.mark.parametrize("mode", ["auto", "paged"])
def test_all_that_a_run_compiles_stands_in_its_list_of_kernels(still, monkeypatch, tmp_path, mode):
    """So that a list's `compile()` leaves nothing to the first step; one call streams all states that are paged."""
    listed = {}
    monkeypatch.setattr(kernel_list, "ship", lambda sources, arch, folder: listed.update({arch: set(sources)}))
    mg.set_float32_matmul_precision("high")
    x, y = mg.static.data("x", [None, 64, 768]), mg.static.data("y", [None, 64, 1], "int64")
    h = mg.nn.functional.gelu(mg.nn.Linear(768, 3072)(mg.nn.LayerNorm(768)(x)))
    loss = mg.nn.functional.cross_entropy(mg.nn.Linear(3072, 768)(h), y)
    mg.optimizer.AdamW(1e-3).minimize(loss)
    strategy = mg.static.BuildStrategy.all(multi_tensor_mode=mode)
    step = mg.static.CompiledProgram(mg.static.default_main_program(), strategy)
    feed = {"x": np.ones((4, 64, 768), np.float32), "y": np.zeros((4, 64, 1), np.int64)}
    exe = mg.static.Executor(mg.CUDAPlace(0))
    exe.run(mg.static.default_startup_program())
    before = set(still.known)
    exe.run(step, feed, [loss])
    count = step.kernels(feed, [loss]).compile(tmp_path)
    assert listed == {"sm_90a": {source for source, _ in still.known - before}} and count == len(listed["sm_90a"])


def test_how_many_threads_share_a_row_is_no_text_of_a_kernel(still):
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [None, None])
        out = [mg.sum(x, axis=axis) for axis in (0, 1)]
    exe = mg.static.Executor(mg.CUDAPlace(0))
    for rows, columns in ((40, 8), (40, 4096), (300, 16), (9, 64), (2000, 128), (77, 256), (64, 400), (60, 32)):
        exe.run(main, {"x": np.ones((rows, columns), np.float32)}, out)
    functions = [function for _, function in still.known]
    assert functions.count("rows") == 2, "a block shares a row, or a part of a warp"


def feeds(**shapes):
    return {name: TensorType(shape, int64 if name == "y" else float32) for name, shape in shapes.items()}


def test_likely_sizes_lie_on_a_line_through_those_that_came():
    siblings = Siblings()
    for n in (32, 8, 64, 16):
        siblings.met(feeds(x=(4, n + 1, 3), y=(4, n)))
    assert [f["y"].shape for f in siblings.ends] == [(4, 8), (4, 64)] and siblings.plans == 4
    found = likely(*siblings.ends)
    assert all(f["x"].shape == (4, f["y"].shape[1] + 1, 3) and f["y"].dtype == int64 for f in found)
    lengths = {f["x"].shape[1] for f in found}
    assert {2, 4, 8, 16, 32} <= lengths and any(n % 2 for n in lengths) and max(lengths) <= 65
    assert likely(feeds(x=(4, 3)), feeds(x=(4, 3))) == []


def test_kernels_are_made_ahead_once_and_not_before_the_third_size():
    asked = []

    def bind(given):
        asked.append(given)
        raise mg.errors.ShapeError("these do not fit together")

    siblings = Siblings()
    for n in (5, 8, 64):
        assert asked == []
        siblings.met(feeds(x=(n, 3)))
        assert siblings.kernels_ahead(bind) == []
    assert len(asked) > 5
    count = len(asked)
    siblings.met(feeds(x=(9, 3)))
    assert siblings.kernels_ahead(bind) == [] and len(asked) == count
