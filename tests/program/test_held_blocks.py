"""Blocks of branches and loops changed by hand: their operator gives them what they take, or the change is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.base import unique_name
from minigraph.errors import FeedError, ProgramError
from minigraph.ir.text import parse
from minigraph.program.blocks.held import sub_programs

VALUES = {"x": np.full((2, 2), 0.5, "float32"), "y": np.full((2, 2), 0.25, "float32")}


class Net:
    """A branch that returns x, y and tanh(x * w)."""

    def __init__(self) -> None:
        self.main, startup = static.Program("main"), static.Program("startup")
        with static.program_guard(self.main, startup), unique_name.guard():
            x, y = (static.data(name, [2, 2]) for name in ("x", "y"))
            w = static.create_parameter([2, 2], "float32", name="w", default_initializer=mg.nn.initializer.Constant(2))
            static.nn.cond(mg.sum(x) > 0, lambda: [x, y, mg.tanh(x * w)], lambda: [y, x, mg.tanh(y)])
        self.scope, self.exe = static.Scope(), static.Executor()
        self.exe.run(startup, scope=self.scope)

    def run(self, program: Any = None) -> list[np.ndarray]:
        return self.exe.run(program or self.main, VALUES, results(self.main), scope=self.scope)


def results(main: Any) -> list[str]:
    """What the branch returns."""
    return [v.name for v in main.ops[-1].output_vars]


def branch(program: Any) -> Any:
    """The block that runs."""
    return next(sub for _, name, sub in sub_programs(program.ops) if name == "true_block").block0


def capture(block: Any) -> None:
    """Let an operator of a block read what the block did not take."""
    summed = block.program.parent.ops[0].output("Out")
    block.append_op("tanh", {"X": block.program.parent.vars[summed[0]]}, {"Out": block.ops[-1].output("Out")}, {})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a value to a state": lambda b: setattr(b.vars["x"], "persistable", True),
    "a state to a value": lambda b: setattr(b.vars["w"], "persistable", False),
    "a result to a state": lambda b: setattr(b.vars[b.ops[-1].output("Out")[0]], "persistable", True),
    "a result to data": lambda b: setattr(b.vars[b.ops[-1].output("Out")[0]], "is_data", True),
    "a new state": lambda b: b.create_var("more", [2], "float32", persistable=True),
    "a new parameter": lambda b: b.create_parameter("more", [2], "float32"),
    "new data": lambda b: b.create_var("more", [2], "float32", is_data=True),
    "one less": lambda b: b.vars.pop("y"),
    "one that is captured": capture,
}
MADE: dict[str, Callable[[Any], Any]] = {
    "as built": lambda main: main, "clone": lambda main: main.clone(), "from its text": lambda main: parse(str(main)),
    "after passes": lambda main: static.CompiledProgram(main, static.BuildStrategy.all()).program_for(results(main)),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_block_takes_what_its_operator_gives_it(change: str, made: str):
    net = Net()
    program = MADE[made](net.main)
    value, block = net.run(program), branch(program)
    text = str(block)
    with pytest.raises(ProgramError, match=r"would change what cond_0.true takes, a block of cond"):
        CHANGES[change](block)
    assert str(block) == text
    assert [a.tobytes() for a in net.run(program)] == [a.tobytes() for a in value]


def test_values_of_its_own_come_and_go():
    net = Net()
    block = branch(net.main)
    block.create_var("more", [2, 2], "float32")
    block._insert_op(len(block.ops), type="scale", inputs={"X": block.ops[-1].output("Out")}, outputs={"Out": "more"},
                     attrs={"scale": 3.0})  # fmt: skip
    net.run()
    block.ops.pop()
    block.vars.pop("more")
    np.testing.assert_allclose(net.run()[2], np.full((2, 2), np.tanh(1.0)), rtol=1e-6)


def tripled(block: Any) -> None:
    """Let a block return three times its tanh."""
    out = block.ops[-1].output("Out")
    block.append_op("scale", {"X": out}, {"Out": out}, {"scale": 3.0})


@pytest.mark.parametrize("compiled", [False, True])
def test_a_program_knows_of_changes_of_a_block_that_an_attribute_got(compiled: bool):
    net = Net()
    net.main.ops[-1].attrs["true_block"] = block = net.main.ops[-1].attrs["true_block"].clone()
    wrap = static.CompiledProgram if compiled else lambda program: program
    net.run(wrap(net.main))
    tripled(block.block0)
    assert block.parent is net.main
    np.testing.assert_allclose(net.run(wrap(net.main))[2], np.full((2, 2), 3 * np.tanh(1.0)), rtol=1e-6)


def test_a_program_knows_of_changes_of_a_block_that_a_new_operator_got():
    net, other = Net(), static.Program("other")
    cond, block = net.main.ops[-1], other.global_block()
    blocks = {name: sub.clone() for name, sub in cond.attrs.items()}
    given = [block.create_var(v.name, v.shape, v.dtype, persistable=v.persistable, is_data=not v.persistable)
             for v in cond.input_vars]  # fmt: skip
    slots = {"Pred": given[:1], "Input": given[1:]}
    block.append_op("cond", slots, {"Out": [block.create_var(f"out_{i}", [2, 2], "float32") for i in range(3)]}, blocks)
    feeds = {given[0].name: np.array(True), **VALUES}
    net.exe.run(other, feeds, ["out_2"], scope=net.scope)
    tripled(blocks["true_block"].block0)
    tripled_value = net.exe.run(other, feeds, ["out_2"], scope=net.scope)[0]
    np.testing.assert_allclose(tripled_value, np.full((2, 2), 3 * np.tanh(1.0)), rtol=1e-6)


@pytest.mark.parametrize("way", ["an attribute", "a new operator"])
def test_a_block_belongs_to_one_program(way: str):
    net, other = Net(), Net()
    cond = net.main.ops[-1]
    theirs = {name: sub for _, name, sub in sub_programs(other.main.ops)}
    value, text = net.run(), str(net.main)
    ways: dict[str, Callable[[], Any]] = {
        "an attribute": lambda: cond._set_attr("true_block", theirs["true_block"]),
        "a new operator": lambda: net.main.block0.append_op("cond", cond.inputs, cond.outputs, theirs),
    }
    with pytest.raises(ProgramError, match=r"(?s)is a block of program main.*block.clone\(\) makes one"):
        ways[way]()
    assert str(net.main) == text
    assert all(sub.parent is other.main for sub in theirs.values())
    assert [a.tobytes() for a in net.run()] == [a.tobytes() for a in value]


@pytest.mark.parametrize("strategy", [static.BuildStrategy, static.BuildStrategy.all])
def test_a_result_that_no_operator_of_a_block_writes_any_more_is_named(strategy: Any):
    net = Net()
    branch(net.main).ops.pop()
    compiled = static.CompiledProgram(net.main, strategy())
    with pytest.raises(FeedError, match=r"tanh_0\.tmp_0: f32\[2,2\] has no value"):
        net.run(compiled)
