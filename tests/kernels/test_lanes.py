"""Calls on several streams, on a model of CuPy: a stream knows what its next work comes after."""

from __future__ import annotations

import importlib
import random
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from minigraph.kernels.cuda.record.call import Segment

MODULE = "minigraph.kernels.cuda.device.lanes"
FAILED = 99  # a stream on which nothing can be recorded


class Refused(Exception):
    """What CUDA raises."""


@pytest.fixture
def model(monkeypatch):
    """run_in_lanes, and `seen` of each stream: the work that its next work comes after."""
    seen = {}

    def record(event, stream):
        if stream == FAILED:
            raise Refused
        events[event] = set(seen.setdefault(stream, set()))

    events = {}

    class Event:
        made = 0

        def __init__(self, disable_timing):
            Event.made += 1
            self.ptr = Event.made

    runtime = SimpleNamespace(
        eventRecord=record, CUDARuntimeError=Refused,
        streamWaitEvent=lambda stream, event: seen.setdefault(stream, set()).update(events[event]),
    )  # fmt: skip
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Event=Event, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield SimpleNamespace(run=importlib.import_module(MODULE).run_in_lanes, seen=seen)
    sys.modules.pop(MODULE, None)


def work(model, target, after, name):
    """A call that notes what it comes after."""
    seen = model.seen.setdefault(target.ptr, set())
    after[name] = set(seen)
    seen.add(name)


@pytest.mark.parametrize("seed", range(40))
def test_parts_come_after_what_they_wait_for_and_no_more_than_they_must(model, seed):
    rng, target, after = random.Random(seed), SimpleNamespace(ptr=7), {}
    sides = [SimpleNamespace(ptr=p) for p in (11, 12)]
    make = partial(partial, work, model, target, after)
    make("before")()
    parts = []
    for n in range(rng.randrange(1, 12)):
        calls = [make((n, i)) for i in range(rng.randrange(3))]
        parts.append(Segment(calls, rng.randrange(3), rng.sample(range(n), rng.randrange(min(n, 3) + 1))))
    own = [{(n, i) for i in range(len(part.calls))} for n, part in enumerate(parts)]
    model.run(parts, target, sides)
    make("after")()
    must = {}
    for n, part in enumerate(parts):
        same = [i for i in range(n) if parts[i].lane == part.lane][-1:]
        must[n] = {"before"}.union(*(must[i] | own[i] for i in (*same, *part.waits)))
        for i in range(len(part.calls)):
            assert after[n, i] == must[n] | {(n, c) for c in range(i)}
    assert after["after"] == {"before"}.union(*own)
    assert target.ptr == 7


def test_lanes_inside_a_lane(model):
    """A pipeline in a captured graph: its lane 0 is the one that it runs on."""
    target, after = SimpleNamespace(ptr=7), {}
    make = partial(partial, work, model, target, after)
    sides = [SimpleNamespace(ptr=p) for p in (21, 22)]
    inner = partial(model.run, [Segment([make("a")], 1), Segment([make("b")], 2)], target, sides)
    parts = [Segment([make("x")]), Segment([inner], 1), Segment([make("y")], 1), Segment([make("z")])]
    model.run(parts, target, [SimpleNamespace(ptr=11)])
    assert after == {"x": set(), "a": set(), "b": set(), "y": {"a", "b"}, "z": {"x"}}


def test_after_an_error_the_stream_waits_for_what_was_given_to_lanes(model):
    target, after = SimpleNamespace(ptr=7), {}

    def fail():
        raise ValueError("a call failed")

    parts = [Segment([partial(work, model, target, after, "a")], 1), Segment([fail], 2)]
    for last in (12, FAILED):
        with pytest.raises(ValueError, match="a call failed"):
            model.run(parts, target, [SimpleNamespace(ptr=11), SimpleNamespace(ptr=last)])
        assert target.ptr == 7
    assert model.seen[7] == {"a"}
