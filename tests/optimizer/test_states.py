"""States that begin alike: their startup operators are as if each had been built by itself, and checked once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.optimizer import optimizer as optimizers
from minigraph.optimizer.states import persistable
from minigraph.program import Block
from minigraph.program.text.dump import dump
from minigraph.types import float32, tensor_type


def startup(parameters: int) -> mg.static.Program:
    """The startup program of Adam for so many parameters of one shape and one of another."""
    main, made = mg.static.Program("main"), mg.static.Program("startup")
    with mg.static.program_guard(main, made), mg.utils.unique_name.guard():
        h = mg.static.data("x", [None, 4])
        for _ in range(parameters):
            h = mg.matmul(h, mg.static.create_parameter([4, 4], "float32"))
        loss = mg.mean(h * mg.static.create_parameter([4], "float32"))
        mg.optimizer.Adam(0.01).minimize(loss)
    return made


def facts(program: mg.static.Program) -> list[Any]:
    return [
        (op.number, op.role, op.site, op.scope_name, op.forward, dict(op.attrs))
        for op in program.ops
    ]


def test_each_is_as_if_it_were_built_by_itself(monkeypatch):
    alike = startup(3)
    monkeypatch.setattr(optimizers, "persistable", lambda *args: persistable(*args[:5]))
    apart = startup(3)
    assert dump(alike) == dump(apart)
    without_lines = [[(*row[:2], *row[3:]) for row in facts(p)] for p in (alike, apart)]
    assert without_lines[0] == without_lines[1]
    assert {op.site for op in alike.ops if op.type == "fill_constant"} == {alike.ops[-1].site}


def test_what_fills_them_is_checked_once_for_each_value(monkeypatch):
    checked, real = Counter[str](), Block.prepare_op

    def counted(self: Block, type: str, *args: Any) -> Any:
        checked[type] += 1
        return real(self, type, *args)

    monkeypatch.setattr(Block, "prepare_op", counted)
    few = startup(2)
    once = checked["fill_constant"]
    many = startup(8)
    assert checked["fill_constant"] == 2 * once
    assert len(many.ops) - len(few.ops) == 6 * 5  # a parameter, two moments, two powers


def test_zero_and_minus_zero_are_two_values():
    main, made = mg.static.Program("main"), mg.static.Program("startup")
    fills: Any = {}
    for value in (0.0, -0.0, 0.0, 1.0, -0.0):
        persistable(
            main.global_block(),
            made.global_block(),
            "state",
            value,
            tensor_type((2,), float32),
            fills,
        )
    values = [op.attrs["value"] for op in made.ops]
    assert [np.signbit(v) for v in values] == [False, True, False, False, True] and values[3] == 1.0
    assert [op.number for op in made.ops] == list(range(5))
    made.ops[0].attrs["value"] = 7.0  # as set_lr does: the others have attributes of their own
    assert [op.attrs["value"] for op in made.ops][1:] == values[1:]


def test_an_optimizer_holds_no_program_after_minimize():
    """Of a program it keeps the learning rate, which set_lr writes."""
    main, made = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, made):
        loss = mg.mean(mg.static.create_parameter([4], "float32"))
        adam = mg.optimizer.Adam(0.01)
        adam.minimize(loss)
    fresh = vars(mg.optimizer.Adam(0.01))
    assert {name for name, value in vars(adam).items() if fresh.get(name) != value} == {"_named", "_rates"}
