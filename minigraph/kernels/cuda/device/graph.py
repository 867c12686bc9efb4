"""CUDA graphs: the calls of a plan captured once, launched by one call of the host. Needs a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import cupy

from minigraph.kernels.cuda.record.call import Segment

from . import fills, programmatic_launch
from .lanes import run_in_lanes

graph_launch, instantiate = cupy.cuda.runtime.graphLaunch, cupy.cuda.runtime.graphInstantiate


class CaptureError(Exception):
    """The calls cannot be captured; the message says why."""


class CapturedGraph:
    """Captured parts; those of different lanes run beside each other unless one waits for the other.

    target   whose `ptr` is the stream that calls go to, then the graph; set back after the capture
    lanes    streams of its own: nobody else's work can get into the graph
    function gives a kernel of a source: that which takes the place of small fills, see fills.py
    waiting  kernels that wait for those before them, see programmatic_launch.py
    Nothing runs during capture. The mode refuses allocations, so all addresses are those of the plan.
    """

    def __init__(
        self, parts: Sequence[Segment], target: Any, lanes: Sequence[Any], function: Callable[[str, str], Any],
        waiting: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.target, outside = target, target.ptr
        lanes[0].begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        problem: Exception | None = None
        try:
            target.ptr = lanes[0].ptr
            run_in_lanes(parts, target, lanes[1:])
        except Exception as error:  # capture must end before anything else can be done with the stream
            problem = error
        finally:
            target.ptr = outside
            self.graph = _ended(lanes[0], problem)
        self.executable = self.graph.graphExec
        try:
            changed = fills.as_kernels(self.graph.graph, lambda: function(*fills.kernel()).kernel.ptr)
            changed += programmatic_launch.loosen(self.graph.graph, waiting)
        except RuntimeError as why:
            raise CaptureError(str(why)) from why
        if changed:
            self.executable = instantiate(self.graph.graph)
            weakref.finalize(self, cupy.cuda.runtime.graphExecDestroy, self.executable)

    def __call__(self) -> None:
        """Run all calls in the order of the target's stream; does not wait."""
        graph_launch(self.executable, self.target.ptr)


def _ended(stream: Any, problem: Exception | None) -> Any:
    """The graph, instantiated; a CaptureError where a call or the capture failed."""
    try:
        graph = stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise CaptureError(str(problem or error)) from (problem or error)
    if problem is not None:
        raise CaptureError(str(problem)) from problem
    return graph
