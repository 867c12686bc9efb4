"""What is found once for steps and calls that are alike is what each of them alone would give."""

from __future__ import annotations

import random
from typing import Any

import pytest

import minigraph as mg
from minigraph.kernels.cuda.record.moved import Repeats
from minigraph.runtime import memory
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.memory import Life, layout
from minigraph.runtime.schedule import Schedule
from minigraph.types import TensorType
from tests.runtime.test_repeats import layers
from tests.runtime.test_resized import told
from tests.support.grades import graded
from tests.support.random_programs import random_program

SEEDS = graded(range(40), now=lambda seed: seed < 8)


def schedule_of(seed: int) -> tuple[Schedule, int]:
    """The Schedule of a random program, and how many kinds of steps were looked at."""
    case, kinds, real = random_program(seed), set[int](), Schedule._kind

    def seen(self: Schedule, *given: Any) -> Any:
        made = real(self, *given)
        kinds.add(id(made))
        return made

    types = {name: TensorType(a.shape, a.dtype) for name, a in case.feeds.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schedule, "_kind", seen)
        return Schedule(case.program, types, case.fetches), len(kinds)


def each_alone(patch: pytest.MonkeyPatch) -> None:
    real = Schedule._kind

    def alone(self: Schedule, *given: Any) -> Any:
        self._kinds.clear()
        return real(self, *given)

    patch.setattr(Schedule, "_kind", alone)


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_are_as_if_each_were_looked_at(monkeypatch, seed):
    together, _ = schedule_of(seed)
    each_alone(monkeypatch)
    alone, _ = schedule_of(seed)
    assert told(together)[0] == told(alone)[0]
    assert [s.attrs for s in together.steps] == [s.attrs for s in alone.steps]
    assert [(s.inputs, s.outputs, s.read, s.in_place, s.freed) for s in together.steps] == [
        (s.inputs, s.outputs, s.read, s.in_place, s.freed) for s in alone.steps
    ]


def test_alike_layers_are_of_few_kinds():
    main, loss = layers(20)
    types = {"ids": TensorType((4, 8), mg.types.int64)}
    few, many = (
        {id(s.kind) for s in Schedule(program, types, [loss.name]).steps} for program in (layers(5)[0], main)
    )
    assert len(many) <= len(few) + 1


def bound(drop: float) -> BoundProgram:
    main, loss = layers(6, drop)
    return bind_program(main, {"ids": TensorType((4, 8), mg.types.int64)}, [loss.name], seed=3)


@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_copies_read_and_write_what_they_would_alone(monkeypatch, drop):
    copied = bound(drop)
    monkeypatch.setattr(Repeats, "copied", lambda *_: None)
    assert copied.units.units == bound(drop).units.units


def test_a_way_that_cannot_take_less_is_left_out(monkeypatch):
    monkeypatch.setattr(memory, "MANY", 10)
    monkeypatch.setattr(memory, "FEW", 4)
    r, real = random.Random(3), memory.large_first
    for _ in range(60):
        births = [r.randrange(30) for _ in range(r.randrange(11, 50))]
        lives = [Life(r.choice((0, 100, 300, 5000, 70_000)), at, at + r.randrange(12)) for at in births]
        found = layout(lives)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "large_first", lambda lives, known: real(lives))
            assert layout(lives) == found


def test_sizes_that_only_feeds_tell_make_kinds():
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = (mg.static.data(name, [None, 3]) for name in "xy")
        outs = [mg.tanh(x), mg.tanh(y)]
    types = {name: TensorType((rows, 3), mg.types.float32) for name, rows in (("x", 2), ("y", 5))}
    schedule = Schedule(main, types, [out.name for out in outs])
    assert [schedule.values[i].type.shape for i in schedule.fetched] == [(2, 3), (5, 3)]


def test_outputs_that_nobody_reads_make_kinds():
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x = mg.static.data("x", [2, 8, 2, 8])
        outs = [mg.ops.memory_efficient_attention(x, x, x) for _ in range(3)]
    second = [op for op in main.ops if op.type == "memory_efficient_attention"][1]
    fetches = [*[out.name for out in outs], second.outputs["LogSumExp"][0].name]
    schedule = Schedule(main, {"x": TensorType((2, 8, 2, 8), mg.types.float32)}, fetches)
    assert ["LogSumExp" in step.needs for step in schedule.steps] == [False, True, False]
