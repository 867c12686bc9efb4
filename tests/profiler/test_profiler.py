"""Profiler: what it listens to, its sums, its trace; calls of a GPU on a stub of one."""

from __future__ import annotations

import json
import threading
from itertools import pairwise

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import FeedError, ProgramError
from minigraph.kernels.cpu import peaks as cpu_peaks
from minigraph.kernels.peaks import Peaks
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.inspect.profile import starts
from minigraph.runtime.cuda.layout.graph_streams import OnStream
from minigraph.static import BuildStrategy, CompiledProgram, Executor
from tests.gpu import profile as gpu_profile
from tests.gpu.capture import Case, same, trace
from tests.support import gpu_stub

ROWS, WIDTH = 4, 8


@pytest.fixture(scope="module")
def net():
    """(program, loss, scope) of two layers in name scopes with SGD."""
    main, startup = mg.static.Program("net"), mg.static.Program("start")
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        h = mg.static.data("x", [None, WIDTH])
        for name in ("first", "second"):
            with mg.static.name_scope(name):
                h = mg.nn.Linear(WIDTH, WIDTH)(h)
        loss = mg.mean(h)
        mg.optimizer.SGD(0.1).minimize(loss)
    scope = Scope()
    Executor().run(startup, scope=scope)
    return main, loss, scope


def profiled(net, runs: int = 3, **flags):
    main, loss, scope = net
    exe = Executor()
    program = CompiledProgram(main, BuildStrategy(**flags)) if flags else main
    with mg.profiler.Profiler() as profile:
        for _ in range(runs):
            exe.run(program, {"x": np.ones((ROWS, WIDTH), "float32")}, [loss], scope=scope)
    exe.run(program, {"x": np.ones((ROWS, WIDTH), "float32")}, [loss], scope=scope)
    return profile


def test_every_operator_has_a_row_with_what_it_costs(net):
    profile = profiled(net)
    assert len(profile.runs) == 3  # the run behind the block is not one of them
    rows = profile.rows()
    assert len(rows) == len(net[0].ops)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    product = next(row for row in rows if row.name == "matmul linear_1.tmp_0")
    assert product.flops == 2 * ROWS * WIDTH * WIDTH
    assert product.nbytes == 4 * (2 * ROWS * WIDTH + WIDTH * WIDTH)
    assert product.layer == "first" and "test_profiler.py" in product.line
    grads = {row.layer: row for row in rows if row.type == "matmul_grad"}
    assert grads["second"].flops == 2 * product.flops
    assert grads["first"].flops == product.flops, "the gradient of a data variable is not computed"


@pytest.mark.parametrize("by", ["type", "line", "layer"])
def test_sums_hold_every_operator_once(net, by):
    profile = profiled(net)
    rows, sums = profile.rows(), profile.rows(by)
    assert sum(row.operators for row in sums) == len(rows)
    assert sum(row.seconds for row in sums) == pytest.approx(sum(row.seconds for row in rows))
    assert sum(row.flops for row in sums) == sum(row.flops for row in rows)
    names = {row.name for row in sums}
    assert len(names) == len(sums)
    assert {"layer": "first", "type": "matmul", "line": rows[0].line}[by] in names


def test_times_are_medians_and_the_roofline_counts_the_larger_bound(net, monkeypatch):
    profile = profiled(net)
    monkeypatch.setattr(type(profile), "peaks", lambda self: {r.device: PEAKS for r in self.runs})
    row = next(row for row in profile.rows() if row.name == "matmul linear_1.tmp_0")
    calls = [call for run in profile.runs for call in run.calls]
    times = [call.seconds for call in calls if call.op.output_arg_names == ["linear_1.tmp_0"]]
    assert row.seconds == sorted(times)[1]
    assert row.roofline == pytest.approx(max(row.flops / 1e6, row.nbytes / 1e3) / row.seconds)


PEAKS = Peaks("invented", 1e3, {"float32": 1e6}, "a test")


def test_peaks_that_are_not_known_give_no_share():
    assert PEAKS.share(1.0, 10**6, 0, "float32") == 1
    assert PEAKS.share(2.0, 0, 1000, "int64") == 0.5
    assert PEAKS.share(1.0, None, None, "float32") is None
    assert Peaks("", 0, {}, "").share(1.0, 1, 1, "float32") is None
    assert str(PEAKS) == "invented: 0.0 GFLOP/s float32, 0.0 GB/s; a test"


def test_peaks_of_a_cpu_are_measured():
    found = cpu_peaks.peaks()
    assert found.bandwidth > 1e6 and found.flops["float64"] > 1e6


def test_the_table_says_what_it_does_not_show(net):
    profile = profiled(net, fuse_gemm_epilogue=True)
    lines = profile.table(most=2).splitlines()
    assert lines[0].startswith("3 runs of net on CPU: ")
    assert lines[-1] == f"{len(profile.rows()) - 2} more rows"
    assert "kernels" not in lines[2]  # a CPU has none
    assert "fused_gemm_epilogue" in str(profile)
    assert "&lt;" not in profile._repr_html_() and "by layer" in profile._repr_html_()
    with pytest.raises(ProgramError, match="'lines' is no way to sum up"):
        profile.rows("lines")


def test_nothing_that_ran_is_an_empty_table():
    with mg.profiler.Profiler() as profile:
        pass
    assert str(profile).startswith("0 runs of nothing: 0.000 ms")


def test_a_trace_has_every_operator_of_every_run(net, tmp_path):
    profile = profiled(net, runs=2)
    events = json.loads(profile.write_trace(tmp_path / "sub" / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    work = [e for e in events if e["ph"] == "X"]
    assert len(work) == 2 * len(net[0].ops)
    for before, after in pairwise(work):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.002
    assert {e["args"]["run"] for e in work} == {0, 1}
    with pytest.raises(ProgramError, match="cannot be written"):
        profile.write_trace(tmp_path / "sub" / "t.json" / "no")


def test_runs_of_other_threads_and_failed_runs_are_not_told(net):
    main, loss, scope = net
    feed = {"x": np.ones((ROWS, WIDTH), "float32")}
    with mg.profiler.Profiler() as outer, mg.profiler.Profiler() as profile:
        thread = threading.Thread(target=lambda: Executor().run(main, feed, [loss], scope=scope))
        thread.start()
        thread.join()
        with pytest.raises(FeedError):
            Executor().run(main, {"x": np.ones((ROWS, WIDTH + 1), "float32")}, [loss], scope=scope)
        Executor().run(main, feed, [loss], scope=scope)
    assert (len(profile.runs), len(outer.runs)) == (1, 0)


def test_a_call_begins_when_its_stream_and_its_waits_have_ended():
    calls = [OnStream(7, 0, []), OnStream(3, 1, []), OnStream(4, 0, [3]), OnStream(9, 1, [])]
    assert starts(calls, {7: 1.0, 3: 5.0, 4: 1.0}) == {7: 0, 3: 0, 4: 5, 9: 5}


class TestOnAStubOfAGpu:
    pytestmark = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="kernels on a CPU need g++")

    @pytest.fixture(autouse=True)
    def stub(self, monkeypatch):
        return gpu_stub.installed(monkeypatch)

    def test_looking_changes_no_result(self):
        gpu_profile.results_are_the_same()

    def test_the_calls_of_a_captured_step_are_timed_and_its_graph_is_kept(self, stub):
        case = Case()
        exe, scope = Executor(mg.CUDAPlace(0)), case.scope()
        before = trace(case, case.program, exe, scope, 2)
        with mg.profiler.Profiler() as profile:
            trace(case, case.program, exe, scope, 2)
        trace(case, case.program, exe, scope, 2)
        assert len(stub.captures) == 1
        assert not same(before, trace(case, case.program, exe, scope, 2))  # it trains
        (run, _), rows = profile.runs, profile.rows()
        assert {call.stream for call in run.calls} == {0, 1}
        assert all(call.kernel is not None for call in run.calls)
        total = sum(range(1, len(run.calls) + 1))  # the stub's times are 1, 2, 3, ...
        assert sum(row.seconds for row in rows) == total
        grads = next(row for row in rows if row.type == "matmul_grad")
        assert len(grads.kernels) >= 2 and "tanh" in profile.table("type")
        names = {e["name"] for e in json.loads(json.dumps(mg.profiler.trace.events(profile.runs))) if e["ph"] == "X"}
        assert any(name.startswith("product ") and " of matmul " in name for name in names)
