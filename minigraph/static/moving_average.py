"""ExponentialMovingAverage: averages of parameters over the updates, to be used in their place in tests."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import NO_GRADIENT, NOT_OFFERED, ORDER
from minigraph.optimizer.averages import Averages
from minigraph.optimizer.settings import below_one
from minigraph.optimizer.states import persistable, state_type
from minigraph.program import Parameter, Variable, default_main_program, default_startup_program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.program.whole.settled import Settled, as_it_is
from minigraph.types import int64, tensor_type


class ExponentialMovingAverage(Settled, Averages):
    """average = decay * average + (1 - decay) * parameter, in each run, of all trainable parameters.

        optimizer.minimize(loss)
        ema = static.ExponentialMovingAverage(0.999)
        ema.update()                      # once, after minimize, while the program is built
        ...
        with ema.apply(exe):              # parameters are average / (1 - decay^runs) inside
            exe.run(test_program, ...)

    The averages are 0 at first, which the divisor makes up for.
    thres_steps  only None: a decay that grows with the number of runs is not here
    """

    settings: ClassVar[Any] = {"decay": below_one, "name": as_it_is}

    def __init__(self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None) -> None:
        require(thres_steps is None, "thres_steps is not here yet", NOT_OFFERED, "a constant decay: thres_steps=None")
        self.decay, self.name = decay, f"{name}." if name else ""
        super().__init__()
        self.averages: dict[Parameter, Variable] = {}
        self.runs: Variable | None = None

    def update(self) -> None:
        """Append to the default main program what averages its parameters; once."""
        require(self.runs is None, "update is called a second time", ORDER)
        program, startup = default_main_program(), default_startup_program().global_block()
        params = [p for p in program.all_parameters() if p.trainable]
        require(params, f"program {program.name} has no trainable parameters", NO_GRADIENT)
        block = program.global_block()
        g = Builder(block)
        with block.whole(), startup.whole(), program.emitting("optimize"):
            runs = persistable(block, startup, f"{self.name}ema_runs", 0, tensor_type((1,), int64))[0]
            g.elementwise_add(runs, g.fill_constant(shape=[1], value=1, dtype=int64), out={"Out": runs})
            averages = {}
            for p in params:
                average = persistable(block, startup, f"{self.name}{p.name}.ema", 0.0, state_type(p))[0]
                now = p if p.dtype == average.dtype else g.cast(p, dtype=average.dtype)
                old, new = g.scale(average, scale=self.decay), g.scale(now, scale=1 - self.decay)
                g.elementwise_add(old, new, out={"Out": average})
                averages[p] = average
        self.averages, self.runs = averages, runs
        self.settle("update")

    def means(self, scope: Scope) -> dict[Parameter, np.ndarray]:
        """The averages of parameters; none before the first run."""
        require(self.runs is not None, "update was not called while the program was built", ORDER)
        assert self.runs is not None
        share = 1 - self.decay ** int(scope.read(self.runs.name)[0])
        averages = {p: scope.read(a.name) for p, a in self.averages.items()}
        return {p: (a / share).astype(a.dtype) for p, a in averages.items()} if share > 0 else {}

    @property
    def averaged(self) -> dict[Parameter, Variable]:
        """The parameters."""
        return self.averages
