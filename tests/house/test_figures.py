"""README's figures are those of bench/results."""

from __future__ import annotations

from bench.figures import BEGIN, END, README, table


def test_the_table_in_readme_is_made_from_the_results():
    text = README.read_text(encoding="utf-8")
    assert BEGIN + text.partition(BEGIN)[2].partition(END)[0] + END == table()
