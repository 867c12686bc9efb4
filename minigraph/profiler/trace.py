"""Runs as events of Chrome's trace format: one process for each device, one thread for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.program import Operator
from minigraph.runtime.profiling import TimedCall, TimedRun

MICRO = 1e6


def events(runs: Sequence[TimedRun]) -> list[dict[str, Any]]:
    """An event for each operator or call, in microseconds since the first run began."""
    begin = min((run.begin for run in runs), default=0.0)
    devices = {device: number for number, device in enumerate(dict.fromkeys(run.device for run in runs), 1)}
    made: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": device}}
        for device, pid in devices.items()
    ]
    for number, run in enumerate(runs):
        pid = devices[run.device]
        at = (run.begin - begin) * MICRO
        made += [_event(call, run, pid, at, number) for call in run.calls]
    return made


def _event(call: TimedCall, run: TimedRun, pid: int, at: float, number: int) -> dict[str, Any]:
    kernel = call.kernel
    facts = {"program": run.program.name, "run": number, **_facts(call.op)}
    if kernel is not None:
        facts |= {"grid": list(kernel.grid or ()), "block": list(kernel.block or ()), "bytes": kernel.nbytes}
    name = kernel.label() if kernel is not None else facts["operator"]
    return {
        "ph": "X", "name": name, "cat": call.op.role if call.op is not None else "end", "pid": pid, "tid": call.stream,
        "ts": round(at + call.start * MICRO, 3), "dur": round(call.seconds * MICRO, 3), "args": facts,
    }  # fmt: skip


def _facts(op: Operator | None) -> dict[str, str]:
    if op is None:
        return {"operator": "end of the run"}
    name = f"{op.type} {next(iter(op.output_arg_names), '')}".rstrip()
    return {"operator": name, "line": str(op.site or ""), "layer": op.scope_name}
