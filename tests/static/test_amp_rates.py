"""Numbers of an optimizer that a program computes itself, at O2."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static


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
