"""Passes on programs in text: fixtures/<pass>.txt holds titled programs before and after.

    ==== title
    program ...
    ---- after         left out where the program must not change
    program ...
    ---- refused       left out where nothing is refused
    Rule: reason

The text after the pass is compared, and both programs are run on made-up numbers. To add a case,
write the program, let the test fail, and read with care what it shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from minigraph.compiler.strategy import PASSES, BuildStrategy
from minigraph.compiler.validate import validate
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.program.text.dump import dump

FOLDER = Path(__file__).parent / "fixtures"


class Case(NamedTuple):
    """One title of a fixture file."""

    flag: str
    title: str
    before: str
    after: str | None
    refused: list[str]


def read(flag: str) -> list[Case]:
    """The cases of a pass."""
    path, cases = FOLDER / f"{flag}.txt", []
    head, *blocks = path.read_text(encoding="utf-8").split("==== ")
    assert not head.strip() and blocks, f"{path} starts with a title"
    for block in blocks:
        title, _, body = block.partition("\n")
        before, *sections = body.strip().split("\n---- ")
        named = {name: text for name, _, text in (s.partition("\n") for s in sections)}
        assert named.keys() <= {"after", "refused"}, f"{title}: {sorted(named)}"
        cases.append(Case(flag, title, before, named.get("after"), named.get("refused", "").splitlines()))
    return cases


STEPS = {step.flag: step for step in PASSES}
CASES = [case for flag in STEPS for case in read(flag)]


def test_titles_are_unique():
    titles = [(c.flag, c.title) for c in CASES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.flag}: {c.title}")
def test_fixture(case):
    before = parse(case.before, case.title)
    assert dump(before) == case.before, "the program's text is not in canonical form"
    graph, report = to_graph(before), PassReport(case.flag)
    step = STEPS[case.flag]
    applied = step.apply(graph, report, **{name: getattr(BuildStrategy(), name) for name in step.options})
    verify(graph, case.flag)
    after = to_program(graph, before)

    expected = parse(case.after or case.before)
    assert dump(after) == dump(expected)
    assert first_difference(after, expected) is None
    assert [f"{r.rule}: {r.reason}" for r in report.refused] == case.refused
    assert bool(applied) == (case.after is not None) == bool(report.applied)
    assert applied or case.refused, "a case applies a rule or shows why not"
    assert all(r.site is not None and r.site.filename == case.title for r in report.refused)

    assert validate(before, after, case.flag, before.fetched, step.rounds, step.mends) is None
    assert validate(before, expected, case.flag, before.fetched, step.rounds, step.mends) is None
