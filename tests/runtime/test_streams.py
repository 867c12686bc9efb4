"""The order of work of several streams, threads and GPUs, on a model of CuPy: a stream knows what it comes after."""

from __future__ import annotations

import importlib
import random
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest


class Model:
    """CuPy as far as streams.py sees it. Work is a number; `seen` of a stream is all that its next work comes after."""

    def __init__(self):
        model = self
        self.device, self.thread = 0, 0
        self.current = {}  # (thread, device) -> stream

        class Any_:
            def __init__(self, ptr, device_id=-1):
                self.ptr, self.device_id, self.known = ptr, device_id, {}

            @property
            def seen(self):
                assert self.device_id in (-1, model.device), "a stream is used where its device is not the current one"
                return self.known.setdefault((model.thread if self.ptr == 2 else 0, model.device), set())

            def wait_event(self, event):
                self.seen.update(event.seen)

            def use(self):
                model.current[model.thread, model.device] = self

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
            setattr(Stream, name, _foreign(Stream, Any_, ptr))
        self.Stream, self.ExternalStream = Stream, ExternalStream
        self.foreign = partial(_foreign, Stream, Any_)
        runtime = SimpleNamespace(getDevice=lambda: model.device, setDevice=lambda i: setattr(model, "device", i))
        self.cuda = SimpleNamespace(
            Stream=Stream, Event=Event, Device=Device, runtime=runtime,
            get_current_stream=lambda device: model.current.get((model.thread, device), Stream.null),
        )  # fmt: skip


def _foreign(kind, base, ptr):
    """What Stream.from_external makes: a Stream that somebody else owns, of no known device."""
    one = kind.__new__(kind)
    base.__init__(one, ptr)
    return one


@pytest.fixture
def model(monkeypatch):
    made = Model()
    cupy = ModuleType("cupy")
    cupy.cuda = made.cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "minigraph.kernels.cuda.device.streams", raising=False)
    made.StreamTurn = importlib.import_module("minigraph.kernels.cuda.device.streams").StreamTurn
    yield made
    sys.modules.pop("minigraph.kernels.cuda.device.streams", None)


def orders(model, seed):
    """Turns of two GPUs among callers of three threads, each with work of its own before and after."""
    rng = random.Random(seed)
    turns, done, count = [model.StreamTurn(0), model.StreamTurn(1)], [set(), set()], 0
    callers = {}
    for device in (0, 1):
        model.device = device
        own = [model.Stream() for _ in range(2)]
        others = [model.ExternalStream(7, device), model.foreign(8)]
        callers[device] = [model.Stream.null, model.Stream.ptds, *others, *own]

    def work(seen):
        nonlocal count
        seen.add(count)
        count += 1
        return count - 1

    def turn_of(gpu, depth=0):
        """A turn on a stream of its own choice; inside it others, and more work of the caller."""
        turn, before = turns[gpu], model.device
        model.current[model.thread, gpu] = caller = rng.choice(callers[gpu])
        with model.cuda.Device(gpu):
            given = work(caller.seen)
        with turn:
            assert model.device == gpu
            if rng.random() < 0.3 and depth < 2:
                yield from turn_of(gpu, depth + 1)
                model.current[model.thread, gpu] = caller
            if rng.random() < 0.3:  # the caller's stream gets more work meanwhile
                given = work(caller.seen)
                turn.join()
            if rng.random() < 0.02:
                turn.stay()
            assert turn.target.ptr == turn.stream.ptr
            yield done[gpu] | {given} <= turn.stream.seen
            done[gpu].add(work(turn.stream.seen))
        assert model.device == before
        with model.cuda.Device(gpu):
            yield done[gpu] <= caller.seen

    for _ in range(60):
        model.thread, model.device = rng.randrange(3), rng.randrange(2)
        yield from turn_of(rng.randrange(2))


@pytest.mark.parametrize("seed", range(40))
def test_work_comes_after_all_that_was_given_before(model, seed):
    assert all(orders(model, seed))


def test_the_model_notices_a_missing_wait(model, monkeypatch):
    monkeypatch.setattr(model.StreamTurn, "_after", lambda *_: None)
    assert not all(orders(model, 0))


def test_between_turns_of_one_stream_nothing_waits(model, monkeypatch):
    waits = []
    real = model.StreamTurn._after
    monkeypatch.setattr(model.StreamTurn, "_after", lambda *args: (waits.append(args), real(*args)))
    turn = model.StreamTurn(0)
    for _ in range(3):
        with turn, turn:
            assert turn.stream is model.Stream.null, "the caller's stream itself"
    assert len(waits) == 1


@pytest.mark.parametrize("kind", ["external", "foreign", "per thread"])
def test_a_stream_that_others_destroy_is_not_kept(model, kind):
    turn = model.StreamTurn(0)
    model.current[0, 0] = {
        "external": model.ExternalStream(7, 0), "foreign": model.foreign(8), "per thread": model.Stream.ptds
    }[kind]  # fmt: skip
    for _ in range(2):
        with turn:
            assert turn.stream is turn.own
    turn.stay()
    model.current[0, 0] = model.Stream()
    with turn:
        assert turn.stream is turn.own, "no stream is kept any more"


def test_the_stream_that_a_caller_uses_stays_current(model):
    """Also where an error ends the block."""
    turn, mine = model.StreamTurn(0), model.Stream()
    mine.use()
    with turn.own_is_current():
        assert model.cuda.get_current_stream(0) is turn.own
    assert model.cuda.get_current_stream(0) is mine
    with pytest.raises(ZeroDivisionError), turn.own_is_current():
        raise ZeroDivisionError
    assert model.cuda.get_current_stream(0) is mine


def test_a_turn_that_fails_to_begin_lets_others_begin(model, monkeypatch):
    turn = model.StreamTurn(1)
    monkeypatch.setattr(model.StreamTurn, "_come", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), turn:
        pass
    monkeypatch.undo()
    at_rest(model, turn)


def test_a_foreign_stream_that_is_gone_at_the_end_is_forgotten(model):
    turn, foreign = model.StreamTurn(1), model.ExternalStream(7, 1)
    model.current[0, 1] = foreign
    foreign.wait_event = lambda event: 1 / 0
    with pytest.raises(ZeroDivisionError), turn:
        pass
    at_rest(model, turn)
    model.current[0, 1] = model.Stream.null
    with turn:
        assert turn.stream is model.Stream.null


def at_rest(model, turn):
    assert model.device == 0
    assert turn._lock.acquire(blocking=False)
    turn._lock.release()
    assert not turn._begun
