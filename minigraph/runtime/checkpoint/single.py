"""One file that stands for itself: it is the one before or the new one, whenever a crash comes."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from minigraph.errors.kinds import STORAGE

from . import storage
from .paths import LOCK, can_be_encoded, shown, text_of
from .tensors import read

PARTIAL = "partial_save"  # what a file is called until it is whole
BESIDE = re.compile(r"\.[0-9a-f]{16}\.data")  # ends the name of a file that another one names


def file_path(path: Any) -> str:
    """A path of a file; an error for what cannot be one."""
    name = text_of(path)
    if not os.path.basename(name) or "\0" in name or not can_be_encoded(name):
        raise STORAGE(f"{shown(name)!r} names no file")
    if storage.is_folder(name):
        raise STORAGE(f"{shown(name)} is a folder")
    return name


Parts = Iterable[bytes | memoryview]


def write_file(path: str, parts: Parts, beside: Mapping[str, Parts] | None = None) -> None:
    """Put these bytes into the file at `path`, in place of what is there.

    beside  {ending: bytes} of the files that this one names, for a kind of file that may name some. An ending says
            what is in its file, as BESIDE: it is there before `path` names it, and goes after no `path` names it
    Errors: ProgramError, and what is there stays. A warning says that it is written, and may be lost with the power.
    """
    if path.endswith(f".{PARTIAL}"):
        raise STORAGE(f"cannot write {shown(path)}: a half written file is called so, and goes with the next save")
    try:
        _replace(path, parts, beside)
    except OSError as problem:
        raise storage.problem_with("write", path, problem) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Likewise for a text that people read. A link is followed; a terminal or a pipe gets the text as it comes.

    The folders around it are made. Errors: OSError; ValueError for what cannot be a path.
    """
    content = text.encode(errors="backslashreplace")
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(content)
    else:
        _replace(os.path.realpath(path), [content], None)


def _replace(path: str, parts: Parts, beside: Mapping[str, Parts] | None) -> None:
    """Who holds the lock is the only one who writes: what a crash left is known, and goes with the next save."""
    problem: OSError | None = None
    with storage.held(os.path.dirname(path) or ".") as folder, storage.locked(f"{path}.{LOCK}", folder):
        storage.refuse_device(path, folder)
        for ending, content in (beside or {}).items():
            _put(path + ending, content, folder)
        if beside:
            storage.sync_folder(folder)
        _put(path, parts, folder)
        try:
            storage.sync_folder(folder)
        except OSError as failure:
            problem = failure
        else:
            _sweep(path, folder, beside)
    if problem is not None:
        warnings.warn(
            f"{shown(path)} is written, but after a loss of power what was there may be back: its folder could not be"
            f" forced to the disk: {problem.strerror or problem}",
            stacklevel=4,
        )


def _put(path: str, parts: Parts, folder: int) -> None:
    fresh = f"{path}.{PARTIAL}"
    try:
        storage.remove(fresh, folder)
        storage.write_new(fresh, parts, folder)
        storage.rename(fresh, path, folder)
    except BaseException:
        with suppress(OSError):
            storage.remove(fresh, folder)
        raise


def _sweep(path: str, folder: int, beside: Iterable[str] | None) -> None:
    """Remove files that `path` named before, and what crashes left of such; what stays goes the next time."""
    if beside is None:  # a kind of file that names none
        return
    own, kept = os.path.basename(path), {os.path.basename(path) + ending for ending in beside}
    with suppress(OSError):
        for name in storage.names_in(folder):
            ending = name.removeprefix(own).removesuffix(f".{PARTIAL}")
            if name.startswith(own) and BESIDE.fullmatch(ending) and name not in kept:
                storage.remove(name, folder)


def read_file(path: str) -> bytes:
    """All bytes of a file."""
    try:
        descriptor = storage.open_file(path)
        try:
            return storage.read_whole(descriptor, storage.size_of(descriptor))
        finally:
            storage.close(descriptor)
    except OSError as problem:
        raise storage.problem_with("read", path, problem) from None


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file."""
    try:
        descriptor = storage.open_file(path)
        try:
            return read(path, descriptor, None)[0]
        finally:
            storage.close(descriptor)
    except OSError as problem:
        raise storage.problem_with("read", path, problem) from None
