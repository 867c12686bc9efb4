"""Branches and loops on a stub of the GPU: the host decides, and each piece between is a captured graph."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.program import unique_name
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support import control_cases, gpu_stub

pytestmark = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")

TITLES = (
    "sizes differ, true", "a parameter in one, true", "a state is written, true", "a branch in a branch, true",
    "switch list 1", "a parameter in each round", "as long as it is small", "an outer value", "no round",
)  # fmt: skip


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    mg.set_default_dtype("float64")
    return gpu_stub.installed(monkeypatch)


def runs(case, place, times):
    """The values of several runs in a scope of their own, and the program."""
    with unique_name.guard():
        main, startup, wanted = control_cases.build(mg, case)
    scope, exe = Scope(), Executor(place)
    exe.run(startup, scope=scope)
    feed = {f"x{i}": a for i, a in enumerate(case[1])}
    fetches = [v for v in wanted if v is not None]
    return [exe.run(main, feed=feed, fetch_list=fetches, scope=scope) for _ in range(times)], main


@pytest.mark.parametrize("title", TITLES)
def test_results_are_those_of_a_cpu(title):
    case = control_cases.cases()[title]
    ours, _ = runs(case, mg.CUDAPlace(0), 3)
    expected, _ = runs(case, mg.CPUPlace(), 3)
    for a, b in zip(ours, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_each_piece_and_each_block_becomes_a_graph_and_explain_says_where_the_host_decides(stub):
    case = control_cases.cases()["a parameter in one, true"]
    _, main = runs(case, mg.CUDAPlace(0), 3)
    assert len(stub.captures) >= 3, "before, in and behind the branch"
    cuts = [op.type for op, text in main.notes if text.startswith("the host decides here")]
    assert cuts == ["cond", "cond"], "the branch and its gradient"


def test_nan_inside_a_block_is_found():
    main = mg.static.Program("main")
    with unique_name.guard(), mg.static.program_guard(main, mg.static.Program()):
        x = mg.static.data("x", [3], "float64")
        out = mg.static.nn.cond(mg.sum(x) > 0, lambda: mg.log(x - 2.0), lambda: x * 2.0) + 1.0
    compiled = mg.static.CompiledProgram(main, mg.static.BuildStrategy(check_nan_inf=True))
    exe = Executor(mg.CUDAPlace(0))
    np.testing.assert_array_equal(exe.run(compiled, feed={"x": -np.ones(3)}, fetch_list=[out])[0], -np.ones(3))
    with pytest.raises(mg.errors.NonFiniteError, match="log"):
        exe.run(compiled, feed={"x": np.ones(3)}, fetch_list=[out])


def test_arrays_of_the_device_are_fed_and_given_back(stub):
    case = control_cases.cases()["one result, true"]
    main, _, wanted = control_cases.build(mg, case)
    array = stub.to_device(case[1][0])
    found = Executor(mg.CUDAPlace(0)).run(main, feed={"x0": array}, fetch_list=wanted, return_numpy=False)
    assert all(isinstance(a, gpu_stub.StubArray) for a in found)
    np.testing.assert_allclose(found[0].get(), case[1][0] ** 2)
