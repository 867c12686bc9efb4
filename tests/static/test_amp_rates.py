"""Numbers of an optimizer that a program computes itself, at O2."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.optimizer import lr


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_learning_rate_made_of_a_state_keeps_float32_at_o2(dtype: str) -> None:
    """1.2345e-9 is 0 in float16, and 1.237e-9 in bfloat16."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        loss = mg.mean(mg.square(static.nn.fc(static.data("x", [4, 8]), 4)))
        rate = static.create_global_var([1], 2.469e-9, "float32", persistable=True) * 0.5
        static.amp.decorate(mg.optimizer.SGD(rate), level="O2", dtype=dtype).minimize(loss)
    exe = static.Executor()
    exe.run(startup, scope=scope)
    for program in (main, static.CompiledProgram(main, static.BuildStrategy.all())):
        (found,) = exe.run(program, {"x": np.ones((4, 8), "float32")}, [rate], scope=scope)
        np.testing.assert_allclose(found.astype("float64"), 1.2345e-9, rtol=1e-6)


SCHEDULES = {
    "staircase": lambda: lr.exponential_decay(1e-6, 2, 0.5, staircase=True),
    "warmup": lambda: lr.linear_lr_warmup(lr.cosine_decay(1e-6, 2, 3), 3, 1e-8, 2e-6),
    "piecewise": lambda: lr.piecewise_decay([2, 3], [1e-6, 2e-9, 3e-9]),
}


def rates(schedule: str, level: str, dtype: str, passes: bool) -> list[float]:
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        rate = SCHEDULES[schedule]()
        loss = mg.mean(mg.square(static.nn.fc(static.data("x", [4, 8]), 4)))
        sgd = static.amp.decorate(mg.optimizer.SGD(rate), level=level, dtype=dtype)
        sgd.minimize(loss)
    exe, runs = static.Executor(), static.CompiledProgram(main, static.BuildStrategy.all()) if passes else main
    exe.run(startup, scope=scope)
    return [float(exe.run(runs, {"x": np.ones((4, 8), "float32")}, [rate], scope=scope)[0][0]) for _ in range(6)]


@pytest.mark.parametrize("passes", [False, True], ids=["", "passes"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_that_the_program_counts_are_those_without_mixed_precision(
    schedule: str, level: str, dtype: str, passes: bool
) -> None:
    """They stand before the loss, as parts of its update: nothing of them is cast."""
    assert rates(schedule, level, dtype, passes) == rates(schedule, "O0", dtype, False)


def test_an_average_before_the_loss_is_minimized_is_refused() -> None:
    with static.program_guard(static.Program(), static.Program()):
        loss = mg.mean(static.nn.fc(static.data("x", [4, 8]), 4))
        static.ExponentialMovingAverage(0.9).update()
        with pytest.raises(ProgramError, match="has gradients or updates already"):
            static.amp.decorate(mg.optimizer.SGD(0.1), level="O2").minimize(loss)
