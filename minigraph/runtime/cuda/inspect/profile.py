"""Times of the calls of a bound program on a GPU, and when a captured graph could begin each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigraph.kernels.cuda.record.call import RunnableCall
from minigraph.runtime.cuda.bind import BoundProgram
from minigraph.runtime.cuda.layout.graph_streams import OnStream
from minigraph.runtime.profiling import TimedCall

from .kernels import listed, operators


def timed_calls(bound: BoundProgram, steps: Sequence[RunnableCall], runtime: Any) -> list[TimedCall]:
    """Run the calls once, one after the other, and say how long each took."""
    ops, arch = operators(bound), bound.binder.device.arch
    kernels = [listed(step.call, ops.get(step.position), arch) for step in steps]
    seconds = runtime.timed(steps, [kernel.label() for kernel in kernels])
    spent: dict[int, float] = {}
    for step, time in zip(steps, seconds, strict=True):
        spent[step.position] = spent.get(step.position, 0.0) + time
    streams = bound.streams()
    begins, lanes = starts(streams, spent), {on.position: on.stream for on in streams}
    made = []
    for step, kernel, time in zip(steps, kernels, seconds, strict=True):
        begin = begins[step.position]
        made.append(TimedCall(kernel.op, begin, time, kernel, lanes[step.position]))
        begins[step.position] = begin + time  # of several that stand in the place of one recorded call
    return made


def starts(calls: Iterable[OnStream], seconds: Mapping[int, float]) -> dict[int, float]:
    """When each call begins if nothing but its stream and its waits holds it up."""
    free: dict[int, float] = {}  # of each stream
    begins: dict[int, float] = {}
    for position, stream, waits in calls:
        ended = [begins[w] + seconds.get(w, 0.0) for w in waits]
        begins[position] = max([free.get(stream, 0.0), *ended])
        free[stream] = begins[position] + seconds.get(position, 0.0)
    return begins
