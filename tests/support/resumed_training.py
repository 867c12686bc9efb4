"""A training with a schedule and dropout that is built by the same code in every process.

    python -m tests.support.resumed_training PATH FIRST STEPS PASSES

Goes on from the checkpoint at PATH where FIRST > 0, prints a hash of the losses and of all states, and saves there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import nn, static
from minigraph.nn import functional as F
from minigraph.optimizer import lr
from minigraph.program import unique_name


def warm_cosine() -> Any:
    return lr.LinearWarmup(lr.CosineAnnealingDecay(0.05, 7), 3, 0.0, 0.05)


class Training:
    """Programs, a scope and a scheduler."""

    def __init__(
        self, optimizer: Callable[[Any], Any], schedule: Callable[[], Any] = warm_cosine, passes: bool = False
    ) -> None:
        self.main, startup, self.scope = static.Program("main"), static.Program("startup"), static.Scope()
        startup.random_seed = 3
        self.rate = schedule()
        with unique_name.guard(), static.program_guard(self.main, startup):
            x, y = static.data("x", [None, 6]), static.data("y", [None, 1], "int64")
            hidden = F.dropout(F.gelu(nn.Linear(6, 8)(x)), 0.4)
            self.loss = F.cross_entropy(nn.Linear(8, 3)(hidden), y)
            optimizer(self.rate).minimize(self.loss)
        self.exe, self.runs = static.Executor(), self.main
        if passes:
            self.runs = static.CompiledProgram(self.main, static.BuildStrategy.all())
        self.exe.run(startup, scope=self.scope)

    def go(self, first: int, count: int) -> list[bytes]:
        """The losses of these steps and all states after them, as bytes."""
        found = []
        for step in range(first, first + count):
            rng = np.random.default_rng(step)
            feed = {"x": rng.normal(size=(5, 6)).astype("f4"), "y": rng.integers(0, 3, (5, 1))}
            found += [self.exe.run(self.runs, feed, [self.loss], scope=self.scope)[0].tobytes()]
            if isinstance(self.rate, lr.LRScheduler):
                self.rate.step()
        return found + [value.tobytes() for _, value in sorted(self.main.state_dict(scope=self.scope).items())]

    def save(self, path: Any) -> None:
        with static.scope_guard(self.scope):
            static.save(self.main, path)

    def load(self, path: Any, **options: Any) -> None:
        with static.scope_guard(self.scope):
            static.load(self.main, path, **options)


def main(path: str, first: str, count: str, passes: str) -> None:
    training = Training(lambda rate: mg.optimizer.AdamW(rate, weight_decay=0.1), passes=passes == "1")
    if int(first):
        training.load(path)
    found = training.go(int(first), int(count))
    training.save(path)
    print(hashlib.sha256(b"".join(found[-10:])).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
