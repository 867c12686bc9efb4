"""Profiler: times of what runs inside a `with` block.

    with mg.profiler.Profiler() as p:
        for batch in batches:
            exe.run(compiled, feed=batch, fetch_list=[loss])
    print(p)                            operators, the longest first
    print(p.table("line"))              lines of your script; also "layer", "type"
    p.write_trace("trace.json")         for Perfetto (ui.perfetto.dev) and chrome://tracing

On a CPU each operator is timed as it runs. On a GPU the calls of a step run one by one with events
between them, not as the captured graph, in which they run beside each other: the sum is longer than
a step, and each time has about a microsecond of its event in it. NVTX ranges have the names of calls.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from minigraph.errors import ProgramError, require, require_path
from minigraph.errors.kinds import STORAGE
from minigraph.kernels.peaks import Peaks
from minigraph.program.text.html import folded, table
from minigraph.program.text.summary import amount
from minigraph.runtime.checkpoint.single import write_text
from minigraph.runtime.profiling import TimedRun, listening

from .rows import GROUPS, Row, grouped, operators
from .trace import events

HEADERS = ("ms", "share", "roofline", "FLOPs", "bytes", "operators", "what", "kernels", "line")
NUMBERS = 6  # columns before the first one of words


class Profiler:
    """Times of the runs of the thread that entered it; print it.

    runs  what was timed, each run of a program with its operators or calls
    """

    def __init__(self) -> None:
        self.runs: list[TimedRun] = []
        self._entered = ExitStack()

    def __enter__(self) -> Profiler:
        self._entered.enter_context(listening(self.runs.append))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    @property
    def seconds(self) -> float:
        """Of one run of each program: the sum of its operators' medians."""
        return sum(row.seconds for row in self.rows())

    def rows(self, by: str = "operator") -> list[Row]:
        """Times of one run, the longest first.

        by   "operator", or sums of its operators by "type", "line" of yours, "layer" (name scope)
        A time is the median of all runs.
        """
        require(by in GROUPS, f"{by!r} is no way to sum up; there are {', '.join(GROUPS)}", ProgramError)
        return grouped(operators(self.runs, self.peaks()), by)

    def peaks(self) -> dict[str, Peaks]:
        """The roofline of each device that was run on; that of a CPU is measured when it is first asked for."""
        return {device: peaks() for device, peaks in {run.device: run.peaks for run in self.runs}.items()}

    def table(self, by: str = "operator", most: int = 40) -> str:
        """The first `most` rows as text, and what is not shown."""
        rows = self.rows(by)
        lines = [HEADERS, *map(_cells, rows[:most])]
        widths = [max(len(line[i]) for line in lines) if any(line[i] for line in lines[1:]) else 0
                  for i in range(len(HEADERS))]  # fmt: skip
        texts = ["  ".join(_aligned(i, c, w) for i, (c, w) in enumerate(zip(line, widths, strict=True)) if w)
                 for line in lines]  # fmt: skip
        more = [f"{len(rows) - most} more rows"] if len(rows) > most else []
        return "\n".join([self._title(rows), *map(str, self.peaks().values()), *(t.rstrip() for t in texts), *more])

    def _title(self, rows: list[Row]) -> str:
        programs = ", ".join(dict.fromkeys(run.program.name for run in self.runs)) or "nothing"
        devices = ", ".join(dict.fromkeys(run.device for run in self.runs))
        total = sum(row.seconds for row in rows)
        where = f" on {devices}" if devices else ""
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"{runs} of {programs}{where}: {total * 1e3:.3f} ms, medians"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        tables = {by: self.rows(by) for by in GROUPS}
        parts = (folded(f"by {by}", table(HEADERS, map(_cells, rows))) for by, rows in tables.items())
        return folded(self._title(tables["operator"]), "".join(parts), is_open=True)

    def write_trace(self, path: str | Path) -> Path:
        """Write all runs as JSON of Chrome's trace format, which Perfetto reads; returns the path."""
        require_path(path)
        path = Path(path)
        try:
            write_text(path, json.dumps({"traceEvents": events(self.runs)}, separators=(",", ":")))
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or str(problem)
            raise STORAGE(f"{str(path)!r} cannot be written: {why}") from None
        return path

    def to_dict(self) -> dict[str, Any]:
        """All tables as plain data, for JSON."""
        return {"runs": len(self.runs), **{by: [row.to_dict() for row in self.rows(by)] for by in GROUPS}}


def _aligned(column: int, cell: str, width: int) -> str:
    """Numbers at the right, words at the left."""
    return cell.rjust(width) if column < NUMBERS else cell.ljust(width)


def _cells(row: Row) -> tuple[str, ...]:
    roofline = "" if row.roofline is None else f"{row.roofline:.0%}"
    return (
        f"{row.seconds * 1e3:.4f}", f"{row.share:.1%}", roofline, amount(row.flops), amount(row.nbytes),
        str(row.operators), row.name, ", ".join(row.kernels), row.line,
    )  # fmt: skip
