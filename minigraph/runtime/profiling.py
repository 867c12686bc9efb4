"""What runs tell a Profiler: the time of each operator, on a GPU of each call. Where nobody listens nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from minigraph.kernels.peaks import Peaks
from minigraph.program import Operator, Program
from minigraph.program.context import Guards
from minigraph.types import TensorType

from .kernel_list import Kernel


@dataclass(frozen=True)
class TimedCall:
    """One operator of a run on a CPU, or one call of a run on a GPU.

    op      None for what ends a run
    kernel  what it is on a GPU
    start   seconds since the run began; on a GPU when the captured graph could begin it
    stream  of the captured graph
    """

    op: Operator | None
    start: float
    seconds: float
    kernel: Kernel | None = None
    stream: int = 0


@dataclass(frozen=True)
class TimedRun:
    """One run of a program.

    device  "CPU" or "GPU 0";  peaks: what it can do at the most, which a CPU has to measure
    begin   on the clock of time.perf_counter, in seconds
    types   of all values by name, with the sizes of this run
    """

    program: Program
    device: str
    peaks: Callable[[], Peaks]
    begin: float
    types: Mapping[str, TensorType]
    calls: Sequence[TimedCall]


Listener = Callable[[TimedRun], None]
_listeners = Guards[Listener | None]("profiler")


def listener() -> Listener | None:
    """Who wants to know of the runs of this thread."""
    return _listeners.innermost(None)


@contextmanager
def listening(to: Listener) -> Iterator[None]:
    """Inside the block runs of this thread are told to `to`."""
    with _listeners.entered(to):
        yield


def clock() -> list[float] | None:
    """A list for the time before each step and after the last one; None where nobody listens."""
    return None if listener() is None else []


def tell(program: Program, schedule: Any, peaks: Callable[[], Peaks], marks: Sequence[float]) -> None:
    """A run on a CPU; `marks` are those of `clock`, without the end, which is now."""
    told = listener()
    if told is None:
        return
    ends = [*marks, perf_counter()]
    calls = [
        TimedCall(step.op, start - ends[0], end - start)
        for step, start, end in zip(schedule.steps, ends, ends[1:], strict=False)
    ]
    told(TimedRun(program, "CPU", peaks, ends[0], types_of(schedule), calls))


def types_of(schedule: Any) -> dict[str, TensorType]:
    """Types of all values by name; of several versions of a name the last one."""
    return {v.name: v.type for v in schedule.values}
