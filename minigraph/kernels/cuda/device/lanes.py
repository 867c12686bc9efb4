"""Lanes: calls on several streams, which fork from one and join it. Needs a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cupy

from minigraph.kernels.cuda.record.call import Segment


def run_in_lanes(parts: Sequence[Segment], target: Any, sides: Sequence[Any]) -> None:
    """Give the parts to their lanes: lane 0 is the target's stream, the others are `sides`, streams of ours.

    What comes after on the target's stream waits for all of them. In a capture they become branches of the graph.
    """
    own = target.ptr
    lanes = [own, *(side.ptr for side in sides)]
    start, begun = _recorded(own), {0}
    awaited = {number for part in parts for number in part.waits}
    ends: dict[int, Any] = {}
    try:
        for number, part in enumerate(parts):
            lane = lanes[part.lane]
            if part.lane not in begun:
                begun.add(part.lane)
                _wait(lane, start)
            for other in part.waits:
                _wait(lane, ends[other])
            target.ptr = lane
            for call in part.calls:
                call()
            if number in awaited:
                ends[number] = _recorded(lane)
    except BaseException:
        with suppress(cupy.cuda.runtime.CUDARuntimeError):  # what was given to them may still run
            _join(own, [lanes[side] for side in begun - {0}])
        raise
    finally:
        target.ptr = own
    _join(own, [lanes[side] for side in begun - {0}])


def _join(own: int, others: Sequence[int]) -> None:
    for other in others:
        _wait(own, _recorded(other))


def _recorded(stream: int) -> Any:
    event = cupy.cuda.Event(disable_timing=True)
    cupy.cuda.runtime.eventRecord(event.ptr, stream)
    return event


def _wait(stream: int, event: Any) -> None:
    cupy.cuda.runtime.streamWaitEvent(stream, event.ptr)
