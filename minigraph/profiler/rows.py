"""Rows of a profile: the time of each operator over all runs, and sums of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minigraph.kernels.peaks import Peaks
from minigraph.program import Operator
from minigraph.program.text.summary import cost_of
from minigraph.runtime.profiling import TimedRun

END = "end of the run"


@dataclass(frozen=True)
class Row:
    """An operator, or a sum of operators.

    line      of the user;  layer: name scope
    seconds   of one run, the median;  share: of all rows
    flops, nbytes   as in program.summary(); None where a size is unknown
    least     seconds that the device needs by its peaks, of operators that took `known` seconds
    kernels   on a GPU the calls
    operators how many
    """

    name: str
    type: str
    line: str
    layer: str
    seconds: float
    flops: int | None
    nbytes: int | None
    least: float = 0.0
    known: float = 0.0
    kernels: tuple[str, ...] = ()
    operators: int = 1
    share: float = 0.0

    @property
    def roofline(self) -> float | None:
        """The time that the device needs at the least over what was taken; None where that is not known."""
        return self.least / self.known if self.known > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "roofline": self.roofline}


def operators(runs: Sequence[TimedRun], peaks: Mapping[str, Peaks]) -> list[Row]:
    """A row for each operator that ran, in order."""
    seconds: dict[tuple[int, int], list[float]] = {}  # of an operator of a program in each run
    last: dict[tuple[int, int], tuple[Operator | None, TimedRun]] = {}
    kernels: dict[tuple[int, int], list[str]] = {}
    for run in runs:
        spent: dict[tuple[int, int], float] = {}
        own: dict[tuple[int, int], list[str]] = {}
        for call in run.calls:
            key = id(run.program), id(call.op)
            spent[key] = spent.get(key, 0.0) + call.seconds
            last[key] = call.op, run
            if call.kernel is not None:
                own.setdefault(key, []).append(call.kernel.name)
        kernels |= own
        for key, time in spent.items():
            seconds.setdefault(key, []).append(time)
    rows = [_row(*last[key], statistics.median(times), kernels.get(key, ()), peaks) for key, times in seconds.items()]
    return _shared(rows)


def _row(
    op: Operator | None, run: TimedRun, seconds: float, kernels: Sequence[str], peaks: Mapping[str, Peaks]
) -> Row:
    if op is None:
        return Row(END, END, "", "", seconds, 0, None, kernels=tuple(kernels))
    flops, nbytes = cost_of(op, run.types)
    read = next((run.types.get(v.name, v.type) for v in op.input_vars), None)
    share = peaks[run.device].share(seconds, flops, nbytes, str(read.dtype) if read is not None else "")
    least, known = (share * seconds, seconds) if share is not None else (0.0, 0.0)
    name = f"{op.type} {next(iter(op.output_arg_names), '')}".rstrip()
    return Row(name, op.type, str(op.site or ""), _layer(op), seconds, flops, nbytes, least, known, tuple(kernels))


def _layer(op: Operator) -> str:
    """Its name scope; that of its forward operator for a gradient, which has none."""
    scope = op.scope_name or (op.forward.scope_name if op.forward is not None else "")
    return scope.strip("/") or op.role


GROUPS: dict[str, Callable[[Row], str]] = {
    "operator": lambda row: row.name,
    "type": lambda row: row.type,
    "line": lambda row: row.line or "no line",
    "layer": lambda row: row.layer or END,
}


def grouped(rows: Sequence[Row], by: str) -> list[Row]:
    """Sums of the rows that a group has in common, the longest first."""
    if by == "operator":
        return sorted(rows, key=lambda row: -row.seconds)
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(GROUPS[by](row), []).append(row)
    sums = [_sum(name, own) for name, own in found.items()]
    return sorted(_shared(sums), key=lambda row: -row.seconds)


def _sum(name: str, rows: Sequence[Row]) -> Row:
    def common(texts: Sequence[str]) -> str:
        return texts[0] if len(set(texts)) == 1 else ""

    flops, nbytes = [row.flops for row in rows], [row.nbytes for row in rows]
    return Row(
        name, common([r.type for r in rows]), common([r.line for r in rows]), common([r.layer for r in rows]),
        sum(r.seconds for r in rows),
        None if None in flops else sum(n for n in flops if n is not None),
        None if None in nbytes else sum(n for n in nbytes if n is not None),
        sum(r.least for r in rows), sum(r.known for r in rows),
        tuple(dict.fromkeys(k for r in rows for k in r.kernels)), sum(r.operators for r in rows),
    )  # fmt: skip


def _shared(rows: Sequence[Row]) -> list[Row]:
    """The rows with their shares of all."""
    total = sum(row.seconds for row in rows) or 1.0
    return [Row(**{**vars(row), "share": row.seconds / total}) for row in rows]
