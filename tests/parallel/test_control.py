"""Collectives and branches: none stands inside, and ranks may decide differently outside."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.ir.text import parse
from minigraph.program.builder import builder_of


def summed(x):
    return builder_of(x).c_allreduce_sum(x)


@pytest.mark.parametrize("where", ["cond", "while_loop", "append_op", "text"])
def test_a_collective_inside_of_a_block_is_refused(where):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [3])
        flag = mg.sum(x) > 0

        def appended():
            block = main.current_block()
            out = block.create_var("out", shape=[3], dtype="float32")
            block.append_op("c_allreduce_sum", {"X": x}, {"Out": out})
            return out

        def from_text():
            static.nn.cond(flag, lambda: mg.assign(x), lambda: x)
            parse(str(main).replace("= assign(", "= c_allreduce_sum("))

        build = {
            "cond": lambda: static.nn.cond(flag, lambda: summed(x), lambda: x),
            "while_loop": lambda: static.nn.while_loop(lambda v: mg.sum(v) > 0, lambda v: [summed(v)], [x]),
            "append_op": lambda: static.nn.cond(flag, appended, lambda: x),
            "text": from_text,
        }[where]
        with pytest.raises(ProgramError, match=r"c_allreduce_sum stands in .*, a block of a branch or loop") as refused:
            build()
    assert "outside, on what the branch or loop returns" in str(refused.value)


def test_ranks_that_take_other_branches_train_as_one():
    """What a branch returns is reduced outside of it: each rank decides by its own rows."""

    def program():
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), mg.utils.unique_name.guard():
            x = static.data("x", [None, 3], "float64")
            w = static.create_parameter([3], "float64")
            y = static.nn.cond(mg.sum(x) > 0, lambda: x * w, lambda: x * w * w)
            loss = mg.mean(y)
            mg.optimizer.SGD(0.1).minimize(loss)
        return main, startup, loss, w

    x = np.array([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]])
    main, startup, loss, w = program()
    exe, scope = static.Executor(mg.CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    before = scope.read(w.name)
    both = static.CompiledProgram(main).with_data_parallel(loss.name, places=static.cpu_places(2))
    exe.run(both, feed={"x": x}, scope=scope)
    expected = before - 0.1 * (x[0] + 2 * before * x[1]) / 3 / 2
    np.testing.assert_allclose(scope.read(w.name), expected, rtol=1e-12)
