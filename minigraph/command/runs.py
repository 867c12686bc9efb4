"""Commands that run a program: profile, bench."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from minigraph.profiler import Profiler

from .subject import subject

WARM_UP = 3


def profile(options: Namespace) -> tuple[dict[str, Any], str]:
    """Times per operator of the rewritten program."""
    found = subject(options)
    profiler = profiled(found.runner(found.compiled()), options.steps)
    if options.trace:
        profiler.write_trace(options.trace)
    return profiler.to_dict(), profiler.table(options.by)


def profiled(step: Callable[[], Any], steps: int) -> Profiler:
    """The times of some steps, behind one that makes plans."""
    step()
    with Profiler() as profiler:
        for _ in range(steps):
            step()
    return profiler


def bench(options: Namespace) -> tuple[dict[str, Any], str]:
    """Medians of a step without and with the rewrites; the two take turns."""
    found = subject(options)
    arms = {"without rewrites": found.runner(found.program), "with rewrites": found.runner(found.compiled())}
    for step in arms.values():
        for _ in range(WARM_UP):
            step()
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(options.steps):
        for name in sorted(arms, reverse=bool(turn % 2)):
            times[name].append(_milliseconds(arms[name]))
    medians = {name: statistics.median(own) for name, own in times.items()}
    before, after = medians["without rewrites"], medians["with rewrites"]
    lines = [f"{name:<18} {ms:10.3f} ms" for name, ms in medians.items()]
    lines.append(f"{'ratio':<18} {after / before:10.3f}, medians of {len(times['with rewrites'])} steps in turns")
    return {"milliseconds": medians, "all": times, "ratio": after / before}, "\n".join(lines)


def _milliseconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3
