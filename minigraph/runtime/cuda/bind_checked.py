"""CheckedProgram: a BoundProgram with kernels behind each operator that look at its results (check_nan_inf).

    operator's calls -> scan of each float result, and of what is read for the first time -> judge

All of them write one array of marks, so they run in the order of the program, whatever the order of the rest. What a
Scope keeps is written at the end, where nobody was refused. Values lie in one piece here: nothing is read by strides.
"""

from __future__ import annotations

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
from minigraph.runtime.options import RunOptions
from minigraph.runtime.schedule import Schedule, Step

from .bind import BoundProgram
from .strided import show_changes_of_shape


class Checks:
    """What the record of a plan says of operators that were refused."""

    def __init__(self, schedule: Schedule, program: Program) -> None:
        self.schedule, self.program = schedule, program

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


class CheckedProgram(BoundProgram):
    """A BoundProgram that looks at every float value; nonfinite.py has the rule."""

    show = staticmethod(show_changes_of_shape)

    def _make_buffers(self) -> list[Buffer]:
        """Every operator may report from now on, so that nothing is written into the Scope but at the end."""
        self.checks = Checks(self.schedule, self.program)
        self.binder.fault = record()
        self.binder.wrong = dict.fromkeys(range(len(self.schedule.steps)), "not finite")
        self.marks = Buffer((len(self.schedule.values), MARK), np.dtype("int64"))
        self.marked: set[int] = set()
        return super()._make_buffers()

    def _is_constant(self, step: Step) -> bool:
        """Every step is looked at in every run."""
        return False

    def _stores(self, step: Step) -> bool:
        """What a Scope keeps is written behind the last step."""
        return step is self.schedule.steps[-1] and any(map(super()._stores, self.schedule.steps))

    def _last_report(self) -> int:
        """Every step may refuse its results."""
        return len(self.schedule.steps) - 1

    def _record(self, position: int, step: Step) -> None:
        if position == 0:
            self.binder.zero(self.marks)
        inputs = self._scan(step.read)
        super()._record(position, step)
        if position == 0:
            self.binder.scratches[-1].append(self.marks)  # so that a report of memory knows whose it is
        slots = {i: slot for slot, i in outputs(step)}
        written = self._scan(step.written)
        if written:
            excuses, passes = excused(step.op), INFINITE if inputs_excuse(step.op) else 0
            pairs = [(i, excuses[slots[i]]) for i in written]
            judge(self.binder, self.marks, inputs, pairs, passes, position)

    def _scan(self, indices: list[int]) -> list[int]:
        """Those of the values that are floats, each marked by now."""
        own = [i for i in dict.fromkeys(indices) if looked_at(self.schedule.values[i])]
        for i in own:
            if i not in self.marked:
                self.marked.add(i)
                scan(self.binder, self.buffers[i], self.marks, i)
        return own


def program_class(options: RunOptions) -> type[BoundProgram]:
    """What binds a program for these options."""
    return CheckedProgram if options.check_nan_inf else BoundProgram
