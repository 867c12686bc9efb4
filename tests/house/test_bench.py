"""The command line of the comparisons: what it understands, and what it says in one line otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import __main__ as command
from bench import (
    busy_cpu,
    gpu_gelu,
    gpu_linear_cross_entropy,
    gpu_optimizers,
    gpu_paged,
    gpu_report,
    gpu_timing,
    harness,
    product_kernels,
)
from minigraph.kernels.cuda.matmul import hopper_product, registry
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.runtime.cuda.bind import bind_program


class Recorded:
    """A bench that keeps what it is asked for."""

    name, title, peers = "recorded", "what it was asked for", ("torch", "jax")

    def __init__(self) -> None:
        self.runs: list[tuple[list[str], int]] = []

    def missing(self) -> None:
        """It can run everywhere."""

    def run(self, peers: list[str], rounds: int, command: str, only: str = "") -> None:
        self.runs.append((peers, rounds))


@pytest.fixture
def bench(monkeypatch):
    made = Recorded()
    monkeypatch.setitem(command.BENCHES, made.name, made)
    monkeypatch.setattr(harness, "PACKAGES", {"torch": "json", "jax": "json"})
    return made


def run(monkeypatch: Any, line: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *line.split()])
    return command.main()


@pytest.mark.parametrize(
    ("line", "peers"),
    [
        ("recorded --peers torch,jax", ["torch", "jax"]), ("--peers torch,jax recorded", ["torch", "jax"]),
        ("--peers=jax recorded", ["jax"]), ("recorded", []), ("--rounds 3 recorded --peers jax", ["jax"]),
    ],
)  # fmt: skip
def test_peers_may_stand_before_and_after_what_they_are_compared_in(bench, monkeypatch, line, peers):
    assert run(monkeypatch, line) == 0
    assert bench.runs == [(peers, 3 if "--rounds" in line else 15)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("recorded --peers torch jax", "jax is a peer, not a bench; peers are joined by commas: --peers torch,jax"),
        ("--peers torch jax recorded", "jax is a peer, not a bench; peers are joined by commas: --peers torch,jax"),
        ("--peers torch", "--peers needs the name of a bench, or all, besides"),
        ("recordde", "there is no bench recordde; there are list, all, mlp_cpu, "),
    ],
)
def test_what_is_no_bench_is_said(bench, monkeypatch, capsys, line, said):
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, line)
    assert refused.value.code == 2 and said in capsys.readouterr().err and not bench.runs


@pytest.mark.parametrize("name", ["recorded", "mlp_cpu"])
def test_a_peer_that_is_not_installed_is_said_in_one_line(bench, monkeypatch, capfd, name):
    monkeypatch.setattr(harness, "PACKAGES", {"torch": "no_such_framework"})
    with pytest.raises(SystemExit, match=r"cannot run: no_such_framework is not installed: pip install no_such_fra"):
        run(monkeypatch, f"{name} --peers torch")
    assert capfd.readouterr() == ("", "") and not bench.runs


def test_the_list_has_programs_of_their_own(capsys):
    command.listed()
    shown = capsys.readouterr().out
    assert "python -m bench.kills            A training that saves after each step is killed" in shown
    assert "bench.harness" not in shown and "bench.__main__" not in shown


def test_a_reader_of_the_list_may_stop_early():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "bench", "list"], stdout=write, stderr=subprocess.PIPE, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def first_ways(case: Any, arm: str) -> list[str]:
    """What runs of each choice of an arm of a Case, by name."""
    block = Program(case.title).global_block()
    given = {n: block.create_var(n, i.shape, i.dtype, persistable=True) for n, i in case.inputs.items()}
    fetched = [v.name for v in case.programs[arm](Builder(block), given)]
    calls = bind_program(block.program, {}, fetched, tf32=case.tf32).binder.calls
    return [next(iter(c.variants)) for c in calls if hasattr(c, "variants")]


@pytest.mark.parametrize("make", [gpu_gelu.forward, gpu_gelu.input_gradient])
def test_an_arm_takes_the_kernels_for_products_that_it_names_and_no_others(make):
    before = registry.KERNELS, hopper_product.LEAST
    case = make((1024, 1024, 512), "bfloat16", False)
    assert hopper_product.NAME not in first_ways(case, "default")
    with product_kernels.only(case.kernels["ours"]):
        assert first_ways(case, "ours") == [hopper_product.NAME]
    with product_kernels.only(case.kernels["library"]):
        assert hopper_product.NAME not in first_ways(case, "library")
    assert before == (registry.KERNELS, hopper_product.LEAST)


def test_an_arm_without_a_kernel_takes_what_would_run_without_it():
    case = gpu_gelu.forward(gpu_gelu.LARGE, "bfloat16", False)
    assert first_ways(case, "default") == [hopper_product.NAME]
    with product_kernels.without(["hopper_product"]):
        assert first_ways(case, "default") == ["epilogue of bias"]
    assert first_ways(case, "default") == [hopper_product.NAME]


def test_a_row_that_fails_costs_no_other_and_each_is_written_when_it_is_there(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    written = []

    def release(torch):
        assert torch is None
        written.append([row["title"] for row in json.loads(path.read_text())["rows"]] if path.exists() else [])

    gpu, path = SimpleNamespace(facts=lambda: {"name": "a card"}, release=release), tmp_path / "recorded.json"
    report = gpu_report.report_of(Recorded(), gpu, "python -m bench recorded", 3)
    tasks = [({"title": "one"}, lambda: {"title": "one", "ms": 1}), ({"title": "two"}, lambda: {"ms": 1 // 0}),
             ({"title": "three"}, lambda: {"title": "three", "ms": 3})]  # fmt: skip
    gpu_report.measure(report, tasks, gpu, None)
    gpu_report.end(report, lambda r: f"{len(r['rows'])} rows, {r['memory']} MiB", memory=7)
    found = json.loads(path.read_text())
    assert written == [[], ["one"], ["one", "two"]]
    assert [row.get("ms") for row in found["rows"]] == [1, None, 3]
    assert found["rows"][1]["failed"].startswith("ZeroDivisionError")
    assert (found["rounds"], found["gpu"], found["memory"]) == (3, {"name": "a card"}, 7)
    assert capsys.readouterr().out == f"3 rows, 7 MiB\nwritten to {path}\n"


def test_a_run_of_some_rows_takes_their_place_on_the_same_card_only(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def run(card, only, **rows):
        gpu = SimpleNamespace(facts=lambda: {"name": card}, release=lambda torch: None)
        report = gpu_report.report_of(Recorded(), gpu, f"--only {only}", 3, only)
        gpu_report.measure(
            report, [({}, lambda t=t, ms=ms: {"title": t, "ms": ms}) for t, ms in rows.items()], gpu, None
        )
        gpu_report.end(report, lambda r: "", memory={"one": 1} if "one" in rows else {})
        found = json.loads((tmp_path / "recorded.json").read_text())
        return found, [row["ms"] for row in found["rows"]]

    assert run("a card", "", one=1, two=2)[1] == [1, 2]
    found, rows = run("a card", "two", two=3, three=4)
    assert rows == [1, 3, 4] and found["memory"] == {"one": 1} and found["command"] == "--only "
    assert [again["command"] for again in found["again"]] == ["--only two"]
    found, rows = run("another card", "two", two=5)
    assert rows == [5] and "again" not in found


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("gpu_linear_cross_entropy", gpu_linear_cross_entropy.table), ("gpu_gemm", gpu_timing.table),
        ("gpu_optimizers", partial(gpu_report.table_of, lines_of=gpu_optimizers.lines_of)),
        ("gpu_paged", partial(gpu_report.table_of, lines_of=gpu_paged.lines_of)),
    ],
)  # fmt: skip
def test_the_table_of_a_bench_shows_every_row_of_its_results(name, table):
    report = json.loads((harness.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert all(row["title"] in table(report) for row in report["rows"])


def test_means_of_turns_have_an_error_and_rows_of_a_part_replace_their_own():
    ratio, error = busy_cpu.compared([1.0, 3.0, 2.0, 2.0], [2.0, 6.0, 4.0, 4.0], 2)
    assert (ratio, error) == (2.0, 0.0)
    ratio, error = busy_cpu.compared([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 3.0, 3.0], 2)
    assert (ratio, error) == (2.0, 1.0), "turns take 2 and 6, one thread 2: half of 4 apart, in turns of 2"
    rows = [{"bench": "b", "condition": c, "ratio": r} for c, r in (("alone", 1), ("quota", 2), ("alone", 3))]
    assert [row["ratio"] for row in busy_cpu.joined(rows[:2], rows[2:])] == [3, 2]


def test_a_round_beside_other_work_is_done_again(monkeypatch):
    class Arm:
        def __init__(self, arm):
            self.arm, self.asked = arm, 0

        def ask(self, steps):
            self.asked += 1
            return [float(self.asked)] * steps

    work = iter([0.0, 1e9, 1e9, 1e9])  # before and after each round: the first one is disturbed
    monkeypatch.setattr(harness, "other_work", lambda workers: next(work))
    monkeypatch.setattr(harness.time, "sleep", lambda seconds: None)
    arms: Any = [Arm("a"), Arm("b")]
    assert harness.turns(arms, 1, 2, alone=True) == ({"a": [2.0, 2.0], "b": [2.0, 2.0]}, 1)
    assert harness.turns(arms, 1, 1, alone=False) == ({"a": [3.0], "b": [3.0]}, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_work_of_others_is_all_but_that_of_the_workers():
    class Busy:
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    worker: Any = Busy()
    try:
        ticks, own = 0, 0.0
        while ticks < 20:  # until it has worked for 0.2 s
            fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11])
            own = harness.other_work([]) - harness.other_work([worker])
        assert own > 0.1
    finally:
        worker.process.kill()
        worker.process.wait()


def test_a_report_has_a_line_for_each_fact():
    times = {"median": 0.5, "raw": [1e-07, None, *range(90)]}
    report = {"title": "[\n 1]", "milliseconds": {"ours": times, "not": {}}, "machine": {"cpu": "x", "cores": 2}}
    text = harness.in_lines(report)
    assert json.loads(text) == report
    assert '\n "machine": {"cpu": "x", "cores": 2}\n}' in text and text.count("\n") == 10
