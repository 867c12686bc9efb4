"""The figures of README and bench/README are those of bench/results."""

from __future__ import annotations

import pytest

from bench.figures import (
    BEGIN,
    BENCH_README,
    END,
    HEADLINES,
    README,
    SECTIONS,
    figures,
    main,
    pages,
)


@pytest.mark.parametrize("page", [README, BENCH_README], ids=["README", "bench/README"])
def test_the_tables_of_a_page_are_made_from_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert BEGIN + text.partition(BEGIN)[2].partition(END)[0] + END == pages()[page]


def test_every_figure_has_its_section_and_the_headlines_are_eight():
    assert {f.file for f in figures()} == {f"{file}.json" for file in SECTIONS}
    assert len(HEADLINES) == 8


def test_writing_them_changes_nothing_else(tmp_path, monkeypatch):
    copies = []
    for name, page in (("README", README), ("BENCH_README", BENCH_README)):
        copy = tmp_path / f"{name}.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        copy.write_text(f"{before}{BEGIN}\nold\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        monkeypatch.setattr(f"bench.figures.{name}", copy)
        copies.append((copy, page))
    assert main() == 0
    assert all(copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8") for copy, page in copies)
