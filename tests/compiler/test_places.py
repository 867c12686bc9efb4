"""For which kind of place a program is compiled: that of who runs it or looks at it, else the default device."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler.rewrite import rewrite
from minigraph.program import unique_name
from tests.support import gpu_stub
from tests.support.report_pages import facts_in

FEED = {"x": np.ones((4, 8), "float32")}


def made(**flags):
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup), unique_name.guard():
        loss = mg.mean(mg.nn.Linear(8, 4)(mg.static.data("x", [None, 8], "float32")))
        mg.optimizer.SGD(0.1).minimize(loss)
    return mg.static.CompiledProgram(main, mg.static.BuildStrategy.all(**flags)), startup, loss


def place_of(compiled):
    """The kind of place of which explain() speaks."""
    (line,) = [line for line in compiled.explain().splitlines() if line.startswith("compiled for ")]
    return line.split()[-1]


@pytest.fixture
def stub(monkeypatch):
    if gpu_stub.cuda_host.COMPILER is None:
        pytest.skip("kernels on a CPU need g++")
    gpu_stub.installed(monkeypatch)


@pytest.fixture
def default_gpu(stub):
    mg.set_device("gpu:0")
    yield
    mg.set_device("cpu")


@pytest.mark.usefixtures("stub")
def test_that_of_the_executor():
    compiled, startup, loss = made()
    for place in (mg.CUDAPlace(0), mg.CPUPlace(), mg.CUDAPlace(0)):
        exe, scope = mg.static.Executor(place), mg.static.Scope()
        exe.run(startup, scope=scope)
        exe.run(compiled, FEED, [loss], scope=scope)
        assert place_of(compiled) == type(place).__name__
    compiled.program_for([], place=mg.CPUPlace())
    exe.prepare(compiled, {"x": [4, 8]}, [loss], scope=scope)
    assert place_of(compiled) == "CUDAPlace"


@pytest.mark.usefixtures("default_gpu")
def test_else_the_default_device():
    compiled, _, _ = made()
    assert place_of(compiled) == "CUDAPlace"
    mg.set_device("cpu")
    assert place_of(compiled) == "CUDAPlace", "the latest one"
    compiled.program_for([])
    assert place_of(compiled) == "CPUPlace"


@pytest.mark.usefixtures("default_gpu")
def test_rewrites_before_gradients_weigh_for_the_default_device():
    seen = []
    for device in ("gpu:0", "cpu"):
        mg.set_device(device)
        main = mg.static.Program()
        with mg.static.program_guard(main, mg.static.Program()):
            mg.tanh(mg.static.data("x", [4], "float32"))
        rewrite(main, [lambda graph, report: seen.append(graph.on_gpu) or 0])
    assert seen == [True, False]


def test_those_of_several_ranks():
    compiled, startup, loss = made()
    ranks = compiled.with_data_parallel(loss.name, places=[mg.CPUPlace(), mg.CPUPlace()])
    ranks.program_for([loss.name], place=mg.CUDAPlace(0))
    exe, scope = mg.static.Executor(), mg.static.Scope()
    exe.run(startup, scope=scope)
    exe.run(ranks, FEED, [loss], scope=scope)
    assert place_of(ranks) == "CPUPlace"


def test_that_of_a_report():
    compiled, _, loss = made()
    compiled.memory_report({"x": [4, 8]}, [loss])
    assert place_of(compiled) == "CUDAPlace"
    compiled.kernels({"x": [4, 8]}, [loss])
    assert place_of(compiled) == "CUDAPlace"
    compiled.memory_report({"x": [4, 8]}, [loss], mg.CPUPlace())
    assert place_of(compiled) == "CPUPlace"
    assert compiled.reports is not None and place_of(compiled) == "CPUPlace"


@pytest.mark.parametrize("kind", ["CPUPlace", "CUDAPlace"])
def test_a_page_shows_the_memory_of_the_program_that_it_shows(tmp_path, kind):
    compiled, _, loss = made()
    place = {"CPUPlace": mg.CPUPlace(), "CUDAPlace": mg.CUDAPlace(0)}
    compiled.program_for([loss.name], place=place[kind])
    page = compiled.report(tmp_path / "a.html", {"x": [4, 8]})
    assert facts_in(page.read_text(encoding="utf-8"))["memory"]["place"] == str(place[kind])
    assert place_of(compiled) == kind
    for other, at in place.items():
        page = compiled.report(tmp_path / "b.html", {"x": [4, 8]}, place=at)
        assert facts_in(page.read_text(encoding="utf-8"))["memory"]["place"] == str(at)
        assert place_of(compiled) == other


def test_the_history_is_of_the_same_compilation():
    compiled, _, loss = made()
    for place in (mg.CUDAPlace(0), mg.CPUPlace()):
        program = compiled.program_for([loss.name], place=place)
        assert str(compiled.at(len(compiled.history))) == str(program)
