"""The report of a bench on a GPU: rows that are measured one after the other, in bench/results/<name>.json."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .harness import RESULTS, versions

Row = dict[str, Any]
Task = tuple[Row, Callable[[], Row]]  # what names a row where it cannot be measured, and what measures it


def report_of(bench: Any, gpu: Any, command: str, rounds: int) -> dict[str, Any]:
    """What every report says besides its rows, which are none yet."""
    return {
        "bench": bench.name, "title": bench.title, "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "gpu": gpu.facts(),
        "versions": versions(), "rounds": rounds, "rows": [],
    }  # fmt: skip


def measure(report: dict[str, Any], tasks: Iterable[Task], gpu: Any, torch: Any) -> None:
    """Add the rows; each is written when it is there, since a run may be cut off."""
    for named, task in tasks:
        try:
            report["rows"].append(task())
        except Exception as problem:  # one row must not cost the others; it stands in the table
            report["rows"].append({**named, "failed": f"{type(problem).__name__}: {problem}"[:400]})
        gpu.release(torch)
        _write(report)


def end(report: dict[str, Any], table: Callable[[Mapping[str, Any]], str], **facts: Any) -> None:
    """Write the report with `facts` at its end, and print its table."""
    report |= {"versions": versions(), **facts}  # arms import packages
    path = _write(report)
    print(table(report))
    print(f"written to {path}")


def _write(report: Mapping[str, Any]) -> Any:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{report['bench']}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return path
