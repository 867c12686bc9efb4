"""Random programs with the passes off and on.

    python -m tests.fuzz N [--seed S] [--flags FLAG ...]

Each program runs without passes and with four choices of flags: all, one, some at random, and an ordered pair. Prints
how often each rule applied and each refusal was given. A program whose results differ is shrunk to
the layers that matter; its seed, flags and text are printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from minigraph.compiler.strategy import PASSES, BuildStrategy
from minigraph.compiler.validate import distance, evaluate
from minigraph.errors import MinigraphError
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.graph import Graph
from minigraph.ir.verify import verify, verify_changes
from minigraph.passes.engine.log import PassReport
from minigraph.program import Program
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.types import float64
from tests.support.random_programs import Case, random_program

TOLERANCE = 1e-12
STEPS = 3

Flags = tuple[str, ...]
STEPS_OF = {step.flag: step for step in PASSES}
FLAGS: Flags = tuple(STEPS_OF)  # in the order of the pipeline
ORDERED: list[Flags] = list(permutations(FLAGS, 2))

REASONS = {
    "fetched": r"is fetched, the fused operator would not produce it",
    "persistable": r"is persistable, the fused operator",
    "other reader": r"is also read by",
    "in place": r"is updated in place$",
    "cannot be brought together": r"cannot be brought together: .* (computed later|updated in place before)",
    "cannot stand here": r"cannot stand here",
    "overwritten before": r"would be overwritten before",
    "shape reader": r"needs the shape of",
    "enters twice": r"enters \w+ twice",
    "differentiated twice": r"is differentiated twice",
    "several gradients": r"gradients flow into",
    "inner gradient": r"is the gradient of an inner value|gives no gradient of|DLoss must be",
    "X dtype": r"X must be a float",
    "X rank": r"X must have rank 2 or more",
    "few classes": r"classes are no larger than X",
    "Y rank": r"Y must be 2-D",
    "Bias rank": r"Bias must be \[N\] or \[1, N\]",
    "Bias axis": r"added along axis",
    "trans_x": r"trans_x needs X of rank 2",
    "Bias size": r"one element per column",
    "no ReserveSpace": r"so no ReserveSpace is kept",
    "more axes than X": r"^X and Out_grad must have one rank",
    "its gradient is computed": r"computes its gradient$",
    "must be written": r"it must be written$",
    "cannot read instead": r"cannot read .* instead: .* updated in place before$",
    "differentiated": r"is differentiated$",
    "persistable constant": r"is persistable$",
    "long to compute": r"too many to compute",
    "too long for a literal": r"too many for a literal$",
    "changes later": r"changes later$",
    "of another role": r"keeping it would cost memory$",
    "gradient of another operator": r"is no gradient of the same operator$",
    "operands in another order": r"operands in another order$",
    "cast rounds": r"the first cast rounds$",
    "cast is not defined": r"makes of them is not defined$",
    "other axes": r"is not a swap of the last two axes$",
    "rows of a batch": r"a product over all rows$",
    "sum of what was broadcast": r"sums where an operand was broadcast$",
    "axis inside": r"places Y of \w+ inside X$",
    "reads nothing": r"^it reads nothing$",
    "nobody reads": r"^nobody reads what it writes$",
    "depends on the loss": r"^the scores are computed twice",
    "loss and gradient": r"^the loss and its gradient stay apart",
    "W rank": r"W must be 2-D",
    "no product to add": r"over a batch that was broadcast|X and Y must have rank 2",
    "alone": r"^alone: ",
    "read for a norm": r"for what the norm's gradient waits for$",
    "gradients of a norm": r" has \d+ gradients$",
    "few rows": r"rows for certain, fewer than",
    "no plain layer": r"does more than a linear layer$|is no product with a matrix$|is the weight of two$",
}
SELDOM = {  # in random programs; test_fuse_foreach.py has the first four, tests and fixtures of rules the others
    "written twice": r"is written twice$",
    "written again": r"is written again$",
    "left to share a kernel": r"is left to share a kernel with",
    "too long for a kernel": r"values of a tensor are read and written, \d+ can be$|operators meet, a kernel",
    "own operand": r"would be an operand of what computes it$",
    "backward does not read": r"^backward does not read",
    "not kept": r"is not kept for backward$|cannot wait",
    "memory": r"needs more memory: |need more memory at once",
    "read as a whole": r"which would need a copy$",
    "not there any more": r"^\S+ is (computed later|updated in place before)$",
}


@dataclass
class Outcome:
    """What the passes did to one program, or to many."""

    applied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        self.applied += other.applied
        self.refused += other.refused


class Different(AssertionError):
    """The passes changed what a program computes, or left a graph that is not in order."""


def reason_key(reason: str) -> str:
    """The entry of these tables that a refusal belongs to; the reason itself if there is none."""
    known = REASONS | SELDOM
    return next((key for key, pattern in known.items() if re.search(pattern, reason)), reason)


def choices(seed: int) -> list[Flags]:
    """All flags that can be on together, one of them, and some at random."""
    together = tuple(f for f in FLAGS if STEPS_OF[f].in_all)
    some = [f for f in FLAGS if random.Random(seed * 31 + len(f) + ord(f[-1])).random() < 0.5]
    some = [f for f in some if not STEPS_OF[f].conflicts.keys() & set(some)]
    return [together, (FLAGS[seed % len(FLAGS)],), tuple(some)]


def pair(seed: int) -> Flags:
    """Two flags in an order that the next program does not have, also in one that the table does not use."""
    return ORDERED[seed % len(ORDERED)]


def check(case: Case, chosen: Sequence[Flags] | None = None) -> Outcome:
    """Compare all results of `case` without passes and with each choice of flags; raises Different."""
    outcome, seen = Outcome(), {case.text}
    for flags in choices(case.seed) if chosen is None else chosen:
        after, found = passed(case, flags)
        outcome.add(found)
        if (text := dump(after)) in seen:
            continue
        seen.add(text)
        try:
            on = run(case, after)
        except MinigraphError as problem:
            raise Different(f"the program after {' '.join(flags)} does not run: {problem}") from problem
        _compare(expected(case), on, " ".join(flags))
    return outcome


def expected(case: Case) -> dict[str, np.ndarray]:
    """The results without passes, computed once and compared with an interpreter's."""
    if case.results is None:
        case.results = run(case, case.program)
        if not any(v.type.is_float and v.dtype != float64 for v in case.program.list_vars()):  # else it rounds less
            first = {n: a for n, a in case.results.items() if n.endswith("#0")}
            _compare(_interpreted(case), first, "the Executor")
    return case.results


def passed(case: Case, flags: Flags) -> tuple[Program, Outcome]:
    """The program of `case` after the passes of `flags` in that order, each followed by a check of what it changed."""
    outcome = Outcome()
    graph = to_graph(case.program, case.fetches)
    verify(graph)
    for flag in flags:
        forward = sum(op.role == "forward" for op in graph.ops)
        report = PassReport(flag)
        try:
            options = {name: getattr(BuildStrategy(), name) for name in STEPS_OF[flag].options}
            applied = STEPS_OF[flag].apply(graph, report, **options)
            verify_changes(graph, flag)
        except (MinigraphError, AssertionError, StopIteration) as problem:
            raise Different(f"{flag}: {type(problem).__name__}: {problem}") from problem
        _require(applied == len(report.applied), f"{flag} says {applied}, its report {len(report.applied)}")
        _check_structure(graph, case, report, forward)
        outcome.applied.update(a.rule for a in report.applied)
        outcome.refused.update(reason_key(r.reason) for r in report.refused)
    try:
        verify(graph, " ".join(flags))  # whole: also what changed without the Graph's knowledge
    except MinigraphError as problem:
        raise Different(str(problem)) from problem
    return to_program(graph, case.program), outcome


def _check_structure(graph: Graph, case: Case, report: PassReport, forward: int) -> None:
    names = {v.name for v in graph.vars.values()}
    _require(names.issuperset(case.fetches), "a fetched value is gone")
    for op in graph.ops:
        _require(any(op.output_vars), f"{op.type} writes nothing")
        needed = {s.name for s in op.opdef.outputs if not s.optional}
        for slot, vs in op.outputs.items():
            for v in vs:
                new = op.rewriter == report.name and v.source is None
                copied = report.name == "recompute" and slot in needed  # with all that its operator must write
                _require(not new or v.consumers or copied, f"{slot}={v.name} of {op.type} is new and nobody reads it")
    if report.name != "fuse_gemm_epilogue":
        return
    saved = sum(len(a.old) - 1 for a in report.applied if a.role == "forward")
    left = sum(op.role == "forward" for op in graph.ops)
    _require(left == forward - saved, f"{forward} forward operators, {saved} saved, {left} left")


def _require(condition: object, fact: str) -> None:
    if not condition:
        raise Different(fact)


def run(case: Case, program: Program) -> dict[str, np.ndarray]:
    """Fetched values of all steps as `name#step`, and the persistables after them."""
    scope, exe, results = Scope(), Executor(), {}
    for name, array in case.values.items():
        scope.write(name, array.copy())
    for step in range(STEPS):
        fetched = exe.run(program, feed=case.feeds, fetch_list=case.fetches, scope=scope)
        results |= {f"{n}#{step}": a for n, a in zip(case.fetches, fetched, strict=True)}
    return results | {n: scope.read(n) for n in scope.list_names()}


def _interpreted(case: Case) -> dict[str, np.ndarray]:
    env = evaluate(case.program, {**case.values, **case.feeds})
    return {f"{n}#0": env[n] for n in case.fetches}


def _compare(expected: dict[str, np.ndarray], found: dict[str, np.ndarray], who: str) -> None:
    peak = max((np.max(np.abs(a[np.isfinite(a)]), initial=0.0) for a in expected.values()), default=0.0)
    for name, array in expected.items():
        difference = distance(array, found[name], floor=max(1e-3 * peak, 1e-30))
        _require(difference <= TOLERANCE, f"{who} changed {name} by {difference:.3g}")


def failure(seed: int, chosen: Sequence[Flags] | None = None, **options: Any) -> str | None:
    """Why the program of `seed` fails, None if it does not."""
    try:
        check(random_program(seed, **options), chosen)
    except Different as problem:
        return str(problem)
    except Exception as problem:  # whatever breaks is a finding
        return f"{type(problem).__name__}: {problem}"
    return None


def shrink(seed: int, chosen: Sequence[Flags] | None = None) -> Case:
    """The failing program of `seed` with as few layers and fetches as still fail."""
    layers = list(range(random_program(seed).layers))
    for layer in list(layers):
        fewer = [i for i in layers if i != layer]
        if failure(seed, chosen, layers=fewer):
            layers = fewer
    bare = failure(seed, chosen, layers=layers, bare=True) is not None
    return random_program(seed, layers, bare)


def main() -> int:
    parser = argparse.ArgumentParser(description="random programs with the passes off and on")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--flags", nargs="*", choices=FLAGS, help="only these, together")
    options = parser.parse_args()
    given = None if options.flags is None else [tuple(f for f in FLAGS if f in options.flags)]
    start, total, fused = time.perf_counter(), Outcome(), 0
    for seed in range(options.seed, options.seed + options.count):
        chosen = [*choices(seed), pair(seed)] if given is None else given
        try:
            outcome = check(random_program(seed), chosen)
        except Exception:  # the shrunk program and its seed say more than a traceback
            print(f"seed {seed}: {failure(seed, chosen)}")
            case = shrink(seed, chosen)
            print(f"{', '.join(case.description)}\n{case.program}\nfetch {case.fetches}")
            return 1
        fused += bool(outcome.applied)
        total.add(outcome)
    print(f"{options.count} programs equal, {fused} changed, {time.perf_counter() - start:.1f} s")
    for title, counts in (("applied", total.applied), ("refused", total.refused)):
        print(title)
        for name, number in counts.most_common():
            print(f"  {name:<30} {number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
