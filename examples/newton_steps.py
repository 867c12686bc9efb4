"""Roots by Newton's method: as many steps as each run needs, and their gradient.

    python examples/newton_steps.py

The loop ends when every root is near enough, so runs take different numbers of steps. The gradient
goes back through all of them: that of the square root of a is 1 / (2 sqrt(a)).
"""

from __future__ import annotations

import numpy as np

import minigraph as mg

NEAR = 1e-12


def main() -> None:
    program = mg.static.Program("roots")
    with mg.static.program_guard(program):
        a = mg.static.data("a", [None], "float64")
        a.stop_gradient = False

        def far(steps, x):
            return mg.max(mg.abs(x * x - a)) > NEAR * mg.max(a)

        def step(steps, x):
            return [steps + 1, (x + a / x) * 0.5]

        steps, root = mg.static.nn.while_loop(far, step, [mg.full([1], 0, "int64"), mg.ones_like(a)])
        (slope,) = mg.static.gradients([root], [a])
    exe = mg.static.Executor(mg.CPUPlace())
    for values in (np.array([1.0, 1.21]), np.array([2.0, 9.0, 1e6])):
        taken, found, slopes = exe.run(program, feed={"a": values}, fetch_list=[steps, root, slope])
        print(f"{int(taken[0])} steps: roots {found}, slopes {slopes}")
        np.testing.assert_allclose(found, np.sqrt(values), rtol=1e-10)
        np.testing.assert_allclose(slopes, 0.5 / np.sqrt(values), rtol=1e-6)


if __name__ == "__main__":
    main()
