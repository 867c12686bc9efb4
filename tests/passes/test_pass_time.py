"""Compilation is linear in the number of operators: to the Graph, each pass, verification, and back.

Counted are the calls of Python functions and the lines that they run, which no load of the machine changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from cProfile import Profile
from typing import Any

import pytest

import minigraph as mg
from minigraph.compiler.strategy import BuildStrategy
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.graph import Graph
from minigraph.ir.verify import verify, verify_changes
from minigraph.passes.engine.log import PassReport
from minigraph.program import unique_name
from tests.fuzz import STEPS_OF
from tests.support.counted_work import check_proportion, lines

FEW, FACTOR = 12, 4  # blocks of the small program, and how many times as many the large one has


def program(blocks: int) -> tuple[mg.static.Program, str]:
    """A chain of linear layers with material for every pass, its gradients and updates."""
    main, startup = mg.static.Program(), mg.static.Program()
    f = mg.nn.functional
    with mg.static.program_guard(main, startup), unique_name.guard():
        h = mg.static.data("x", [None, 8])
        for _ in range(blocks):
            h = f.layer_norm(h + f.relu(mg.nn.Linear(8, 8)(h)), [8])
            weight = mg.static.create_parameter([8, 8], "float32")
            h = mg.matmul(f.gelu(mg.nn.Linear(8, 8)(h)), mg.transpose(weight, [1, 0]))
            h = mg.cast(mg.cast(h, "float64"), "float32") * mg.exp(mg.full([8], 0.1)) + mg.tanh(h) * mg.tanh(h)
            h = mg.transpose(mg.transpose(h, [1, 0]), [1, 0])
            mg.mean(f.dropout(h, 0.1))  # nobody reads it
        loss = mg.mean(h)
        mg.optimizer.AdamW(1e-3).minimize(loss)
    return main, loss.name


def compiled(main: mg.static.Program, fetch: str, note: Callable[[str, Callable[[], Any]], Any]) -> None:
    """What a CompiledProgram does, each part handed to `note`."""
    graph: Graph = note("to_graph", lambda: to_graph(main, [fetch]))
    note("verify", lambda: verify(graph))
    for flag, step in STEPS_OF.items():
        if step.in_all:
            options = {name: getattr(BuildStrategy(), name) for name in step.options}
            note(flag, lambda s=step, o=options: s.apply(graph, PassReport(s.flag), **o))
            note(f"{flag}, verified", lambda f=flag: verify_changes(graph, f))
    note("to_program", lambda: to_program(graph, main))


@pytest.fixture(scope="module")
def programs() -> list[tuple[mg.static.Program, str]]:
    return [program(FEW), program(FEW * FACTOR)]


def test_calls_grow_as_operators_do(programs):
    counts: list[Counter[str]] = []
    for main, fetch in programs:
        calls: Counter[str] = Counter()

        def counted(part: str, run: Callable[[], Any], calls: Counter[str] = calls) -> Any:
            profile = Profile(builtins=False)  # counts by itself: a function of ours would take most of the time
            try:
                return profile.runcall(run)
            finally:
                calls[part] += sum(entry.callcount for entry in profile.getstats())

        compiled(main, fetch, counted)
        counts.append(calls)
    operators = len(programs[1][0].ops) / len(programs[0][0].ops)
    few, many = counts
    growth = {part: many[part] / few[part] for part in many if few[part] > 1000}
    assert {part: round(g, 2) for part, g in growth.items() if g > 1.15 * operators} == {}
    assert len(growth) >= 8


def test_lines_grow_as_operators_do(programs):
    """Loops inside of one call, too."""
    few, many = (
        lines(lambda m=main, f=fetch: mg.static.CompiledProgram(m, BuildStrategy.all()).program_for([f]))
        for main, fetch in programs
    )
    check_proportion(few, many, len(programs[1][0].ops) / len(programs[0][0].ops))


def test_every_pass_finds_something(programs):
    """Else its growth would say nothing."""
    main, fetch = programs[0]
    chosen = mg.static.CompiledProgram(main, BuildStrategy.all())
    chosen.program_for([fetch])
    said = chosen.explain()
    for flag in ("constant_folding", "dead_code_elimination", "common_subexpression_elimination",
                 "remove_redundant_cast", "remove_redundant_transpose", "fuse_matmul_transpose",
                 "fuse_gemm_epilogue", "fuse_elementwise"):  # fmt: skip
        line = next(line for line in said.splitlines() if line.startswith(flag))
        assert int(line.split()[1]) >= FEW - 1, line
