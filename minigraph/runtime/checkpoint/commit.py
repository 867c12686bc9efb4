"""Commit: a state becomes the current one in one step.

    1  its files under fresh names, then a manifest of them, all forced to the disk
    2  the manifest gets its lasting name: from now on this state is the current one
    3  its files get their lasting names, in place of those of the state before

Readers take a file under its fresh name where there is one, so they find all files of the state that
the manifest names between any two steps. The next save begins with step 3 of one that was interrupted
after step 2, and removes what one left that was interrupted before.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minigraph.errors import ProgramError
from minigraph.errors.kinds import STORAGE

from . import storage
from .manifest import LIMIT, Manifest, parsed
from .paths import KINDS, LOCK, MANIFEST, former_saver, fresh, plain, shown, token_of
from .tensors import Packed


@dataclass
class State:
    """What is saved: the content of each file by kind, and the state of the training."""

    files: dict[str, Packed]
    training: dict[str, Any]


def commit(path: str, state_of: Callable[[str], State]) -> None:
    """Make `state_of(token)` the current state at `path`; it is asked once the turn has come.

    A ProgramError says that the state before still is the current one. Where only the lasting names could not be
    given, a warning says so: the new state is the current one, and the next save gives them.
    """
    try:
        with storage.held(os.path.dirname(path) or ".") as folder:
            problem = _commit_in(path, folder, state_of)
    except OSError as failure:
        raise storage.problem_with("make", os.path.dirname(path) or ".", failure) from None
    if problem is not None:
        warnings.warn(
            f"{shown(path)} is saved and can be loaded, but its files could not get their lasting names:"
            f" {problem.strerror or problem}; the next save gives them",
            stacklevel=3,
        )


def _commit_in(path: str, folder: int, state_of: Callable[[str], State]) -> OSError | None:
    """What `commit` does while it holds the folder; returns why step 3 failed."""
    for kind in (*KINDS, MANIFEST):
        if storage.is_folder(plain(path, kind), folder):
            raise STORAGE(f"cannot write {shown(plain(path, kind))}: it is a folder")
    try:
        with storage.locked(plain(path, LOCK), folder):
            return _commit_alone(path, folder, state_of)
    except OSError as problem:
        raise storage.problem_with("lock", plain(path, LOCK), problem) from None


def _commit_alone(path: str, folder: int, state_of: Callable[[str], State]) -> OSError | None:
    """What it does while it holds the lock, too."""
    before = _current(path, folder)
    try:
        if before is not None:
            _finish(path, folder, before)
        _sweep(path, folder, before)
    except OSError as problem:
        raise storage.problem_with("tidy up", os.path.dirname(path) or ".", problem) from None
    token = secrets.token_hex(8)
    state = state_of(token)
    made = Manifest(token, {}, state.training)
    try:
        _write(path, folder, made, state.files)
    except BaseException as problem:
        current = _current(path, folder)
        done = current is not None and current.token == token
        if not done:
            _try_to_sweep(path, folder, current)
        if not done or not isinstance(problem, ProgramError):
            raise
    try:
        storage.sync_folder(folder)  # else a crash could undo step 2 and not step 3
        _finish(path, folder, made)
        _sweep(path, folder, made)
    except OSError as problem:
        return problem
    return None


def _write(path: str, folder: int, manifest: Manifest, files: Mapping[str, Packed]) -> None:
    """Steps 1 and 2."""
    at = plain(path, MANIFEST)
    try:
        for kind, packed in files.items():
            at = plain(path, kind)
            storage.write_new(fresh(path, kind, manifest.token), packed.parts(), folder)
            manifest.files[kind] = packed.record()
        at = plain(path, MANIFEST)
        storage.write_new(fresh(path, MANIFEST, manifest.token), [manifest.dumped()], folder)
        storage.sync_folder(folder)
        storage.rename(fresh(path, MANIFEST, manifest.token), at, folder)
    except OSError as problem:
        raise storage.problem_with("write", at, problem) from None


def _current(path: str, folder: int) -> Manifest | None:
    """The manifest of the current state, None where there is none or it cannot be read."""
    at = plain(path, MANIFEST)
    try:
        descriptor = storage.open_file(at, folder)
    except OSError:
        return None
    try:
        return parsed(at, storage.read_whole(descriptor, LIMIT))
    except (OSError, ProgramError):
        return None
    finally:
        storage.close(descriptor)


def _finish(path: str, folder: int, manifest: Manifest) -> None:
    """Step 3."""
    for kind in KINDS:
        made = fresh(path, kind, manifest.token)
        if kind not in manifest.files:
            storage.remove(plain(path, kind), folder)
        elif storage.exists(made, folder):
            storage.rename(made, plain(path, kind), folder)


def _sweep(path: str, folder: int, current: Manifest | None) -> None:
    """Remove what crashes left, also under the names that former versions of minigraph gave.

    Where a manifest is there that could not be read, nobody knows which files it names: all stay.
    """
    token, names = current.token if current is not None else None, storage.names_in(folder)
    if current is None and os.path.basename(plain(path, MANIFEST)) in names:
        return
    for name in names:
        own, process = token_of(path, name), former_saver(path, name)
        if (own is not None and own != token) or (process is not None and not storage.lives(process)):
            storage.remove(name, folder)


def _try_to_sweep(path: str, folder: int, current: Manifest | None) -> None:
    with suppress(OSError):  # the next save tries again
        _sweep(path, folder, current)
