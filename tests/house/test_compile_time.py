"""Plans are work in proportion to the program: lines of Python are counted, so quadratic steps fail."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

import minigraph as mg
from bench.compile_time import WIDTH, network
from minigraph.compiler import CompiledProgram
from minigraph.program import Block, Program, Variable
from minigraph.program.builder import Builder
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.bind import bind_program
from minigraph.types import TensorType, float32
from tests.support.counted_work import check_proportion, lines

SMALL, LARGE = 200, 1000  # operators
MOST = 1500  # lines for an operator
MOST_FOR_A_TENSOR, MOST_OF_ITS_PLAN = 850, 1150  # that AdamW updates
FEED = {"x": TensorType((4, WIDTH), float32)}


@pytest.fixture(scope="module")
def programs():
    """(small, large), and the same after all passes: with one update of thousands of parameters."""
    plain = [network(n) for n in (SMALL, LARGE)]
    strategies = [mg.static.BuildStrategy.all() for _ in plain]
    fused = [
        CompiledProgram(main, build_strategy=s).program_for((loss.name,))
        for (main, loss), s in zip(plain, strategies, strict=True)
    ]
    return {"plain": plain, "fused": [(after, loss) for after, (_, loss) in zip(fused, plain, strict=True)]}


def check(makes) -> None:
    small, large = (lines(make) for make in makes)
    assert small < MOST * SMALL
    check_proportion(small, large, LARGE / SMALL)


def test_updates_of_many_parameters_are_work_in_proportion():
    """Each has four states, which the startup program fills."""

    def minimized(number: int) -> int:
        main, startup = Program(), Program()
        with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
            params = [mg.static.create_parameter([2, 3], "float32") for _ in range(number)]
            loss = mg.mean(Builder(main.global_block()).sum(params) * mg.static.data("x", [2, 3]))
            return lines(lambda: mg.optimizer.AdamW(1e-3).minimize(loss))

    minimized(2)  # what each type of operator looks up once
    few, many = minimized(50), minimized(400)
    assert few < MOST_FOR_A_TENSOR * 50
    check_proportion(few, many, 8)


def adamw_of_many(number: int) -> tuple[Program, Variable]:
    """A program that AdamW trains, and its loss."""
    main, startup = Program(), Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        params = [mg.static.create_parameter([2, 3], "float32") for _ in range(number)]
        loss = mg.mean(Builder(main.global_block()).sum(params) * mg.static.data("x", [2, 3]))
        mg.optimizer.AdamW(1e-3).minimize(loss)
    return main, loss


def test_updates_that_cannot_be_told_apart_are_checked_once(monkeypatch):
    prepared, prepare = Counter[str](), Block.prepare_op

    def counted(self, type, inputs, attrs):
        prepared[type] += 1
        return prepare(self, type, inputs, attrs)

    monkeypatch.setattr(Block, "prepare_op", counted)
    main, _ = adamw_of_many(20)
    assert [op.type for op in main.ops].count("adamw") == 20
    assert prepared["adamw"] == 1 and prepared["fill_constant"] < 10


def test_the_plan_of_an_update_of_many_tensors_is_short_work():
    main, loss = adamw_of_many(400)
    after = CompiledProgram(main, build_strategy=mg.static.BuildStrategy.all()).program_for((loss.name,))
    feed = {"x": TensorType((2, 3), float32)}
    bind_program(after, feed, [loss.name])  # what each type of operator looks up once
    assert lines(lambda: bind_program(after, feed, [loss.name])) < MOST_OF_ITS_PLAN * 400


@pytest.mark.parametrize("kind", ["plain", "fused"])
@pytest.mark.parametrize("make", [bind_program, Plan])
def test_a_plan_is_work_in_proportion(programs, kind, make):
    check([partial(make, program, FEED, [loss.name]) for program, loss in programs[kind]])


def test_the_bound_notices_a_quadratic_step(programs, monkeypatch):
    """As it was: every output of an update with thousands of lists compared with every input."""
    from minigraph.runtime import schedule

    def counted(step, values, i):
        roots = [schedule.each(j, lambda j: values[j].root) for j in step.read]  # a line of minigraph for each
        return roots.count(values[i].root) <= (i in step.read)

    monkeypatch.setattr(schedule, "shown_once", counted)
    with pytest.raises(AssertionError, match="lines for 5 times as much"):
        check([partial(Plan, program, FEED, [loss.name]) for program, loss in programs["fused"]])
