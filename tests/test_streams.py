"""The order of work of several streams, threads and GPUs, on a model of CuPy: a stream knows what it comes after."""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType, SimpleNamespace

import pytest


class Model:
    """CuPy as far as streams.py sees it. Work is a number; `seen` of a stream is all that its next work comes after."""

    def __init__(self):
        model = self
        self.device, self.thread = 0, 0
        self.current = {}  # (thread, device) -> stream

        class Any_:
            def __init__(self, ptr, device=-1):
                self.ptr, self.device, self.known = ptr, device, {}

            @property
            def seen(self):
                assert self.device in (-1, model.device), "a stream is used where its device is not the current one"
                return self.known.setdefault((model.thread if self.ptr == 2 else 0, model.device), set())

            def wait_event(self, event):
                self.seen.update(event.seen)

        class Stream(Any_):
            made = 100

            def __init__(self, non_blocking=False):
                Stream.made += 1
                super().__init__(Stream.made, model.device)

        class ExternalStream(Any_):
            pass

        class Event:
            def __init__(self, disable_timing=False):
                self.seen = set()

            def record(self, stream):
                self.seen = set(stream.seen)

        class Device:
            def __init__(self, index):
                self.index = index

            def __enter__(self):
                self.before, model.device = model.device, self.index

            def __exit__(self, *_):
                model.device = self.before

        for name, ptr in (("null", 0), ("ptds", 2)):
            one = Stream.__new__(Stream)
            Any_.__init__(one, ptr)
            setattr(Stream, name, one)
        self.Stream, self.ExternalStream = Stream, ExternalStream
        runtime = SimpleNamespace(getDevice=lambda: model.device, setDevice=lambda i: setattr(model, "device", i))
        self.cuda = SimpleNamespace(
            Stream=Stream, Event=Event, Device=Device, runtime=runtime,
            get_current_stream=lambda device: model.current.get((model.thread, device), Stream.null),
        )  # fmt: skip


@pytest.fixture
def model(monkeypatch):
    made = Model()
    cupy = ModuleType("cupy")
    cupy.cuda = made.cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "minigraph.kernels.cuda.streams", raising=False)
    made.Turn = importlib.import_module("minigraph.kernels.cuda.streams").Turn
    yield made
    sys.modules.pop("minigraph.kernels.cuda.streams", None)


def orders(model, seed):
    """Turns of two GPUs among callers of three threads, each with work of its own before and after."""
    rng = random.Random(seed)
    turns, done, count = [model.Turn(0), model.Turn(1)], [set(), set()], 0
    callers = {}
    for device in (0, 1):
        model.device = device
        own = [model.Stream() for _ in range(2)]
        callers[device] = [model.Stream.null, model.Stream.ptds, model.ExternalStream(7, device), *own]
    for _ in range(60):
        model.thread, model.device = rng.randrange(3), rng.randrange(2)
        gpu = rng.randrange(2)
        model.current[model.thread, gpu] = caller = rng.choice(callers[gpu])
        before, turn = model.device, turns[gpu]
        own_work, count = count, count + 1
        with model.cuda.Device(gpu):
            caller.seen.add(own_work)
        with turn:
            assert model.device == gpu
            if rng.random() < 0.3:
                with turn:
                    pass
            if rng.random() < 0.3:  # the caller's stream gets more work meanwhile
                caller.seen.add(count)
                own_work, count = count, count + 1
                turn.join()
            assert turn.target.ptr == turn.stream.ptr
            yield done[gpu] | {own_work} <= turn.stream.seen
            turn.stream.seen.add(count)
            done[gpu].add(count)
            count += 1
        assert model.device == before
        with model.cuda.Device(gpu):
            yield done[gpu] <= caller.seen


@pytest.mark.parametrize("seed", range(20))
def test_work_comes_after_all_that_was_given_before(model, seed):
    assert all(orders(model, seed))


def test_the_model_notices_a_missing_wait(model, monkeypatch):
    monkeypatch.setattr(model.Turn, "_after", lambda *_: None)
    assert not all(orders(model, 0))


def test_between_turns_of_one_stream_nothing_waits(model, monkeypatch):
    waits = []
    real = model.Turn._after
    monkeypatch.setattr(model.Turn, "_after", lambda *args: (waits.append(args), real(*args)))
    turn = model.Turn(0)
    for _ in range(3):
        with turn:
            assert turn.stream is model.Stream.null, "the caller's stream itself"
    assert len(waits) == 1


def test_a_turn_that_fails_to_begin_lets_others_begin(model, monkeypatch):
    turn = model.Turn(1)
    monkeypatch.setattr(model.Turn, "_go_to", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), turn:
        pass
    monkeypatch.undo()
    assert model.device == 0
    assert turn._lock.acquire(blocking=False)
    turn._lock.release()
    assert not turn._devices
