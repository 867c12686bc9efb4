"""A run that fails leaves what the Scope keeps as it was before, or says that it could not.

Most programs update last: what may refuse a value, a bad index or a label that is no class, comes
before, and then nothing has changed. Where such an operator (trait `reports`) comes after one that
writes a persistable, the old value is kept until the run is through. What nobody foresees, no memory
or Ctrl-C in the middle of the updates, marks the values that are neither old nor new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigraph.errors import shortened
from minigraph.opdef.body import parse_body
from minigraph.program.operator import Operator
from minigraph.program.scope import Scope

from .schedule import Step, flat


def reports(op: Operator) -> bool:
    """Whether an operator, or one of which a fused operator consists, may refuse values when it runs."""
    if "reports" in op.opdef.traits:
        return True
    body = op.attrs.get("body")
    return isinstance(body, (list, tuple)) and any("reports" in m.opdef.traits for m in parse_body(tuple(body)))


def last_report(steps: Sequence[Step]) -> int:
    """The position of the last step that may refuse values; -1 where none does."""
    return next((i for i in range(len(steps) - 1, -1, -1) if reports(steps[i].op)), -1)


class Undo:
    """What the steps of a program write into a Scope, and which of it is kept until a run is through.

    kept     steps before the last one that may refuse values
    others   positions of all other steps that write; True where they write over an array of the Scope
    """

    def __init__(self, steps: Sequence[Step], any_may_fail: bool = False) -> None:
        """any_may_fail: every step may refuse values, as where results are checked for NaN."""
        last = len(steps) if any_may_fail else last_report(steps)
        self.steps = steps
        self.kept = frozenset(i for i, step in enumerate(steps) if step.stored and i < last)
        self.others = {
            i: any(source is not None for source in flat(step.in_place))
            for i, step in enumerate(steps) if step.stored and i not in self.kept
        }  # fmt: skip
        self.names = tuple(dict.fromkeys(name for step in steps for _, name in step.stored))

    def keep(self, position: int, scope: Scope, old: dict[str, Any]) -> None:
        """Add to `old` what step `position` is about to write: the array, and a copy where it is written over."""
        step = self.steps[position]
        over = any(source is not None for source in flat(step.in_place))
        for _, name in step.stored:
            if name not in old:
                array = scope.arrays.get(name)
                old[name] = array, array.copy() if over and array is not None else None

    def after_failure(
        self, position: int, scope: Scope, old: dict[str, Any], problem: BaseException, what: str, stored: bool
    ) -> None:  # fmt: skip
        """Step `position` of a run of program `what` failed: bring back what was, else mark what is uncertain.

        stored  whether the run gave a name another array: the step may have done so with some of its results
        """
        _restore(scope, old)
        if any(i < position or (i == position and (over or stored)) for i, over in self.others.items()):
            scope.tear(self.names, why(problem, what))

    def after_run(self, scope: Scope) -> None:
        """What the run has written is certain."""
        for name in self.names:
            scope.torn.pop(name, None)


def why(problem: BaseException, what: str) -> str:
    """What the mark of a value says."""
    text = shortened(str(problem).splitlines()[0]) if str(problem) else ""
    return f"a run of program {what} ended between its updates ({type(problem).__name__}{': ' * bool(text)}{text})"


def _restore(scope: Scope, old: dict[str, Any]) -> None:
    for name, (array, copy) in old.items():
        if array is None:
            scope.arrays.pop(name, None)
            continue
        if copy is not None:
            np.copyto(array, copy)
        if scope.arrays.get(name) is not array:
            scope.arrays[name] = array


def check_whole(scope: Scope, names: Iterable[str]) -> None:
    """None of these is marked."""
    for name in names:
        scope.check_whole(name)
