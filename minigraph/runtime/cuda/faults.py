"""Faults: what kernels of a plan reported, as errors that name the operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors.kinds import INDEX
from minigraph.kernels.cuda.collective.faults import ELSEWHERE
from minigraph.kernels.groups import RankError

from .bind import BoundProgram


class Faults:
    """The first value that a kernel of a plan could not take since somebody looked.

    After runs without fetches nobody has: the Scope that they changed keeps this, not the plan, until somebody does.
    """

    def __init__(self, bound: BoundProgram, runtime: Any, memory: Any) -> None:
        """`memory` holds the record, of zeros: there is none."""
        self.runtime, self.memory = runtime, memory
        self.record, self.wrong, self.schedule = bound.binder.fault, bound.binder.wrong, bound.schedule
        self.checks = bound.checks

    def clear(self) -> None:
        """There is none."""
        self.runtime.upload(np.zeros(self.record.shape, self.record.dtype), self.record)

    def check(self) -> None:
        """Wait for all runs so far; an error where one had a fault."""
        with self.runtime.turn:
            record = self.runtime.fetch(self.record, as_numpy=True)
            self.runtime.stream.synchronize()
            self.judge(record, "a run before this call had it; runs without fetches do not wait for the GPU")

    def judge(self, record: np.ndarray, hint: str | None = None) -> None:
        """Turn what a kernel reported into an error that names its operator, the first one of the program."""
        refused = self.checks.refused(record) if self.checks is not None else None
        if self.checks is not None and refused is not None and not (record[0] and record[1] <= refused):
            self.clear()
            raise self.checks.error(record, hint)
        if record[0]:
            number, value, row = (int(x) for x in record[1:4])
            self.clear()
            if number == ELSEWHERE:
                raise RankError(
                    (), "another rank found a value in this run that it could not take: no rank has updated anything",
                    hint="that rank's error names the value and the operator",
                )
            step = self.schedule.steps[number]
            raise INDEX(
                f"value {value} at row {row} is {self.wrong[number]}", call=self.schedule.call(step), site=step.op.site,
                hint=hint,
            )  # fmt: skip
