"""Sums of everything, split in two so that the first joins the kernel before it; what is refused stands in fixtures."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.passes.elementwise import split_reductions
from minigraph.runtime.cuda.bind import bind_program
from minigraph.types import TensorType, float32
from tests.fuzz import Different, check
from tests.support.random_programs import random_program

FLAGS = ("fuse_elementwise",)
WITHIN = 60


@pytest.fixture
def short_rows(monkeypatch):
    """Rows of one element are split off, too."""
    pays, found = split_reductions._pays, []
    monkeypatch.setattr(split_reductions, "LEAST", 1)
    monkeypatch.setattr(split_reductions, "_pays", lambda op: found.append(pays(op)) or found[-1])
    return found


def test_random_programs_compute_the_same(short_rows):
    for seed in range(WITHIN):
        check(random_program(seed), [FLAGS])
    assert sum(short_rows) > WITHIN


def means_of_sums(patch):
    class Wrong(split_reductions.GraphBuilder):
        def emit(self, op_type, *args, **kwargs):
            return super().emit("reduce_sum", *args, **kwargs)

    patch.setattr(split_reductions, "GraphBuilder", Wrong)


def test_planted_defect_is_seen(short_rows, monkeypatch):
    means_of_sums(monkeypatch)
    for seed in range(WITHIN):
        try:
            check(random_program(seed), [FLAGS])
        except Different:
            return
    pytest.fail(f"{WITHIN} programs did not show it")


def loss(shape, flags):
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = (mg.static.data(name, list(shape), "float32") for name in "xy")
        out = mg.mean(mg.square(x - y))
    return mg.static.CompiledProgram(main, mg.static.BuildStrategy(**flags)), out


def test_float32_errs_no_more_than_without():
    shape, rng = (300, 700), np.random.default_rng(1)
    feeds = {name: rng.normal(3, 1, shape).astype("float32") for name in "xy"}
    exact = np.mean((feeds["x"].astype(float) - feeds["y"].astype(float)) ** 2)
    errors = []
    for on in (False, True):
        program, out = loss(shape, {"fuse_elementwise": on})
        (found,) = mg.static.Executor(mg.CPUPlace()).run(program, feeds, [out])
        errors.append(abs(float(found) - exact) / exact)
    assert errors[1] <= 2 * max(errors[0], float(np.finfo("float32").eps))


def test_one_kernel_computes_and_sums_rows():
    shape = (512, 768)
    program, out = loss(shape, {"fuse_elementwise": True})
    types = {name: TensorType(shape, float32) for name in "xy"}
    launches = [c for c in bind_program(program.program_for([out.name]), types, [out.name]).binder.calls
                if isinstance(c, Launch)]  # fmt: skip
    assert launches[0].function == "fused_rows"
    assert {c.function for c in launches[1:]} == {"rows"}
