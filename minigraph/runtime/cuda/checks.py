"""Checks: kernels behind each operator that look at its results (check_nan_inf).

    operator's calls -> scan of each float result, and of what is read for the first time -> judge

All of them write one array of marks, so they run in the order of the program, whatever the order of the rest. What a
Scope keeps is written at the end, where nobody was refused. Values lie in one piece here: nothing is read by strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigraph.errors import NonFiniteError
from minigraph.kernels.cuda.elementwise.check_nan_inf import (
    FAULT,
    MARK,
    judge,
    record,
    scan,
    unpacked,
)
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.program import Program
from minigraph.runtime.nonfinite import (
    INFINITE,
    Finding,
    Seen,
    error,
    excused,
    inputs_excuse,
    looked_at,
    outputs,
)
from minigraph.runtime.schedule import Schedule, Step


class Checks:
    """The kernels that look at every float value, and what their record says; nonfinite.py has the rule."""

    def __init__(self, schedule: Schedule, program: Program, binder: Binder) -> None:
        """From now on every step may report, so that nothing is written into the Scope but at the end."""
        self.schedule, self.program = schedule, program
        self.marks = Buffer((len(schedule.values), MARK), np.dtype("int64"))
        self.marked: set[int] = set()
        binder.fault = record()
        binder.wrong = dict.fromkeys(range(len(schedule.steps)), "not finite")

    def before(self, binder: Binder, position: int, step: Step, buffers: Sequence[Buffer]) -> list[int]:
        """Record what looks at a step's inputs that nobody has seen; the inputs that are floats."""
        if position == 0:
            binder.zero(self.marks)
        return self._scan(binder, step.read, buffers)

    def after(
        self, binder: Binder, position: int, step: Step, buffers: Sequence[Buffer], inputs: Sequence[int]
    ) -> None:
        """Record what looks at a step's results and judges them by its inputs."""
        if position == 0:
            binder.scratches[-1].append(self.marks)  # so that a report of memory knows whose it is
        slots = {i: slot for slot, i in outputs(step)}
        written = self._scan(binder, step.written, buffers)
        if written:
            excuses, passes = excused(step.op), INFINITE if inputs_excuse(step.op) else 0
            pairs = [(i, excuses[slots[i]]) for i in written]
            judge(binder, self.marks, inputs, pairs, passes, position)

    def _scan(self, binder: Binder, indices: Sequence[int], buffers: Sequence[Buffer]) -> list[int]:
        """Those of the values that are floats, each marked by now."""
        own = [i for i in dict.fromkeys(indices) if looked_at(self.schedule.values[i])]
        for i in own:
            if i not in self.marked:
                self.marked.add(i)
                scan(binder, buffers[i], self.marks, i)
        return own

    def refused(self, words: np.ndarray) -> int | None:
        """The number of the operator that was; None where none was."""
        return int(words[FAULT]) - 1 if words[FAULT] else None

    def error(self, words: np.ndarray, hint: str | None = None) -> NonFiniteError:
        """The error that names it."""
        output, kinds, run, source = (int(word) for word in words[FAULT + 1 : FAULT + 5])
        held, given = words[FAULT + 5 : FAULT + 5 + MARK], words[FAULT + 5 + MARK :]
        step = self.schedule.steps[int(words[FAULT]) - 1]
        origin = (source, _seen(given)) if source >= 0 else None
        return error(self.schedule, step, Finding(output, _seen(held), kinds, origin, run), self.program, hint)


def _seen(mark: np.ndarray) -> Seen:
    (nans, plus, minus), (first, second, third) = unpacked(mark)
    return Seen((nans, plus, minus), (first, second, third))
