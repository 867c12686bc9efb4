"""CUDA graphs: the calls of a plan captured once, launched by one call of the host. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy

Calls = Sequence[Callable[[], None]]


class CaptureError(Exception):
    """The calls cannot be captured; the message says why."""


class Graph:
    """A captured sequence of (main, side) parts; the two of a part run beside each other.

    target   whose `ptr` is the stream that calls go to; set back afterwards
    lanes    two streams of its own: nobody else's work can get into the graph
    Nothing runs during capture. The mode refuses allocations, so all addresses are those of the plan.
    """

    def __init__(self, parts: Sequence[tuple[Calls, Calls]], target: Any, lanes: tuple[Any, Any]) -> None:
        main, side = lanes
        outside = target.ptr
        main.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        problem: Exception | None = None
        try:
            for ahead, beside in parts:
                if beside:
                    side.wait_event(main.record(_event()))
                    _run(beside, target, side)
                _run(ahead, target, main)
                if beside:
                    main.wait_event(side.record(_event()))
        except Exception as error:  # capture must end before anything else can be done with the stream
            problem = error
        finally:
            target.ptr = outside
            self.graph = _ended(main, problem)
        self.executable = self.graph.graphExec

    def launch(self, stream: int) -> None:
        """Run all calls in the order of `stream`; does not wait."""
        cupy.cuda.runtime.graphLaunch(self.executable, stream)


def _event() -> Any:
    return cupy.cuda.Event(disable_timing=True)


def _run(calls: Calls, target: Any, stream: Any) -> None:
    target.ptr = stream.ptr
    for call in calls:
        call()


def _ended(stream: Any, problem: Exception | None) -> Any:
    """The graph, instantiated; a CaptureError where a call or the capture failed."""
    try:
        graph = stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise CaptureError(str(problem or error)) from (problem or error)
    if problem is not None:
        raise CaptureError(str(problem)) from problem
    return graph
