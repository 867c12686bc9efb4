"""GPT-2's training step by several trees of this repository, a process for each, in turns on one card.

    python -m bench.in_trees main=../main gelu=../gelu here=. [--rounds 12] [--only gpt2_124m] [--out FILE]

The first tree is what the others are compared with: three losses must agree. A row for each tree: milliseconds of a
step with rests and without, and by class of calls; then the calls whose times differ most from the first tree's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .gpu_steps_run import _agree
from .harness import in_lines, now, summarized
from .turns import in_turns, without_rest

ROOT = Path(__file__).parent.parent
TURN_MS, SHOWN, RUNS = 250.0, 14, 5
WORKER = """
import json, os, statistics, sys
from collections import defaultdict
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from bench.gpt2 import row
from bench.gpt2_profile import by_class
from bench.gpu_gpt2 import SIZES
from bench.gpu_steps_arms import Minigraph, timed
title, network = SIZES[sys.argv[1]]
arm = Minigraph(row(sys.argv[1], title, network), 0.0, {})


def profile():
    with arm.mg.profiler.Profiler() as found:
        for _ in range(int(sys.argv[2])):
            arm.step()
            arm.wait()
    calls = defaultdict(list)
    for run in found.runs:
        total = defaultdict(float)
        for c in run.calls:
            total[f"{c.op.type if c.op is not None else 'results'}: {c.kernel.name}"] += c.seconds * 1e3
        for name, ms in total.items():
            calls[name].append(ms)
    classes = {name: facts["ms"] for name, facts in by_class(found)[0].items()}
    return {"classes": classes, "calls": {name: round(statistics.median(ms), 4) for name, ms in calls.items()}}


ask = {"losses": arm.result, "turn": lambda n: timed(arm, int(n)), "profile": profile,
       "facts": lambda: {"package": arm.mg.__file__, "arena_mib": round(arm.arena, 1)}}
for line in sys.stdin:
    name, *given = line.split()
    answers.write(json.dumps(ask[name](*given)) + "\\n")
    answers.flush()
"""


class Tree:
    """A process that takes steps with the package of one folder."""

    def __init__(self, folder: Path, size: str) -> None:
        paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, size, str(RUNS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip

    def ask(self, question: str) -> Any:
        """What it answers; an EOFError where it is gone."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise EOFError(f"the process ended at: {question}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def compared(trees: Mapping[str, Tree], rounds: int) -> dict[str, Any]:
    """Facts, losses, milliseconds, classes of each tree; a tree with other losses is an error."""
    found: dict[str, Any] = {"trees": {name: tree.ask("facts") for name, tree in trees.items()}}
    losses = found["losses"] = {name: tree.ask("losses") for name, tree in trees.items()}
    first = next(iter(losses.values()))
    for name, own in losses.items():
        if not _agree(first, own, 2e-2):
            raise ValueError(f"{name} computes {own} instead of {first}")
    turns = dict[str, Callable[[], float]]()
    for name, tree in trees.items():
        tree.ask("turn 5")
        turns[name] = partial(tree.ask, f"turn {max(3, int(TURN_MS / tree.ask('turn 5')))}")
    in_turns(turns, 1)  # not counted: clocks rise
    found["milliseconds"] = {name: summarized(ms) for name, ms in in_turns(turns, rounds).items()}
    found["milliseconds_without_rest"] = {name: round(ms, 4) for name, ms in without_rest(turns).items()}
    found["profiles"] = {name: tree.ask("profile") for name, tree in trees.items()}
    return found


def table(found: Mapping[str, Any]) -> str:
    """Times of each tree, then what differs most from the first one."""
    lines = []
    for name, ms in found["milliseconds"].items():
        profile = found["profiles"][name]
        steady = found["milliseconds_without_rest"][name]
        lines.append(f"{name:10} {ms['median']:.3f} ({ms['p10']:.3f}), no rest {steady:.3f} {profile['classes']}")
    base, *others = found["profiles"]
    before = found["profiles"][base]["calls"]
    for name in others:
        own = found["profiles"][name]["calls"]
        gaps = {c: round(own.get(c, 0) - before.get(c, 0), 4) for c in {*own, *before}}
        lines.append(f"{name} less {base}:")
        lines += [f"  {gaps[c]:+.3f} ms {before.get(c, 0):.3f} -> {own.get(c, 0):.3f}  {c}"
                  for c in sorted(gaps, key=lambda c: -abs(gaps[c]))[:SHOWN]]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="GPT-2's step by several trees")
    parser.add_argument("trees", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default="gpt2_124m", help="a size of gpu_gpt2")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/studies/in_trees.json")
    options = parser.parse_args()
    folders = {name: Path(folder).resolve() for name, _, folder in (t.partition("=") for t in options.trees)}
    trees = {name: Tree(folder, options.only) for name, folder in folders.items()}
    try:
        found = compared(trees, options.rounds)
    finally:
        for tree in trees.values():
            tree.close()
    facts = {"command": f"python -m bench.in_trees {' '.join(sys.argv[1:])}", "date": now(), "size": options.only}
    options.out.write_text(in_lines(facts | found) + "\n", encoding="utf-8")
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
