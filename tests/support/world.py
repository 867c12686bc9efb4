"""World: a small training program in which everything can go wrong, and what must hold after it did."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import (
    AttrError,
    DTypeError,
    FeedError,
    FetchError,
    KernelError,
    MinigraphError,
    PlaceError,
    ProgramError,
    ShapeError,
    UninitializedError,
)
from minigraph.nn import functional as F
from minigraph.program import unique_name
from tests.support import counted_work

ERRORS: dict[str, type[MinigraphError]] = {
    "shape": ShapeError, "dtype": DTypeError, "attr": AttrError, "program": ProgramError, "feed": FeedError,
    "fetch": FetchError, "kernel": KernelError, "scope": UninitializedError, "place": PlaceError,
}  # fmt: skip


class World:
    """A small training program with everything that can go wrong at run time, started; and spare variables."""

    def __init__(self) -> None:
        self.main, self.startup, self.scope = static.Program("main"), static.Program("startup"), static.Scope()
        self.main.random_seed = self.startup.random_seed = 5
        with unique_name.guard(), static.program_guard(self.main, self.startup):
            self.x = static.data("x", [None, 4])
            self.label = static.data("label", [None, 1], "int64")
            self.ids = static.data("ids", [None], "int64")
            self.pick = static.data("pick", [2], "int64")
            table = nn.Embedding(6, 4)
            self.hidden = static.nn.fc(self.x + table(self.ids), 5, activation="relu")
            self.scores = static.nn.fc(F.dropout(self.hidden, 0.2), 3)
            picked = mg.mean(mg.gather(table.weight, self.pick))
            self.loss = F.cross_entropy(self.scores, self.label) + picked
            self.adam = mg.optimizer.Adam(0.1)
            self.adam.minimize(self.loss)
            for name, shape, dtype in (
                ("m", [2, 3], None), ("n", [4, 5], None), ("s", [], None), ("v", [3], None), ("t", [2, 3, 4], None),
                ("u", [5, 4, 2], None), ("open", [None, None], None), ("none", [0, 3], None), ("flat", [2, 0], None),
                ("b", [2, 3], "bool"), ("i", [2, 3], "int64"), ("d", [2, 3], "float64"),
            ):  # fmt: skip
                setattr(self, name, static.data(name, shape, dtype))
            self.total = mg.sum(self.label)
            self.constant = mg.full([1], 2.0)
        self.block = self.main.global_block()
        with static.program_guard(static.Program("other"), static.Program()):
            self.other = static.data("x", [None, 4])
        self.exe = static.Executor()
        self.exe.run(self.startup, scope=self.scope)
        rng = np.random.default_rng(0)
        self.feed = {
            "x": rng.normal(size=(2, 4)).astype(np.float32), "label": np.array([[0], [2]]), "ids": np.array([1, 5]),
            "pick": np.array([0, -6]),
        }  # fmt: skip

    def run(self, fetch: Any = None, scope: Any = None, **feeds: Any) -> list[np.ndarray]:
        fetch = [self.loss] if fetch is None else fetch
        return self.exe.run(self.main, {**self.feed, **feeds}, fetch, scope=self.scope if scope is None else scope)

    def step(self) -> list[bytes]:
        """The bytes of a loss and of all parameters after one step of training, with dropout."""
        fetches = [self.loss, self.scores, *self.main.all_parameters()]
        return [a.tobytes() for a in self.exe.run(self.main, self.feed, fetches, scope=self.scope)]

    def state(self) -> list[Any]:
        """What a refused call must not change."""
        programs = [(str(p), p.numbered, len(p.vars)) for p in (self.main, self.startup)]
        return [*programs, self.scope.list_names(), dict(self.scope.steps)]

    def tensor(self, name: str) -> Any:
        return self.scope.find_var(name).get_tensor()


MOST_LINES = 200_000  # of the package until an error is raised


@cache
def untouched_step() -> list[bytes]:
    return World().step()


def check_refused(kind: str, phrase: str, misuse: Callable[[World], Any], shown: str) -> None:
    """One error of this class with the phrase and a line that holds `shown`, at once, and nothing changed."""
    world = World()
    before = world.state()
    guards = static.program_guard(world.main, world.startup), static.scope_guard(world.scope), unique_name.guard("new_")
    with guards[0], guards[1], guards[2], pytest.raises(ERRORS[kind]) as caught:
        counted_work.lines(lambda: misuse(world), MOST_LINES)
    message = str(caught.value)
    lines = message.splitlines()
    assert any(phrase in line for line in (lines[0], *lines[2:])), "the user's line may hold the phrase itself"
    assert len(lines) <= 3 and all(len(line) < 400 for line in lines)
    assert lines[1].startswith(("  built at ", "  called at "))
    assert shown in lines[1]
    assert len(lines) == 2 or lines[2].startswith("  hint: ")
    assert type(caught.value) is ERRORS[kind] or kind == "attr"
    assert world.state() == before
    assert world.step() == untouched_step()


def line_of(function: Callable[..., Any]) -> str:
    """`file.py:31`, where a lambda stands."""
    code = function.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
