"""History: every rewrite of a compilation in order, and the program after each.

    compiled.history           print it: one line for each rewrite
    compiled.history[3].after  the operators that the fourth rewrite made
    compiled.at(3)             the program after three rewrites

The engine keeps it: a PassReport tells of each rewrite once the graph has it, and a RecordedGraph
says which operators that touched. What a pass clears away afterwards belongs to its last rewrite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from minigraph.errors import CallSite, require
from minigraph.errors.kinds import CHANGED, UNKNOWN_NAME
from minigraph.ir.recorded import OpState, RecordedGraph, Touched, is_same, program_of, states_of
from minigraph.program import Operator, Program

from .log import Applied, PassReport

Changes = dict[int, tuple[OpState | None, OpState | None]]
PREPARATION = "Preparation"  # what a pass without a rewrite did to the graph


@dataclass(frozen=True)
class RewriteStep:
    """One rewrite.

    number   1 for the first of the compilation
    flag     the pass, and rule: which equation of it
    what     its line in explain(), `out = fused_gemm_epilogue   from matmul t, elementwise_add out`
    reason   the equation of the rule, or the sentence of the pass
    site     the user's line
    changes  {key of an operator: (before, after)}, None where it was not there
    block    the block of a branch or a loop in which it happened; `changes` has the operator that holds it, and
             inside   those of the block
    """

    number: int
    flag: str
    rule: str
    what: str
    reason: str
    site: CallSite | None
    changes: Changes
    block: str = ""
    inside: Changes = field(default_factory=dict)

    @property
    def before(self) -> list[OpState]:
        """The operators that it took out or changed, in the order of the program."""
        return _in_order([old for old, _ in (self.inside or self.changes).values()])

    @property
    def after(self) -> list[OpState]:
        """The operators that it put in or changed, in the order of the program."""
        return _in_order([new for _, new in (self.inside or self.changes).values()])

    def __str__(self) -> str:
        """`  3 fuse_gemm_epilogue   LinearBias   out = fused_gemm_epilogue   train.py:12`"""
        where = (f"   in {self.block}" if self.block else "") + (f"   {self.site}" if self.site else "")
        return f"{self.number:4} {self.flag:<32} {self.rule:<20} {self.what}{where}"


def _in_order(states: Sequence[OpState | None]) -> list[OpState]:
    return sorted([s for s in states if s is not None], key=lambda s: s.rank)


@dataclass
class _Note:
    """What is kept of one rewrite while passes run."""

    flag: str
    apply: Callable[..., Any]
    entry: Applied
    touched: Touched


@dataclass
class BlockHistory:
    """The rewrites in a block; the operator `key` holds it as its attribute `attr`."""

    key: int
    attr: str
    history: History

    def put(self, states: dict[int, Any], number: int) -> None:
        """Let the operator hold the block as it is after so many rewrites of it."""
        state = states[self.key]
        states[self.key] = state._replace(attrs={**state.attrs, self.attr: self.history.at(number)})


class History(Sequence[RewriteStep]):
    """The rewrites of one compilation, in order: those in blocks come first, as passes do them.

    source   the program before them;  ops: those of its operators that are compiled;  blocks: that they hold
    Steps are made of the notes when they are first looked at.
    """

    def __init__(
        self, source: Program, ops: Sequence[Operator], notes: list[_Note], blocks: Sequence[BlockHistory] = ()
    ) -> None:
        self.source, self._ops, self._notes, self._version = source, ops, notes, source.version
        self._blocks = [block for block in blocks if len(block.history)]
        self._before = sum(len(block.history) for block in self._blocks)  # rewrites ahead of the first note

    @cached_property
    def initial(self) -> dict[int, OpState]:
        """{key: operator} before the first rewrite; an error where the program was changed since."""
        require(
            self.source.version == self._version, f"program {self.source.name} was changed after it was compiled",
            CHANGED, "make a new CompiledProgram",
        )  # fmt: skip
        return states_of(self._ops)

    @cached_property
    def steps(self) -> list[RewriteStep]:
        states: dict[int, OpState | None] = dict(self.initial)
        steps = self._steps_in_blocks(states)
        for number, note in enumerate(self._notes, len(steps) + 1):
            pairs = {key: (states.get(key), new) for key, new in note.touched.items()}
            states.update(note.touched)
            changes = {key: pair for key, pair in pairs.items() if not is_same(*pair)}
            entry = note.entry
            what = f"{entry.new}   from {', '.join(entry.old)}" if entry.old else entry.new
            reason = entry.why or _sentence(note.apply)
            steps.append(RewriteStep(number, note.flag, entry.rule, what, reason, entry.site, changes))
        return steps

    def _steps_in_blocks(self, states: dict[int, Any]) -> list[RewriteStep]:
        """The rewrites of blocks; `states` gets what they make of the operators that hold these."""
        steps: list[RewriteStep] = []
        for block in self._blocks:
            for number, step in enumerate(block.history, 1):
                old = states[block.key]
                block.put(states, number)
                name, inside = step.block or block.history.source.name, step.inside or step.changes
                changes = {block.key: (old, states[block.key])}
                steps.append(replace(step, number=len(steps) + 1, changes=changes, block=name, inside=inside))
        return steps

    def __getitem__(self, index: Any) -> Any:
        return self.steps[index]

    def __len__(self) -> int:
        return self._before + len(self._notes)

    def __iter__(self) -> Iterator[RewriteStep]:
        return iter(self.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or "no rewrite"

    def __repr__(self) -> str:
        return f"<History of {self.source.name}: {len(self)} rewrites>"

    def states_at(self, number: int) -> dict[int, OpState]:
        """{key: operator} after so many rewrites; an error where there are fewer."""
        fits = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= len(self)
        require(
            fits, f"{number!r} is no step of this compilation, which has {len(self)}", UNKNOWN_NAME,
            "0 is the program before the first rewrite",
        )  # fmt: skip
        states: dict[int, OpState | None] = dict(self.initial)
        left = number
        for block in self._blocks:
            block.put(states, min(left, len(block.history)))
            left = max(left - len(block.history), 0)
        for note in self._notes[:left]:
            states.update(note.touched)
        return {key: state for key, state in states.items() if state is not None}

    def at(self, number: int) -> Program:
        """The program after so many rewrites."""
        return program_of(self.states_at(number), self.source)

    def ends(self) -> dict[str, int]:
        """{pass: number of its last rewrite}, in order."""
        inside = {flag: self._before for block in self._blocks for flag in block.history.ends()}
        return inside | {note.flag: number for number, note in enumerate(self._notes, self._before + 1)}


class Recorder:
    """Fills a History while passes run on a RecordedGraph."""

    def __init__(
        self, graph: RecordedGraph, source: Program, ops: Sequence[Operator], blocks: Sequence[BlockHistory]
    ) -> None:
        self.graph, self.notes = graph, list[_Note]()
        self.history = History(source, ops, self.notes, blocks)
        graph.start()

    def listen(self, report: PassReport, apply: Callable[..., Any]) -> None:
        """From now on `report` tells of rewrites; `apply` is the pass."""
        report.told = lambda entry: self.notes.append(_Note(report.name, apply, entry, self.graph.taken()))

    def close(self, report: PassReport, apply: Callable[..., Any]) -> None:
        """Note what the pass did behind its last rewrite."""
        report.told, touched = None, self.graph.taken()
        if touched and self.notes and self.notes[-1].flag == report.name:
            self.notes[-1].touched.update(touched)
        elif touched:
            self.notes.append(_Note(report.name, apply, Applied(PREPARATION, "other operators", (), None), touched))


def _sentence(apply: Callable[..., Any]) -> str:
    """The first line of the file of a pass, without the name before it."""
    text = sys.modules[apply.__module__].__doc__ or ""
    return text.strip().partition("\n")[0].partition(": ")[2]
