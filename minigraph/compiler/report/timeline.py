"""A run of a profile as a timeline: what ran, on which stream of the captured graph, its begin and its time.

On a GPU calls are timed one by one; a call begins when its stream and the calls that it waits for have ended. On a CPU
operators run one after the other, on one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph.program import Program
from minigraph.runtime.profiling import TimedCall, TimedRun


def timeline(program: Program, runs: Sequence[TimedRun]) -> dict[str, Any] | None:
    """The last run of `program`, else of another compilation of it; None where none of these ran.

    calls  [operator, kernel or "", role, stream, seconds to its begin, seconds, grid, block, tiles], in the order in
           which they were launched
    """
    own = [run for run in runs if run.program.name == program.name]
    if not own:
        return None
    run = next((run for run in reversed(own) if run.program is program), own[-1])
    return {"device": run.device, "runs": len(own), "calls": [_call(call) for call in run.calls]}


def _call(call: TimedCall) -> list[Any]:
    op, kernel = call.op, call.kernel
    name = f"{op.type} {next(iter(op.output_arg_names), '')}".rstrip() if op is not None else "end of the run"
    role = op.role if op is not None else "end"
    times = call.stream, call.start, call.seconds
    if kernel is None:
        return [name, "", role, *times, "", "", ""]
    tiles = ", ".join(f"{size} {what}" for what, size in kernel.tiles.items())
    return [name, kernel.name, role, *times, _extent(kernel.grid), _extent(kernel.block), tiles]


def _extent(size: tuple[int, ...] | None) -> str:
    return "x".join(map(str, size)) if size else ""
