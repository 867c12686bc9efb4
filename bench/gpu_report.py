"""The report of a bench on a GPU: rows that are measured one after the other, in bench/results/<name>.json.

A run of some rows (`--only`) takes the place of these in the report of the same GPU. The others stay; each row has its
date, and `again` says what such runs were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import harness
from .harness import now, versions, write_report

NAMES = ("title", "job", "training")  # what tells rows apart
Row = dict[str, Any]
Task = tuple[Row, Callable[[], Row]]  # what names a row where it cannot be measured, and what measures it


def report_of(bench: Any, gpu: Any, command: str, rounds: int, only: str = "") -> dict[str, Any]:
    """What every report says besides its rows, which are none yet; of a run of some rows the report as it was."""
    run = {"command": command, "date": now(), "gpu": gpu.facts(), "versions": versions(), "rounds": rounds}
    before = _read(bench.name) if only else {}
    if before.get("gpu", {}).get("name") == run["gpu"]["name"]:
        return before | {"again": [*before.get("again", []), run]}
    return {"bench": bench.name, "title": bench.title, **run, "rows": []}


def measure(report: dict[str, Any], tasks: Iterable[Task], gpu: Any, torch: Any) -> None:
    """Add the rows; each is written when it is there, since a run may be cut off."""
    for named, task in tasks:
        start = now()
        try:
            row = task()
        except Exception as problem:  # one row must not cost the others; it stands in the table
            row = {**named, "failed": f"{type(problem).__name__}: {problem}"[:400]}
        put(report["rows"], row | {"date": start})
        gpu.release(torch)
        write_report(report)


def end(report: dict[str, Any], table: Callable[[Mapping[str, Any]], str], **facts: Any) -> None:
    """Write the report with `facts` at its end, and print its table. A run of some rows changes no fact to nothing."""
    run = report["again"][-1] if "again" in report else report
    run["versions"] = versions()  # arms import packages
    report |= {name: fact for name, fact in facts.items() if fact or name not in report}
    path = write_report(report)
    print(table(report))
    print(f"written to {path}")


def headline(report: Mapping[str, Any]) -> str:
    """The first line of a table."""
    return f"{report['title']}, {report['gpu']['name']}; median of {report['rounds']} turns"


def table_of(report: Mapping[str, Any], lines_of: Callable[[Row], Iterator[str]]) -> str:
    """A table with the lines of each row, or the reason why there are none."""
    lines = [headline(report)]
    for row in report["rows"]:
        lines += [f"{row['title']}: FAILED {row['failed']}"] if "failed" in row else lines_of(row)
    return "\n".join(lines)


def medians(row: Row) -> dict[str, float]:
    """Milliseconds of each arm."""
    return {name: figures["median"] for name, figures in row["milliseconds"].items()}


def put(rows: list[Row], row: Row) -> None:
    """Add a row: in place of the row of the same name, else at the end."""
    named = [tuple(r.get(key) for key in NAMES) for r in (*rows, row)]
    place = named.index(named[-1])
    rows[place : place + 1] = [row]


def _read(name: str) -> dict[str, Any]:
    path = harness.RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}
