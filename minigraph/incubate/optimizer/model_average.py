"""ModelAverage: means of parameters over a window of updates, to be used in their place in tests.

    sum_1 += parameter in each run; it moves to sum_2 every 16,384 runs, which keeps sums of float32 exact enough
    when the window is full, sum_3 = sum_1 + sum_2 and both begin again: the mean is over one to two windows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import NO_GRADIENT
from minigraph.optimizer.averages import Averages
from minigraph.optimizer.settings import check_number
from minigraph.optimizer.states import persistable, state_type
from minigraph.program import Parameter, Variable, default_main_program, default_startup_program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.program.whole.settled import Settled, as_it_is
from minigraph.types import int64, tensor_type

RUNS_OF_A_SUM = 16384
COUNTERS = ("num_updates", "num_accumulates", "old_num_accumulates")


class ModelAverage(Settled, Averages):
    """The mean of each parameter over the last runs; make it after `minimize`, while the program is built.

        optimizer.minimize(loss)
        average = mg.incubate.ModelAverage(0.15, min_average_window=100, max_average_window=10000)
        ...
        with average.apply(exe):          # parameters are their means inside
            exe.run(test_program, ...)

    average_window_rate  the window is full after this share of all runs,
    min_average_window   but not before so many,
    max_average_window   and at the latest after so many
    parameters           what to average; all parameters of the default main program for None
    """

    settings: ClassVar[Any] = dict.fromkeys(("rate", "least", "most", "name"), as_it_is)

    def __init__(
        self, average_window_rate: float, parameters: Sequence[Parameter] | None = None,
        min_average_window: int = 10000, max_average_window: int = 10000, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.rate, self.name = check_number("average_window_rate", average_window_rate), f"{name}_" if name else ""
        for what, size in (("min_average_window", min_average_window), ("max_average_window", max_average_window)):
            fits = isinstance(size, int) and not isinstance(size, bool) and size > 0
            require(fits, f"{what} must be a positive int, is {size!r}", AttrError)
        self.least, self.most = min_average_window, max_average_window
        program = default_main_program()
        params = list(parameters) if parameters else program.all_parameters()
        require(params, f"program {program.name} has no parameters", NO_GRADIENT)
        block, startup = program.global_block(), default_startup_program().global_block()
        with block.whole(), startup.whole(), program.emitting("optimize"):
            self._append(Builder(block), startup, params)
        self.settle("ModelAverage(...)")

    def _append(self, g: Builder, startup: Any, params: list[Parameter]) -> None:
        def state(key: str, type: Any) -> Variable:
            return persistable(g.block, startup, f"{self.name}{key}", 0, type)[0]

        counters = [state(f"average_{key}", tensor_type((), int64)) for key in COUNTERS]
        self._counters = [v.name for v in counters]
        ran, since, moves, full = self._turn(g, *counters)
        self._sums: dict[Parameter, list[str]] = {}
        for p in params:
            sums = [state(f"{p.name}_{key}", state_type(p)) for key in ("sum_1", "sum_2", "sum_3")]
            now = p if p.dtype == sums[0].dtype else g.cast(p, dtype=sums[0].dtype)
            zero, total = g.fill_any_like(now, value=0), g.elementwise_add(sums[0], now)
            older = g.where(moves, g.elementwise_add(sums[1], total), sums[1])
            total = g.where(moves, zero, total)
            g.where(full, g.elementwise_add(total, older), sums[2], out={"Out": sums[2]})
            g.where(full, zero, total, out={"Out": sums[0]})
            g.where(full, zero, older, out={"Out": sums[1]})
            self._sums[p] = [v.name for v in sums]
        none = g.fill_constant(shape=(), value=0, dtype=int64)
        g.where(full, since, counters[2], out={"Out": counters[2]})
        g.where(full, none, since, out={"Out": counters[1]})
        g.assign(ran, out={"Out": counters[0]})

    def _turn(self, g: Builder, updates: Variable, accumulated: Variable, old: Variable) -> list[Variable]:
        """(runs, runs in this window, whether sum_1 moves to sum_2, whether the window is full)"""
        one, most = (g.fill_constant(shape=(), value=n, dtype=int64) for n in (1, self.most))
        ran, since = g.elementwise_add(updates, one), g.elementwise_add(accumulated, one)
        turns = g.elementwise_mod(ran, g.fill_constant(shape=(), value=RUNS_OF_A_SUM, dtype=int64))
        moves = g.equal(turns, g.fill_constant(shape=(), value=0, dtype=int64))
        share = g.cast(g.scale(g.cast(ran, dtype="float64"), scale=self.rate), dtype=int64)
        window = g.elementwise_min(most, share)
        least = g.fill_constant(shape=(), value=self.least, dtype=int64)
        return [ran, since, moves, g.logical_and(g.greater_equal(since, least), g.greater_equal(since, window))]

    def means(self, scope: Scope) -> dict[Parameter, np.ndarray]:
        """The means of parameters; none before the first run."""
        _, since, old = (int(scope.read(name)) for name in self._counters)
        if since + old == 0:
            return {}
        sums = {p: [scope.read(s) for s in own] for p, own in self._sums.items()}
        return {p: ((a + b + c) / (since + old)).astype(a.dtype) for p, (a, b, c) in sums.items()}

    @property
    def averaged(self) -> dict[Parameter, list[str]]:
        """The parameters."""
        return self._sums
