"""A training that saves after each step is killed at random, and goes on from what it finds.

    python -m bench.kills [--times 300] [--seed 0]     writes bench/results/kills.json

A child loads, trains on and saves in a loop, until SIGKILL. Then a load must give the state of one step, with the
bits of a training that nobody killed: the last step whose save was reported, or the one after it. Every tenth kill
meets the first saves in an empty folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import static

from .harness import machine, now, versions, write_report

LONGEST = 0.1  # seconds until a kill: a few steps and saves
FILES = ["net.manifest", "net.pdmodel", "net.pdopt", "net.pdparams"]


class KilledTraining:
    """A small net with dropout, AdamW and a schedule, in a Scope of its own."""

    def __init__(self) -> None:
        self.main, startup = static.Program(), static.Program()
        self.main.random_seed = startup.random_seed = 1
        with static.program_guard(self.main, startup), mg.base.unique_name.guard():
            x = static.data("x", [None, 16])
            hidden = mg.nn.functional.dropout(mg.nn.functional.relu(mg.nn.Linear(16, 64)(x)), 0.3)
            self.loss = mg.mean(mg.nn.Linear(64, 1)(hidden) ** 2.0)
            self.schedule = mg.optimizer.lr.ExponentialDecay(0.01, 0.99)
            mg.optimizer.AdamW(self.schedule).minimize(self.loss)
        self.exe, self.scope = static.Executor(), static.Scope()
        self.exe.run(startup, scope=self.scope)

    @property
    def steps(self) -> int:
        return self.scope.steps[self.main.origin]

    def step(self) -> None:
        x = np.random.default_rng(self.steps).standard_normal((8, 16), np.float32)
        self.exe.run(self.main, {"x": x}, [self.loss], scope=self.scope)
        self.schedule.step()

    def digest(self) -> str:
        """All that a step leaves: values, schedule, counter."""
        sha = hashlib.sha256(repr((self.steps, sorted(self.schedule.state_dict().items()))).encode())
        for name, value in sorted(self.main.state_dict(scope=self.scope).items()):
            sha.update(name.encode() + value.tobytes())
        return sha.hexdigest()

    def save(self, path: str) -> None:
        with static.scope_guard(self.scope):
            static.save(self.main, path)

    def load(self, path: str) -> None:
        with static.scope_guard(self.scope):
            static.load(self.main, path)


class Unkilled:
    """The digest after each step of a training that nobody kills."""

    def __init__(self) -> None:
        self.training = KilledTraining()
        self.digests = [self.training.digest()]

    def after(self, step: int) -> str:
        while len(self.digests) <= step:
            self.training.step()
            self.digests.append(self.training.digest())
        return self.digests[step]


def train_for_ever(training: KilledTraining, path: str, report: int) -> None:
    while True:
        training.step()
        training.save(path)
        os.write_report(report, training.steps.to_bytes(8, "little"))


def killed(training: KilledTraining, path: str, seconds: float) -> int | None:
    """Let a child train on, kill it after so many seconds; the last step that it reported."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            train_for_ever(training, path, write)
        finally:  # an error: it must not go on as the parent does
            os._exit(1)
    os.close(write)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        raise SystemExit("the child ended by itself; its message stands above")
    with open(read, "rb") as file:
        reported = file.read()
    return int.from_bytes(reported[-8:], "little") if reported else None


def kill(times: int, seed: int) -> Counter[str]:
    """What was seen; SystemExit where a state was lost."""
    rng, unkilled, seen = random.Random(seed), Unkilled(), Counter[str]()
    unkilled.after(1)  # machine code is compiled here, not in each child
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(times):
            path = os.path.join(folder, str(turn // 10), "net")
            training, before = KilledTraining(), 0
            if os.path.exists(f"{path}.manifest"):
                training.load(path)
                before = training.steps
            reported = killed(training, path, rng.random() * LONGEST)
            last = before if reported is None else reported
            there = sorted(p.name for p in Path(path).parent.glob("*"))
            if last == 0 and "net.manifest" not in there:
                seen["before the first save was done"] += 1
                continue
            found = KilledTraining()
            found.load(path)
            if found.steps not in (last, last + 1) or found.digest() != unkilled.after(found.steps):
                raise SystemExit(f"kill {turn}: step {found.steps} is there after {last}: a state is lost")
            seen["after a save that was not reported" if found.steps > last else "before the next save was done"] += 1
            seen["left files behind"] += there != FILES
            if turn % 10 == 9:
                found.save(path)
                if (left := sorted(p.name for p in Path(path).parent.iterdir())) != FILES:
                    raise SystemExit(f"kill {turn}: {left} are there after a save")
        seen["steps trained, at most"] = len(unkilled.digests) - 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=300, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen = kill(options.times, options.seed)
    report: dict[str, Any] = {
        "bench": "kills", "title": "SIGKILLs of a training that saves after each step", "kills": options.times,
        "lost": 0, "seen": dict(seen), "command": " ".join(["python -m bench.kills", *sys.argv[1:]]),
        "date": now(), "machine": machine(),
        "versions": versions(), "load_before": os.getloadavg(),
    }  # fmt: skip
    write_report(report)
    print(f"{options.times} kills, 0 states lost: {dict(seen)}")


if __name__ == "__main__":
    main()
