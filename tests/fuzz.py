"""Random programs with the passes off and on.

    python tests/fuzz.py N [--seed S]

Prints how often each rule applied and each refusal was given. A program whose results differ is
shrunk to the layers that matter; its seed and text are printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from random_programs import Case, random_program

from minigraph.errors import MinigraphError
from minigraph.executor import Executor
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.graph import Graph
from minigraph.ir.verify import verify
from minigraph.passes.log import PassReport
from minigraph.program import Program
from minigraph.scope import Scope
from minigraph.strategy import PASSES
from minigraph.validate import distance, evaluate

TOLERANCE = 1e-12
STEPS = 3

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
    "inner gradient": r"is the gradient of an inner value",
    "X dtype": r"X must be a float",
    "X rank": r"X must have rank 2 or more",
    "Y rank": r"Y must be 2-D",
    "Bias rank": r"Bias must be 1-D",
    "Bias axis": r"added along axis",
    "trans_x": r"trans_x needs X of rank 2",
    "Bias size": r"one element per column",
    "no ReserveSpace": r"so no ReserveSpace is kept",
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
    """The entry of REASONS that a refusal belongs to; the reason itself if there is none."""
    return next((key for key, pattern in REASONS.items() if re.search(pattern, reason)), reason)


def check(case: Case) -> Outcome:
    """Compare all results of `case` with the passes off and on; raises Different."""
    after, outcome = passed(case)
    off = run(case, case.program)
    try:
        on = run(case, after)
    except MinigraphError as problem:
        raise Different(f"the program after the pass does not run: {problem}") from problem
    _compare(_interpreted(case), {n: a for n, a in off.items() if n.endswith("#0")}, "the Executor")
    _compare(off, on, "the pass")
    return outcome


def passed(case: Case) -> tuple[Program, Outcome]:
    """The program of `case` after the passes, each followed by a check of the graph's structure."""
    outcome = Outcome()
    graph = to_graph(case.program, case.fetches)
    verify(graph)
    for name, apply in [(s.flag, s.apply) for s in PASSES if s.flag == "fuse_gemm_epilogue"]:
        forward = sum(op.role == "forward" for op in graph.ops)
        report = PassReport(name)
        try:
            apply(graph, report)
            verify(graph, name)
        except (MinigraphError, AssertionError, StopIteration) as problem:
            raise Different(f"{type(problem).__name__}: {problem}") from problem
        _check_structure(graph, case, report, forward)
        outcome.applied.update(a.rule for a in report.applied)
        outcome.refused.update(reason_key(r.reason) for r in report.refused)
    return to_program(graph, case.program), outcome


def _check_structure(graph: Graph, case: Case, report: PassReport, forward: int) -> None:
    names = {v.name for v in graph.vars.values()}
    _require(names.issuperset(case.fetches), "a fetched value is gone")
    for op in graph.ops:
        _require(any(op.output_vars), f"{op.type} writes nothing")
        for slot, vs in op.outputs.items():
            for v in vs:
                new = op.rewriter is not None and v.source is None
                _require(not new or v.consumers, f"{slot}={v.name} of {op.type} is new and nobody reads it")
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


def failure(seed: int, **options: object) -> str | None:
    """Why the program of `seed` fails, None if it does not."""
    try:
        check(random_program(seed, **options))
    except Different as problem:
        return str(problem)
    except Exception as problem:  # whatever breaks is a finding
        return f"{type(problem).__name__}: {problem}"
    return None


def shrink(seed: int) -> Case:
    """The failing program of `seed` with as few layers and fetches as still fail."""
    layers = list(range(random_program(seed).layers))
    for layer in list(layers):
        fewer = [i for i in layers if i != layer]
        if failure(seed, layers=fewer):
            layers = fewer
    bare = failure(seed, layers=layers, bare=True) is not None
    return random_program(seed, layers, bare)


def main() -> int:
    parser = argparse.ArgumentParser(description="random programs with the passes off and on")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    options = parser.parse_args()
    start, total, fused = time.perf_counter(), Outcome(), 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            outcome = check(random_program(seed))
        except Exception:  # the shrunk program and its seed say more than a traceback
            print(f"seed {seed}: {failure(seed)}")
            case = shrink(seed)
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
