"""Questions: which of the traces of one function holds for other sizes, found on one way through what they asked.

A function does the same until an answer is another one. So its traces are a tree: what was computed up to a question,
then a branch for each of the answers that came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .symbolic import NO_SYMBOLS, Trace, TraceStep, Values

One = TypeVar("One")


@dataclass(slots=True)
class Branch(Generic[One]):
    """Steps up to a question to which several answers came, which are no condition any more, or to the end.

    answers   with what comes then;  end: what was traced, where there are none
    """

    steps: list[TraceStep]
    end: One | None
    answers: list[tuple[Any, Branch[One]]] = field(default_factory=list)


class Questions(Generic[One]):
    """Traces of one function by what they asked; a tree for each way to begin, of which there is one."""

    def __init__(self) -> None:
        self.roots: list[Branch[One]] = []

    def add(self, steps: Sequence[TraceStep], end: One) -> None:
        """What has these steps."""
        if not any(_grown(root, list(steps), end) for root in self.roots):
            self.roots.append(Branch(list(steps), end))

    def fitting(self, sizes: Sequence[int]) -> tuple[One, Values] | None:
        """What was traced for sizes that have all of its answers in common with these, and the values of its nodes."""
        for root in self.roots:
            found = [*sizes]
            try:
                end = _end(root, found)
            except NO_SYMBOLS:  # a quotient by 0, say
                continue
            if end is not None:
                return end, found
        return None


def _end(branch: Branch[One], found: Values) -> One | None:
    """The end to which the answers of these sizes lead, and with `found` the values of the nodes before it."""
    while True:
        for function, a, b, asked, known in branch.steps:
            value = a if function is None else function(found[a], found[b])
            found.append(value)
            if asked and value != known:
                return None
        if branch.end is not None:
            return branch.end
        answer = found[-1]
        for known, there in branch.answers:
            if known == answer:
                branch = there
                break
        else:
            return None


def _grown(branch: Branch[One], steps: list[TraceStep], end: One) -> bool:
    """Let a tree have a way to this end, if all ways ask the same up to an answer that is another one."""
    while True:
        own, last = branch.steps, len(branch.steps) - 1 if branch.answers else -1
        for at, (one, other) in enumerate(zip(own, steps, strict=False)):
            if one[:3] != other[:3] or type(one.a) is not type(other.a) or other.asked != (one.asked or at == last):
                return False
            if one.asked and one.value != other.value:
                tail = Branch(own[at + 1 :], branch.end, branch.answers)
                branch.steps = [*own[:at], one._replace(asked=False)]
                branch.answers, branch.end = [(one.value, tail), (other.value, Branch(steps[at + 1 :], end))], None
                return True
        if len(steps) < len(own) or (len(steps) > len(own) and not branch.answers):
            return False
        if not branch.answers:
            branch.end = end
            return True
        answer, steps = steps[last].value, steps[len(own) :]
        known = next((there for before, there in branch.answers if before == answer), None)
        if known is None:
            branch.answers.append((answer, Branch(steps, end)))
            return True
        branch = known


def program(trace: Trace) -> Callable[[Sequence[int]], Values | None]:
    """A function from other sizes to the values of all nodes; None where an answer is another one."""
    own = Questions[bool]()
    own.add(trace.steps, True)

    def values(sizes: Sequence[int]) -> Values | None:
        found = own.fitting(sizes)
        return None if found is None else found[1]

    return values
