"""CheckedPlan: a Plan that looks at every float result (check_nan_inf), on a CPU.

A run that fails leaves the Scope as it was: what steps write is kept until the run is through (undo.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import NonFiniteError, ProgramError
from minigraph.program.scope import Scope
from minigraph.runtime.nonfinite import (
    Finding,
    Seen,
    as_user_names_it,
    back,
    error,
    judged,
    look,
    looked_at,
    members_of,
)
from minigraph.runtime.schedule import Schedule, Step, flat
from minigraph.runtime.undo import Undo
from minigraph.types import TensorType

from .plan import Plan


class CheckedPlan(Plan):
    """A Plan in which the first operator that gives NaN or an infinity is an error; nonfinite.py has the rule."""

    run_number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.undo = Undo(self.schedule.steps, any_may_fail=True)

    def run(self, feeds: Mapping[str, np.ndarray], scope: Scope, return_numpy: bool = True) -> list[np.ndarray]:
        """As in a Plan; where it fails, the Scope holds what it held before."""
        self.run_number = scope.steps[self.program.origin]
        return super().run(feeds, scope, return_numpy)

    def _lasting(self, bound: Any, env: Any, facts: Any) -> None:
        """Every step is looked at in every run."""

    def _call(self, step: Step, kernel: Callable[..., Any], *arrays: np.ndarray) -> Any:
        """What the kernel returns, once it has been looked at."""
        results = super()._call(step, kernel, *arrays)
        arrays = (results,) if len(step.outputs) == 1 or not isinstance(results, tuple) else results
        written = self._seen(step.outputs, arrays)
        if any(seen.kinds for seen in written.values()):
            given = kernel.args  # type: ignore[attr-defined]  (a partial: the inputs by slot)
            finding = judged(step, self._seen(step.inputs, given), written, self.run_number)
            if finding is not None:
                raise self._error(step, finding, given)
        return results

    def _seen(self, slots: Any, arrays: Any) -> dict[int, Seen]:
        """What the values in these slots hold."""
        pairs = [
            pair
            for slot, array in zip(slots, arrays, strict=True)
            for pair in (zip(slot, array, strict=True) if isinstance(slot, list) else [(slot, array)])
        ]
        return {i: look(np.asarray(a)) for i, a in pairs if isinstance(i, int) and looked_at(self.values[i])}

    def _error(self, step: Step, finding: Finding, given: Any) -> NonFiniteError:
        """The error; of a fused operator it names the member, found by running the members one by one."""
        problem = error(self.schedule, step, finding, self.program)
        name = self.values[finding.value].name
        members = members_of(step.op, name, self.program)
        if not members:
            return problem
        inner = self._of_members(step, name, given)
        problem.site = members[-1].site or problem.site
        if isinstance(inner, NonFiniteError):
            problem.site = inner.site or problem.site
            problem.fact += f"; of these the first that fails is {inner.call}: {inner.what}"
            problem.hint = inner.hint
        elif inner is None:
            problem.fact += "; computed one by one they are finite"
        return problem

    def _of_members(self, step: Step, name: str, given: Any) -> Exception | None:
        """What the user's own operators say to the inputs of a fused one; None where they compute `name` well."""
        before, feeds = self.program.before, dict[str, np.ndarray]()
        assert before is not None
        name = as_user_names_it(name, self.program)
        for slot, array in zip(step.inputs, given, strict=True):
            for i, a in zip(flat([slot]), array if isinstance(slot, list) else [array], strict=False):
                if isinstance(i, int) and (own := as_user_names_it(self.values[i].name, self.program)) in before.vars:
                    feeds[own] = a
        if name in feeds:
            return ProgramError(f"{name} is read and written")
        scope = Scope()
        scope.steps[before.origin] = self.run_number
        try:
            feeds |= self._of_types(back(before.ops, name, feeds)[1])
            types = {n: TensorType(a.shape, a.dtype) for n, a in feeds.items()}
            CheckedPlan(before, types, (name,), (), self.seed, self.options).run(feeds, scope)
        except Exception as problem:  # whatever it is, it must not hide the error that is told
            return problem
        return None

    def _of_types(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Arrays of the types that these values of the user's program have in this run, for who reads no numbers."""
        before = self.program.before
        if before is None or not names:
            return {}
        known = {n: v.type for n, v in before.vars.items() if v.is_data and v.type.is_static}
        own = [(as_user_names_it(v.name, self.program), v) for v in self.values if not v.persistable]
        known |= {n: v.type for n, v in own if n in before.vars}
        types = {v.name: v.type for v in Schedule(before, known, names, ()).values}
        return {n: np.zeros(types[n].shape, types[n].dtype) for n in names}
