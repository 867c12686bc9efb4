"""What the tests of checkpoints share: a small training, a disk that fails or dies, and one that forgets."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.program import unique_name
from minigraph.runtime.checkpoint import storage

FILES = ["m.manifest", "m.pdmodel", "m.pdopt", "m.pdparams"]


class Trained:
    """A program whose state is one number: all values are `number`, and so is the counter of runs."""

    def __init__(self, optimizer: bool = True) -> None:
        self.main, self.scope = static.Program("main"), static.Scope()
        with unique_name.guard(), static.program_guard(self.main, static.Program("startup")):
            params = [static.create_parameter([3], name=name) for name in ("a", "b")]
            if optimizer:
                mg.optimizer.Momentum(0.5).minimize(mg.sum(params[0] * params[1]))
        self.main.random_seed = 1

    def set(self, number: int) -> None:
        for v in self.main.list_vars():
            if v.persistable:
                self.scope.write(v.name, np.full(v.shape, number, v.dtype))
        self.scope.steps[self.main.origin] = number

    def save(self, path: Path | str, number: int) -> None:
        self.set(number)
        with static.scope_guard(self.scope):
            static.save(self.main, path)

    def loaded(self, path: Path | str) -> int | None:
        """The number at a path, None where nothing was saved; anything between two states is an error."""
        scope = static.Scope()
        with static.scope_guard(scope):
            try:
                static.load(self.main, path)
            except ProgramError as problem:
                if "cannot read" in str(problem) and "No such file" in str(problem):
                    return None
                raise
        read = {float(value) for name in scope.list_names() for value in scope.read(name).reshape(-1)}
        (number,) = read
        state = static.load_program_state(path)
        assert {float(value) for array in state.values() for value in array.reshape(-1)} == read
        if os.path.exists(f"{path}.manifest"):
            assert scope.steps[self.main.origin] == number
        return int(number)


class Crash(BaseException):
    """The process is dead: nothing that it would do from now on happens."""


class FailingDisk:
    """Stands for `os` in storage.py, and counts its calls.

    at     the number of the call that fails
    error  what it raises then; None for a crash, after which no other call happens either
    torn   a write that crashes has written half
    """

    COUNTED = ("open", "write", "fsync", "replace", "unlink", "makedirs")

    def __init__(self, at: int = -1, error: int | None = None, torn: bool = False) -> None:
        self.at, self.error, self.torn, self.count = at, error, torn, 0
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.COUNTED:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            number, self.count = self.count, self.count + 1
            self.names.append(name)
            if self.error is not None and number == self.at:
                raise OSError(self.error, os.strerror(self.error))
            if self.error is None and 0 <= self.at <= number:
                if name == "write" and self.torn and number == self.at:
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Crash
            return real(*args, **kwargs)

        return call


class ForgetfulDisk(FailingDisk):
    """Knows what would be on the disk after a loss of power: what was synced, and any part of the rest.

    A file's bytes are there after its fsync, a folder's names after that of the folder.
    """

    def __init__(self, folder: Path, at: int) -> None:
        super().__init__(at)
        self.folder, self.numbers = folder, itertools.count()
        self.names_there = {p.name: next(self.numbers) for p in folder.iterdir()}
        self.synced = {number: (folder / name).read_bytes() for name, number in self.names_there.items()}
        self.now = dict(self.names_there)
        self.pending: list[Callable[[dict[str, int]], Any]] = []
        self.descriptors: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name not in self.COUNTED:
            return call

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            getattr(self, f"_{name}")(result, *args)
            return result

        return watched

    def _open(self, descriptor: int, path: str, flags: int, *_: Any) -> None:
        name = self.descriptors[descriptor] = os.path.basename(path)
        if flags & os.O_CREAT and name not in self.now:
            number = next(self.numbers)
            self._change(lambda names: names.update({name: number}))

    def _write(self, *_: Any) -> None:
        """It is lost unless it is synced."""

    def _fsync(self, _: None, descriptor: int) -> None:
        name = self.descriptors[descriptor]
        if name == ".":
            self.names_there, self.pending = dict(self.now), []
        else:
            self.synced[self.now[name]] = (self.folder / name).read_bytes()

    def _replace(self, _: None, old: str, new: str) -> None:
        number = self.now[os.path.basename(old)]

        def change(names: dict[str, int]) -> None:
            names.pop(os.path.basename(old), None)
            names[os.path.basename(new)] = number

        self._change(change)

    def _unlink(self, _: None, path: str) -> None:
        self._change(lambda names: names.pop(os.path.basename(path), None))

    def _makedirs(self, *_: Any) -> None:
        raise AssertionError("the folder is there")

    def _change(self, change: Callable[[dict[str, int]], Any]) -> None:
        change(self.now)
        self.pending.append(change)

    def images(self, most: int = 40) -> Iterator[dict[str, bytes]]:
        """Files by name, as they may be found after a loss of power."""
        chosen = list(itertools.product((False, True), repeat=len(self.pending)))
        for kept in chosen if len(chosen) <= most else random.Random(len(chosen)).sample(chosen, most):
            names = dict(self.names_there)
            for change, survives in zip(self.pending, kept, strict=True):
                if survives:
                    change(names)
            yield {name: self.synced.get(number, b"") for name, number in names.items()}


def with_disk(disk: FailingDisk, action: Callable[[], Any]) -> None:
    """Do something with this disk; a crash ends it."""
    real, storage.os = storage.os, disk  # type: ignore[assignment]
    try:
        action()
    except Crash:
        pass
    finally:
        storage.os = real
